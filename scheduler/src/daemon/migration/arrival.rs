//! The last parts of a downtime, at the target.

use std::time::Duration;

use vgpu_control::{Cause, Phase};
use vgpu_migrate::stream::Name;

use super::record::{Record, line, ms};
use super::saved::Saved;
use super::times::Times;

/// The vGPU of a guest was made of `saved` in `took`.
pub fn loaded(record: &Record, saved: &Saved, took: Duration) {
    record.enter(Phase::Restored);
    let mut migration = record.migration();
    // Optional, so what is wrong with it is no reason to refuse the guest.
    let times = saved.body(super::TIMES).map(Times::parse);
    match times {
        Some(Ok(times)) => {
            let transfer = times.since_saved().saturating_sub(took);
            migration.downtime = times.downtime().to_vec();
            migration.downtime.push((Cause::Transfer, ms(transfer)));
        }
        Some(Err(e)) => log::warn!("domain {}: {e:#}", record.domid()),
        None => {}
    }
    migration.downtime.push((Cause::Load, ms(took)));
    let bytes = saved.body(Name::DEVICE).map_or(0, <[u8]>::len);
    log::info!(
        "domain {}: vGPU made of saved state in {:.1} ms, {bytes} bytes of device",
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
