//! What the device model tells of protected table pages.

use guest_memory::Gfn;
use vgpu_ring::{Event, Outcome, Request};

use super::Vgpu;
use crate::ppgtt::Order;
use crate::sync::lock;

impl Vgpu {
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
                value,
                since_ns,
            } => self.tables.wrote(gpa, size.into(), value, since_ns),
            Request::TableChanged { gfn } => self.tables.changed(Gfn(gfn)),
            Request::TableReleased { gfn } => self.tables.released(Gfn(gfn)),
            Request::WritesMissed => self.tables.missed(),
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
