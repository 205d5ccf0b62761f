//! Taking the place of a device model that died.

use std::sync::Arc;

use vgpu_device::Kept;
use vgpu_device::kept::{self, Doing, First};
use vgpu_ring::{AreaWords, Consumer, Event, EventBell, Producer, Request};
use xen_glue::DeviceModel;

use crate::events::EventLoop;
use crate::server::AttachError;
use crate::table::MovingTable;
use crate::vcpu::VcpuLoop;

/// Goes on in the rings behind what the last one had decided to send and to
/// take; it may not have come to move the index.
pub(crate) fn resume(
    requests: &mut Producer<Request, AreaWords, EventBell>,
    events: &mut Consumer<Event, AreaWords, EventBell>,
    doing: Doing,
) {
    // Both count messages of the same ring, so the low halves tell how far
    // they are apart.
    let sent = requests.sent();
    let [a, b, c, d, ..] = sent.to_le_bytes();
    let ahead = doing.in_ring.wrapping_sub(u32::from_le_bytes([a, b, c, d]));
    requests.send_up_to(sent.wrapping_add(ahead.into()));
    events.take_up_to(doing.events_taken);
}

/// The guest's page table that moves with BAR0: `gfn` is where vgpud has it, if
/// it is RAM. One that was taken out while the guest was saved comes back
/// later.
pub(crate) fn table(
    dm: &DeviceModel,
    gfn: Option<u64>,
    left: bool,
    kept: &Arc<dyn Kept>,
) -> Option<MovingTable> {
    let former = if left {
        MovingTable::left(dm.clone(), Arc::clone(kept))
    } else {
        None
    };
    former.or_else(|| Some(MovingTable::new(dm.clone(), gfn?, Arc::clone(kept))))
}

/// Does first again what others may have seen in part.
pub(crate) fn do_again(
    first: First,
    vcpus: &mut [VcpuLoop],
    events: &mut EventLoop,
    kept: &dyn Kept,
) -> Result<(), AttachError> {
    match first {
        First::Nothing => return Ok(()),
        First::Vcpu(vcpu) => {
            let vcpus = vcpus.iter_mut();
            for one in vcpus.filter(|v| v.ioreqs.vcpu() == vcpu) {
                let done = one.take_over();
                done.map_err(|source| AttachError::Vcpu { vcpu, source })?;
            }
        }
        First::Event => {
            events.next()?;
        }
    }
    kept::done_again(kept);
    Ok(())
}
