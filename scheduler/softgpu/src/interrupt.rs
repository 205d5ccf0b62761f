//! GT interrupt registers and the message they send.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gen8::{Engine, irq};
use gpu_bus::InterruptLine;

use crate::counters::count;

const BANKS: usize = 4;
/// Offset after the last bank.
const END: u32 = irq::GT_ISR0 + 4 * irq::GT_BANK_STRIDE;

#[derive(Clone, Copy)]
struct Bank {
    imr: u32,
    iir: u32,
    ier: u32,
}

struct State {
    enabled: bool,
    /// Whether something was deliverable when last looked at: a message is
    /// an edge.
    asserted: bool,
    banks: [Bank; BANKS],
}

impl State {
    fn pending(&self) -> bool {
        self.enabled && self.banks.iter().any(|b| b.iir & b.ier != 0)
    }

    /// Whether a message is due, after a change.
    fn edge(&mut self) -> bool {
        let now = self.pending();
        let edge = now && !self.asserted;
        self.asserted = now;
        edge
    }

    /// The level bits of the master register.
    fn levels(&self) -> u32 {
        let half = |bank: usize, shift: u32| {
            let b = &self.banks[bank];
            ((b.iir & b.ier) >> shift) & 0xffff != 0
        };
        let mut v = 0;
        for e in Engine::ALL {
            let (bank, shift) = e.irq_bank();
            if half(crate::bits::index(bank), shift) {
                v |= e.master_bit();
            }
        }
        v
    }
}

/// Four banks behind one master switch.
pub(crate) struct Interrupts {
    state: Mutex<State>,
    line: Arc<dyn InterruptLine>,
    pub(crate) sent: AtomicU64,
}

enum Register {
    Isr,
    Imr(usize),
    Iir(usize),
    Ier(usize),
}

fn decode(offset: u32) -> Option<Register> {
    if !(irq::GT_ISR0..END).contains(&offset) {
        return None;
    }
    let o = offset - irq::GT_ISR0;
    let bank = crate::bits::index(o / irq::GT_BANK_STRIDE);
    Some(match o % irq::GT_BANK_STRIDE {
        4 => Register::Imr(bank),
        8 => Register::Iir(bank),
        0xc => Register::Ier(bank),
        _ => Register::Isr,
    })
}

impl Interrupts {
    pub(crate) fn new(line: Arc<dyn InterruptLine>) -> Self {
        Self {
            state: Mutex::new(State {
                enabled: false,
                asserted: false,
                banks: [Bank {
                    imr: u32::MAX,
                    iir: 0,
                    ier: 0,
                }; BANKS],
            }),
            line,
            sent: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn deliver(&self, edge: bool) {
        if edge {
            count(&self.sent);
            self.line.raise();
        }
    }

    /// The register at `offset`, if it is one of these.
    pub(crate) fn read(&self, offset: u32) -> Option<u32> {
        if offset == irq::MASTER {
            let s = self.lock();
            let enable = if s.enabled { irq::MASTER_ENABLE } else { 0 };
            return Some(enable | s.levels());
        }
        let r = decode(offset)?;
        let s = self.lock();
        Some(match r {
            // Every source here is a pulse: no level outlasts its cause.
            Register::Isr => 0,
            Register::Imr(b) => s.banks[b].imr,
            Register::Iir(b) => s.banks[b].iir,
            Register::Ier(b) => s.banks[b].ier,
        })
    }

    /// Writes the register at `offset` and says whether it is one of these.
    pub(crate) fn write(&self, offset: u32, value: u32) -> bool {
        let edge = if offset == irq::MASTER {
            let mut s = self.lock();
            s.enabled = value & irq::MASTER_ENABLE != 0;
            s.edge()
        } else {
            let Some(r) = decode(offset) else {
                return false;
            };
            let mut s = self.lock();
            match r {
                Register::Isr => {}
                Register::Imr(b) => s.banks[b].imr = value,
                Register::Iir(b) => s.banks[b].iir &= !value,
                Register::Ier(b) => s.banks[b].ier = value,
            }
            s.edge()
        };
        self.deliver(edge);
        true
    }

    /// An engine signals `events`; `ring_imr` is its own mask register, with
    /// bits where the bank has them.
    pub(crate) fn signal(&self, engine: Engine, events: u16, ring_imr: u32) {
        let (bank, shift) = engine.irq_bank();
        let bits = (u32::from(events) << shift) & !ring_imr;
        if bits == 0 {
            return;
        }
        let edge = {
            let mut s = self.lock();
            let b = &mut s.banks[crate::bits::index(bank)];
            b.iir |= bits & !b.imr;
            s.edge()
        };
        self.deliver(edge);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;

    #[derive(Default)]
    struct Line(AtomicU32);

    impl InterruptLine for Line {
        fn raise(&self) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    const BCS_SWITCH: u32 = (irq::CONTEXT_SWITCH as u32) << 16;

    fn set_up() -> (Arc<Line>, Interrupts) {
        let line = Arc::new(Line::default());
        let i = Interrupts::new(line.clone());
        i.write(irq::GT_IMR0, 0);
        i.write(irq::GT_IER0, u32::MAX);
        (line, i)
    }

    #[test]
    fn a_message_is_an_edge_of_enable_and_pending() {
        let (line, i) = set_up();
        i.signal(Engine::Bcs, irq::CONTEXT_SWITCH, 0);
        assert_eq!(line.0.load(Relaxed), 0, "master is off");
        i.write(irq::MASTER, irq::MASTER_ENABLE);
        assert_eq!(line.0.load(Relaxed), 1);
        i.signal(Engine::Bcs, irq::USER, 0);
        assert_eq!(line.0.load(Relaxed), 1, "still pending");
        // The handler: off, read, acknowledge, on.
        i.write(irq::MASTER, 0);
        assert_eq!(i.read(irq::MASTER), Some(Engine::Bcs.master_bit()));
        let iir = i.read(irq::GT_IIR0).unwrap();
        assert_eq!(iir, BCS_SWITCH | 1 << 16);
        i.write(irq::GT_IIR0, iir);
        i.signal(Engine::Rcs, irq::USER, 0);
        assert_eq!(line.0.load(Relaxed), 1);
        i.write(irq::MASTER, irq::MASTER_ENABLE);
        assert_eq!(line.0.load(Relaxed), 2, "the re-enabling write sends");
    }

    #[test]
    fn three_masks_gate_an_event() {
        let (line, i) = set_up();
        i.write(irq::MASTER, irq::MASTER_ENABLE);
        i.signal(Engine::Bcs, irq::CONTEXT_SWITCH, BCS_SWITCH);
        assert_eq!(i.read(irq::GT_IIR0), Some(0), "the ring's own mask");
        i.write(irq::GT_IMR0, BCS_SWITCH);
        i.signal(Engine::Bcs, irq::CONTEXT_SWITCH, 0);
        assert_eq!(i.read(irq::GT_IIR0), Some(0), "the bank's mask");
        i.write(irq::GT_IMR0, 0);
        i.write(irq::GT_IER0, 0);
        i.signal(Engine::Bcs, irq::CONTEXT_SWITCH, 0);
        assert_eq!(i.read(irq::GT_IIR0), Some(BCS_SWITCH));
        assert_eq!(line.0.load(Relaxed), 0, "not enabled");
        i.write(irq::GT_IER0, BCS_SWITCH);
        assert_eq!(line.0.load(Relaxed), 1);
    }

    #[test]
    fn engines_have_their_banks() {
        let (_, i) = set_up();
        for n in 0..4 {
            i.write(irq::GT_IMR0 + n * 0x10, 0);
        }
        i.signal(Engine::Vcs, irq::ERROR, 0);
        i.signal(Engine::Vecs, irq::USER, 0);
        assert_eq!(i.read(irq::GT_IIR0 + 0x10), Some(8));
        assert_eq!(i.read(irq::GT_IIR0 + 0x30), Some(1));
        assert_eq!(i.read(0x4_4340), None);
    }
}
