//! Which table pages are write-protected, and what their writes tell.
//!
//! The device model protects pages and says so, on the ring on which it tells
//! of writes and submissions. One comparison makes up for what was written
//! until then. After that a page is relied on while everything that was
//! announced of this guest has been told (see `told`).

use std::collections::VecDeque;

use guest_memory::Gfn;

use super::tables::{Id, Table, Tables};
use super::{Costs, ShadowMode, ShadowTables};

/// Orders sent and not yet answered, at most: the device model's ring has
/// other things to carry.
const MOST_OUTSTANDING: usize = 64;

/// Writes to a page between two submissions that reach it before even strict
/// mode lets go of it. A guest that binds or unbinds a large buffer writes a
/// table from end to end (Linux `gt/gen8_ppgtt.c:gen8_ppgtt_insert_pte`,
/// `__gen8_ppgtt_clear`); after that one comparison tells as much as the other
/// traps would.
const STRICT_BURST: u32 = 32;

/// What the device model is to do with a frame of its guest. Each is
/// answered with [`ShadowTables::protected`], [`ShadowTables::refused`] or
/// [`ShadowTables::unprotected`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Tell of each write to it from now on.
    Protect {
        /// The frame.
        gfn: Gfn,
        /// Returned in the answer.
        serial: u32,
    },
    /// No longer.
    Unprotect {
        /// The frame.
        gfn: Gfn,
    },
}

/// Orders on their way.
pub struct Orders {
    offered: bool,
    queue: VecDeque<Order>,
    outstanding: usize,
    serial: u32,
    most: usize,
}

impl Orders {
    /// None; `most` is a limit of those that wait.
    pub const fn new(most: usize) -> Self {
        Self {
            offered: false,
            queue: VecDeque::new(),
            outstanding: 0,
            serial: 0,
            most,
        }
    }

    /// Numbers orders from behind `serial` on.
    pub const fn count_from(&mut self, serial: u32) {
        self.serial = serial;
    }

    /// Asks for a frame to be protected, if that can be had now.
    fn protect(&mut self, gfn: Gfn) -> Option<u32> {
        if !self.offered || self.queue.len() >= self.most {
            return None;
        }
        self.serial = self.serial.wrapping_add(1);
        let serial = self.serial;
        self.queue.push_back(Order::Protect { gfn, serial });
        Some(serial)
    }

    /// Ends it. There are no more of these than tables, but for those that a
    /// device model causes by false answers: it is left with its pages.
    pub fn unprotect(&mut self, gfn: Gfn) {
        if self.offered && self.queue.len() < 2 * self.most {
            self.queue.push_back(Order::Unprotect { gfn });
        }
    }

    fn take(&mut self) -> Vec<Order> {
        let room = MOST_OUTSTANDING - self.outstanding.min(MOST_OUTSTANDING);
        let n = room.min(self.queue.len());
        self.outstanding += n;
        self.queue.drain(..n).collect()
    }

    /// Nothing is protected and nothing can be.
    pub fn forget(&mut self) {
        self.offered = false;
        self.queue.clear();
        self.outstanding = 0;
    }
}

/// Whether a table's writes are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// They are not.
    Open,
    /// The device model was asked to protect the page.
    Asked {
        /// With this number.
        serial: u32,
    },
    /// They are.
    Closed {
        /// The copy holds all that was written until now.
        current: bool,
        /// Writes since a submission last reached it.
        writes: u32,
    },
}

impl Watch {
    /// Whether the page is protected or about to be.
    pub const fn is_asked(self) -> bool {
        !matches!(self, Self::Open)
    }

    pub const fn is_closed(self) -> bool {
        matches!(self, Self::Closed { .. })
    }

    /// Whether there is nothing to compare.
    pub const fn is_current(self) -> bool {
        matches!(self, Self::Closed { current: true, .. })
    }

    /// The page was compared.
    pub fn compared(&mut self) {
        if let Self::Closed { current, .. } = self {
            *current = true;
        }
    }

    /// Something was written that is not known.
    pub fn outdate(&mut self) {
        if let Self::Closed { current, .. } = self {
            *current = false;
        }
    }

    fn visited(&mut self) {
        if let Self::Closed { writes, .. } = self {
            *writes = 0;
        }
    }

    /// A write was told.
    pub fn written(&mut self) {
        if let Self::Closed { writes, .. } = self {
            *writes = writes.saturating_add(1);
        }
    }
}

impl Tables {
    /// Lets go of a table's page, if it is protected.
    pub fn open(&mut self, id: Id) {
        if let Some(table) = self.table_mut(id)
            && table.watch.is_asked()
        {
            table.watch = Watch::Open;
            table.ledger.end();
            let gfn = table.key.0;
            self.orders.unprotect(gfn);
            self.counts.unprotects += 1;
        }
    }

    /// The table at a frame whose writes are told.
    pub fn closed(&self, gfn: Gfn) -> Option<Id> {
        let mut tables = self.at(gfn);
        tables.find(|&id| self.table(id).is_some_and(|t| t.watch.is_closed()))
    }

    /// How many tables' writes are told.
    pub fn protected(&self) -> usize {
        let tables = self.tables.iter().flatten();
        tables.filter(|t| t.watch.is_closed()).count()
    }

    /// Opens every table, without an order: what was protected is not.
    fn open_all(&mut self) {
        for table in self.tables.iter_mut().flatten() {
            table.watch = Watch::Open;
            table.ledger.end();
        }
    }
}

impl ShadowTables {
    /// A submission reached a table. `changed`: entries that were found
    /// changed; nothing if it was not compared.
    pub(super) fn visited(&self, inner: &mut Tables, id: Id, changed: Option<u32>) {
        let costs = inner.costs;
        let Some(table) = inner.table_mut(id) else {
            return;
        };
        if self.config.mode == ShadowMode::Lazy {
            return;
        }
        table.watch.visited();
        let returned = table.tenure.returned(changed.unwrap_or(0), costs);
        match changed {
            // Protected, but there was something not yet told: neither way
            // was cheaper. Its writes are counted when they are told.
            Some(_) if table.watch.is_closed() => {}
            changed => {
                table.ledger.written(changed.unwrap_or(0), costs);
                table.ledger.submission(costs);
            }
        }
        if returned {
            // What it was filled with while nothing named it says nothing.
            table.ledger.resume(costs);
        }
        if table.watch.is_asked() || table.shared || !self.wants_change(table, costs) {
            return;
        }
        let gfn = table.key.0;
        let Some(serial) = inner.orders.protect(gfn) else {
            return;
        };
        inner.counts.protects += 1;
        if let Some(table) = inner.table_mut(id) {
            table.watch = Watch::Asked { serial };
            table.ledger.change(costs);
        }
    }

    /// Whether a table should be followed the other way.
    pub(super) fn wants_change(&self, table: &Table, costs: Costs) -> bool {
        match (self.config.mode, table.watch) {
            (ShadowMode::Adaptive, _) => table.ledger.wants_change(costs),
            (ShadowMode::Strict, Watch::Closed { writes, .. }) => writes >= STRICT_BURST,
            (ShadowMode::Strict, _) => true,
            (ShadowMode::Lazy, _) => table.watch.is_asked(),
        }
    }

    /// What the device model is to do now. To be asked for after each
    /// submission, and each answer.
    #[must_use]
    pub fn orders(&self) -> Vec<Order> {
        let mut inner = self.tables();
        inner.settle_links();
        inner.orders.take()
    }

    /// Numbers orders so that answers to those of another process are not taken
    /// for answers to these.
    pub fn number_from(&self, serial: u32) {
        self.tables().orders.count_from(serial);
    }

    /// The device model can protect pages from now on, or cannot any more;
    /// either way nothing of this guest is protected. One of the changes that
    /// are counted.
    pub fn offer(&self, offered: bool) {
        let mut inner = self.tables();
        inner.hear(1);
        inner.orders.forget();
        inner.open_all();
        inner.orders.offered = offered;
    }

    /// Another device model has taken over: like [`ShadowTables::offer`], and
    /// so many changes count as told. What the last one did not come to tell
    /// of is found by comparing, since every table is compared now.
    pub fn recovered(&self, changes: u64, offered: bool) {
        self.offer(offered);
        self.tables().hear_up_to(changes);
    }

    /// A frame is protected, as ordered.
    pub fn protected(&self, gfn: Gfn, serial: u32) {
        let mut inner = self.tables();
        inner.orders.outstanding = inner.orders.outstanding.saturating_sub(1);
        let asked = inner.asked(gfn);
        match asked {
            Some((id, s)) if s == Some(serial) => {
                if let Some(table) = inner.table_mut(id) {
                    table.watch = Watch::Closed {
                        current: false,
                        writes: 0,
                    };
                }
            }
            // A later order about it is on its way.
            Some(_) => {}
            // Of before it was last offered.
            None => inner.orders.unprotect(gfn),
        }
    }

    /// A frame cannot be protected.
    pub fn refused(&self, gfn: Gfn, serial: u32) {
        let mut inner = self.tables();
        inner.orders.outstanding = inner.orders.outstanding.saturating_sub(1);
        inner.counts.refused += 1;
        if let Some((id, Some(s))) = inner.asked(gfn)
            && s == serial
            && let Some(table) = inner.table_mut(id)
        {
            table.watch = Watch::Open;
            table.ledger.refused();
        }
    }

    /// A frame is no longer protected, as ordered.
    pub fn unprotected(&self) {
        let mut inner = self.tables();
        inner.orders.outstanding = inner.orders.outstanding.saturating_sub(1);
    }
}

impl Tables {
    /// The table at a frame that was asked to be protected, with the number
    /// while there is no answer.
    fn asked(&self, gfn: Gfn) -> Option<(Id, Option<u32>)> {
        self.at(gfn).find_map(|id| match self.table(id)?.watch {
            Watch::Open => None,
            Watch::Asked { serial } => Some((id, Some(serial))),
            Watch::Closed { .. } => Some((id, None)),
        })
    }

    pub fn outdate(&mut self, id: Id) {
        if let Some(table) = self.table_mut(id) {
            table.watch.outdate();
        }
    }
}
