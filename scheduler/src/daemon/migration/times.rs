//! What the source tells the target of the migration so far.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use vgpu_control::{Cause, Migration, Pages};

/// The most parts of a downtime: a source tells of five at most.
const MOST_PARTS: usize = 16;

/// The body of the section `times`, as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// When the guest was found standing still, in nanoseconds since 1970.
    stopped_ns: u64,
    /// When the state was written.
    saved_ns: u64,
    /// What the guest had waited for by then, milliseconds.
    downtime: Vec<(Cause, f64)>,
    /// Looks at the pages while the guest ran.
    rounds: u64,
    /// Pages while it ran.
    copying: Pages,
    /// Pages once it stood still.
    at_stop: Pages,
    /// Bytes a second that were sent.
    send_rate: Option<u64>,
}

impl Times {
    /// Of a guest that stands still since `stopped`, saved now.
    pub fn new(stopped: SystemTime, migration: &Migration) -> Self {
        Self {
            stopped_ns: nanos(stopped),
            saved_ns: nanos(SystemTime::now()),
            downtime: migration.downtime.clone(),
            rounds: migration.rounds,
            copying: migration.copying,
            at_stop: migration.at_stop,
            send_rate: migration.send_rate,
        }
    }

    /// Tells the target's record what there was at the source.
    pub fn tell(&self, migration: &mut Migration) {
        migration.downtime.clone_from(&self.downtime);
        migration.rounds = self.rounds;
        migration.copying = self.copying;
        migration.at_stop = self.at_stop;
        migration.send_rate = self.send_rate;
    }

    /// As the section has it.
    ///
    /// # Errors
    /// When a time is no number.
    pub fn to_bytes(&self) -> anyhow::Result<Vec<u8>> {
        Ok(serde_json::to_vec(self)?)
    }

    /// From the section.
    ///
    /// # Errors
    /// When it is not what it has to be.
    pub fn parse(bytes: &[u8]) -> anyhow::Result<Self> {
        let times: Self = serde_json::from_slice(bytes).context("section times")?;
        // Each is a part of a log line at the target.
        let parts = times.downtime.len();
        ensure!(
            parts <= MOST_PARTS,
            "section times: downtime has {parts} parts, allowed: at most {MOST_PARTS}"
        );
        Ok(times)
    }

    /// How long ago it was saved. Hosts whose clocks disagree may find that it
    /// is yet to be.
    pub fn since_saved(&self) -> Duration {
        let now = nanos(SystemTime::now());
        Duration::from_nanos(now.saturating_sub(self.saved_ns))
    }
}

fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_downtime_has_few_parts() {
        let mut migration = Migration {
            downtime: vec![(Cause::Drain, 1.0); MOST_PARTS],
            ..Migration::default()
        };
        let body = |m: &Migration| Times::new(UNIX_EPOCH, m).to_bytes().unwrap();
        let times = Times::parse(&body(&migration)).unwrap();
        assert_eq!(times.downtime, migration.downtime);
        migration.downtime.push((Cause::Save, 1.0));
        assert_eq!(
            Times::parse(&body(&migration)).unwrap_err().to_string(),
            "section times: downtime has 17 parts, allowed: at most 16"
        );
    }
}
