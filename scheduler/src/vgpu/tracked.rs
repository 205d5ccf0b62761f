//! What the device model tells of protected table pages.

use guest_memory::Gfn;
use vgpu_ring::{Event, Outcome, Request, TableChanges};

use super::Vgpu;
use crate::ppgtt::Order;
use crate::sync::lock;

impl Vgpu {
    /// Where the device model counts changes of protected pages. Until it is
    /// known none is relied on.
    pub fn count_changes(&self, changes: TableChanges) {
        self.tables.count_changes(Box::new(move || changes.load()));
    }

    /// A request about table pages.
    pub(super) fn tracked(&self, request: Request) {
        match request {
            Request::Protection { offered } => self.tables.offer(offered),
            Request::Protected {
                gfn,
                serial,
                outcome,
            } => match outcome {
                Outcome::Done => self.tables.protected(Gfn(gfn), serial),
                Outcome::Refused => self.tables.refused(Gfn(gfn), serial),
                Outcome::Ended => self.tables.unprotected(),
            },
            Request::TableWrite {
                gpa,
                size,
                since_ns,
            } => self.tables.wrote(gpa, size.into(), since_ns),
            Request::TableReleased { gfn } => self.tables.released(Gfn(gfn)),
            Request::WritesMissed { count } => self.tables.missed(count),
            Request::Recovered { changes, offered } => self.tables.recovered(changes, offered),
            _ => return,
        }
        self.give_orders();
    }

    /// Passes on what the tables want to have protected.
    pub(super) fn give_orders(&self) {
        let _in_order = lock(&self.ordering);
        for order in self.tables.orders() {
            self.push(match order {
                Order::Protect { gfn, serial } => Event::Protect { gfn: gfn.0, serial },
                Order::Unprotect { gfn } => Event::Unprotect { gfn: gfn.0 },
            });
        }
    }
}
