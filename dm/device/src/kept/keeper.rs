//! Commits.

use vgpu_ring::{Message, SLOT_QWORDS};

use super::{Answer, Doer, FORMAT, answer_at, note_answer, place, shared, with_state};
use crate::core::Core;
use crate::pipe::Running;
use crate::seams::Kept;

/// What is to be kept, and what is.
pub(crate) struct Keeper {
    /// The parts' words as they are kept; none when nothing is.
    words: Vec<u64>,
    /// What differs: place and value.
    log: Vec<(usize, u64)>,
    /// All is there, so what changes must change at once.
    whole: bool,
    partial: bool,
    /// For whom the present transaction is, and whether that is noted.
    doer: Doer,
    noted: bool,
}

impl Keeper {
    pub(crate) fn new(kept: &dyn Kept) -> Self {
        let words = if kept.keeps() {
            vec![0; place::PARTS_END - place::PARTS]
        } else {
            Vec::new()
        };
        Self {
            words,
            log: Vec::new(),
            whole: false,
            partial: false,
            doer: Doer::Nobody,
            noted: false,
        }
    }

    /// One that goes on with what a former device left.
    pub(super) fn of(kept: &dyn Kept) -> Self {
        let mut this = Self::new(kept);
        for (word, at) in this.words.iter_mut().zip(place::PARTS..) {
            *word = kept.load(at);
        }
        this.whole = true;
        this
    }

    fn keeps(&self) -> bool {
        !self.words.is_empty()
    }

    /// A transaction begins.
    pub(crate) fn begin(&mut self, doer: Doer) {
        self.doer = doer;
    }

    /// Something is about to be done that others can see before it is
    /// committed.
    pub(crate) fn note_doing(&mut self, kept: &dyn Kept) {
        if self.keeps() && !self.noted && self.doer != Doer::Nobody {
            self.noted = true;
            kept.store(place::DOING, self.doer.word());
        }
    }

    /// Puts a word of the parts, if it differs.
    fn put(words: &mut [u64], log: &mut Vec<(usize, u64)>, at: usize, value: u64) {
        let word = at.checked_sub(place::PARTS).and_then(|n| words.get_mut(n));
        if let Some(word) = word
            && *word != value
        {
            *word = value;
            log.push((at, value));
        }
    }

    /// Stores what the log has.
    fn store(&mut self, kept: &dyn Kept) {
        let places = || {
            for &(at, value) in &self.log {
                kept.store(at, value);
            }
        };
        // One store is all or nothing as it is. What has no room in the log
        // is not whole for a moment.
        if !self.whole || self.log.len() <= 1 {
            places();
        } else if self.log.len() <= place::MOST_LOGGED {
            for (&(at, value), n) in self.log.iter().zip((place::LOG..).step_by(2)) {
                kept.store(n, u64::try_from(at).unwrap_or(u64::MAX));
                kept.store(n + 1, value);
            }
            let entries = u64::try_from(self.log.len()).unwrap_or(0);
            kept.store(place::LOG_LEN, entries);
            places();
            kept.store(place::LOG_LEN, 0);
        } else {
            kept.store(place::PARTIAL, 1);
            places();
            kept.store(place::PARTIAL, u64::from(self.partial));
        }
        self.log.clear();
    }
}

impl Core {
    /// Keeps the whole device, which is new here.
    pub(crate) fn keep_all(&mut self, kept: &dyn Kept) {
        if !self.keeper.keeps() {
            return;
        }
        kept.store(place::FORMAT, 0);
        kept.store(place::LOG_LEN, 0);
        self.regs.keep_all(&mut |at, value| {
            if (place::PARTS..place::PARTS_END).contains(&at) {
                Keeper::put(&mut self.keeper.words, &mut self.keeper.log, at, value);
            } else {
                kept.store(at, value);
            }
        });
        self.commit(kept, Doer::Nobody, None);
        self.keeper.whole = true;
        kept.store(place::FORMAT, FORMAT);
    }

    /// Makes what `doer` did count.
    pub(crate) fn commit(&mut self, kept: &dyn Kept, doer: Doer, answer: Option<Answer>) {
        let Self {
            keeper,
            config,
            pci,
            regs,
            irqs,
            engines,
            gmbus,
            pipes,
            backlog,
            ..
        } = self;
        if !keeper.keeps() {
            return;
        }
        let Keeper { words, log, .. } = keeper;
        regs.keep_changed(&mut |at, value| {
            if at < place::REGISTERS {
                Keeper::put(words, log, at, value);
            } else {
                log.push((at, value));
            }
        });
        let mut put = |at, value| Keeper::put(words, log, at, value);
        put(place::GGTT_MIB, config.ggtt_mib.into());
        irqs.keep(&mut put);
        pci.keep(&mut put);
        gmbus.keep(&mut put);
        engines.keep(&mut put);
        for (pipe, at) in pipes.iter().zip((place::PIPES..).step_by(place::PIPE)) {
            Running::keep(pipe.as_ref(), at, &mut put);
        }
        if let Doer::Event(taken) = doer {
            put(place::EVENTS_TAKEN, taken);
        }
        // More than there is room for is a guest that floods a vgpud that
        // does not listen; until that has listened, it is not survived.
        let partial = backlog.len() > place::MOST_WAITING;
        if !partial {
            let (requests, end) = backlog.unkept();
            for (number, request) in requests {
                // Below 1024.
                let most = u64::try_from(place::MOST_WAITING).unwrap_or(1);
                let slot = usize::try_from(number % most).unwrap_or(0);
                let at = place::WAITING + slot * SLOT_QWORDS;
                for (at, word) in (at..).zip(request.encode()) {
                    put(at, word);
                }
            }
            put(place::WAITING_END, end);
        }
        if partial && !keeper.partial {
            kept.store(place::PARTIAL, 1);
        }
        let healed = !partial && keeper.partial;
        keeper.partial = partial;
        match (doer, answer) {
            (Doer::Vcpu(vcpu), Some(answer)) if keeper.log.is_empty() && !keeper.noted => {
                note_answer(kept, vcpu, answer);
            }
            (Doer::Vcpu(vcpu), Some(answer)) => {
                if let Some(at) = answer_at(vcpu) {
                    let state = if answer.data.is_some() {
                        shared::READ
                    } else {
                        shared::DONE
                    };
                    let word = with_state(kept.load(at), state);
                    keeper.log.extend(answer.data.map(|data| (at + 1, data)));
                    keeper.log.push((at, word));
                }
            }
            _ => {}
        }
        if std::mem::take(&mut keeper.noted) {
            keeper.log.push((place::DOING, 0));
        }
        keeper.store(kept);
        if healed {
            kept.store(place::PARTIAL, 0);
        }
        keeper.doer = Doer::Nobody;
    }
}
