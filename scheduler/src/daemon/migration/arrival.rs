//! The last parts of a downtime, at the target.

use std::time::Duration;

use vgpu_control::{Cause, Phase};

use super::record::{Record, line, ms};
use super::times::Times;

/// The vGPU of a guest was made of saved state in `took`; `times` is what the
/// source told.
pub fn loaded(record: &Record, times: Option<&Times>, took: Duration) {
    record.enter(Phase::Restored);
    let mut migration = record.migration();
    if let Some(times) = times {
        let transfer = times.since_saved().saturating_sub(took);
        times.tell(&mut migration);
        migration.downtime.push((Cause::Transfer, ms(transfer)));
    }
    migration.downtime.push((Cause::Load, ms(took)));
    log::info!(
        "domain {}: vGPU made of saved state in {:.1} ms",
        record.domid(),
        ms(took)
    );
}

/// The toolstack lets the guest run.
pub fn resumed(record: &Record) {
    let start = record.in_phase();
    record.enter(Phase::Arrived);
    let mut migration = record.migration();
    migration.downtime.push((Cause::Start, ms(start)));
    log::info!(
        "domain {}: restored; stopped for {}",
        record.domid(),
        line(&migration.downtime)
    );
}

/// Its driver gives the GPU work, for the first time here.
pub fn submitted(record: &Record) {
    let since = record.in_phase();
    let mut migration = record.migration();
    // Nothing of that is known of a guest that was started here.
    if migration.phase != Phase::Arrived {
        return;
    }
    migration.downtime.push((Cause::FirstSubmission, ms(since)));
    let json = serde_json::to_string(&*migration).unwrap_or_default();
    log::info!(
        "domain {}: works again; stopped for {}; {json}",
        record.domid(),
        line(&migration.downtime)
    );
}
