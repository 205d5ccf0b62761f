//! What contexts did wrong, for whoever administers the guest.

use std::collections::VecDeque;

use crate::audit::AuditError;
use crate::workload::PrepareError;

/// Complaints kept of a kind.
const KEPT: usize = 16;

/// Something wrong with a context.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Complaint {
    /// The engine.
    pub engine: &'static str,
    /// The context: the graphics address of its image.
    pub context: String,
    /// The command concerned, if one is.
    pub command: Option<String>,
    /// Where it stands.
    pub place: Option<String>,
    /// What is wrong.
    pub reason: String,
    /// How often that was seen.
    pub times: u64,
}

impl Complaint {
    /// `error` kept `context` from running, or would have.
    #[must_use]
    pub fn new(engine: &'static str, context: u32, error: &PrepareError) -> Self {
        let (command, place, reason) = match error {
            PrepareError::Audit(AuditError::Refused(r)) => (
                Some(format!("{} ({:#010x})", r.command, r.header)),
                Some(r.at.to_string()),
                r.rule.to_string(),
            ),
            PrepareError::Audit(AuditError::Unknown { header, at }) => (
                Some(format!("{header:#010x}")),
                Some(at.to_string()),
                "no command of this engine".into(),
            ),
            PrepareError::Scan(f) => (
                Some(format!("{} ({:#010x})", f.command, f.header)),
                Some(format!("the context's address {:#x}", f.address)),
                f.fault.to_string(),
            ),
            other => (None, None, other.to_string()),
        };
        Self {
            engine,
            context: format!("{context:#010x}"),
            command,
            place,
            reason,
            times: 1,
        }
    }
}

impl std::fmt::Display for Complaint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, context {}: ", self.engine, self.context)?;
        if let Some(command) = &self.command {
            write!(f, "{command} ")?;
        }
        if let Some(place) = &self.place {
            write!(f, "at {place}: ")?;
        }
        f.write_str(&self.reason)
    }
}

/// The last complaints of a kind, each once.
#[derive(Default)]
pub struct Complaints(VecDeque<Complaint>);

impl Complaints {
    /// Adds one, or counts it when it is there.
    pub fn add(&mut self, complaint: Complaint) {
        let Complaint {
            engine,
            context,
            command,
            place,
            reason,
            times: _,
        } = &complaint;
        let same = |old: &&mut Complaint| {
            old.engine == *engine
                && old.context == *context
                && old.command == *command
                && old.place == *place
                && old.reason == *reason
        };
        if let Some(old) = self.0.iter_mut().find(same) {
            old.times += 1;
            return;
        }
        if self.0.len() >= KEPT {
            self.0.pop_front();
        }
        self.0.push_back(complaint);
    }

    /// All of them, oldest first.
    #[must_use]
    pub fn list(&self) -> Vec<Complaint> {
        self.0.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(context: u32) -> Complaint {
        Complaint::new("rcs0", context, &PrepareError::Descriptor(7))
    }

    #[test]
    fn the_last_ones_are_kept_each_once() {
        let mut all = Complaints::default();
        for context in 0..20 {
            all.add(complaint(context));
            all.add(complaint(context));
        }
        let list = all.list();
        assert_eq!(list.len(), KEPT);
        assert!(list.iter().all(|c| c.times == 2));
        assert_eq!(list[0].context, "0x00000004");
        let line = list[0].to_string();
        assert!(
            line.starts_with("rcs0, context 0x00000004: context descriptor 0x7"),
            "{line}"
        );
    }
}
