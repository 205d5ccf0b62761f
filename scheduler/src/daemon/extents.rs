//! Naming frames to Xen.

use guest_memory::Gfn;
use log::debug;
use xen_glue::{DeviceModel, Extent};

/// The longest extent, frames. One that fails is named again frame by frame.
const MAX: u32 = 512;

/// Tells Xen that the frames `gfns`, sorted, were written.
///
/// Frames that the guest does not have cannot be named, and need not be.
///
/// # Errors
/// When Xen refuses all there is.
pub fn name(dm: &DeviceModel, gfns: &[Gfn]) -> anyhow::Result<()> {
    let Err(e) = dm.modified_memory(&extents(gfns, MAX)) else {
        return Ok(());
    };
    let frames = extents(gfns, 1);
    match dm.modified_memory(&frames) {
        Ok(()) => Ok(()),
        Err(each) if each.failed < frames.len() => {
            debug!("not all frames are the guest's: {each}");
            Ok(())
        }
        Err(_) => Err(e.into()),
    }
}

/// Runs of adjacent frames, none longer than `max`.
fn extents(gfns: &[Gfn], max: u32) -> Vec<Extent> {
    let mut runs: Vec<Extent> = Vec::new();
    for gfn in gfns {
        let adjacent = |run: &&mut Extent| {
            run.first_gfn.checked_add(run.frames.into()) == Some(gfn.0) && run.frames < max
        };
        match runs.last_mut().filter(adjacent) {
            Some(run) => run.frames += 1,
            None => runs.push(Extent {
                first_gfn: gfn.0,
                frames: 1,
            }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_frames_are_named_at_once() {
        let gfns = [3, 4, 5, 9, 10, 20].map(Gfn);
        let runs = |max| {
            let runs = extents(&gfns, max);
            runs.iter()
                .map(|r| (r.first_gfn, r.frames))
                .collect::<Vec<_>>()
        };
        assert_eq!(runs(512), [(3, 3), (9, 2), (20, 1)]);
        assert_eq!(runs(2), [(3, 2), (5, 1), (9, 2), (20, 1)]);
        assert_eq!(runs(1).len(), 6);
        assert_eq!(extents(&[], 4), []);
    }
}
