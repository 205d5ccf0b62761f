//! A device as it was saved when its section was of version 1.

use serde_json::Value;
use vgpu_device::{Bar, Device, DeviceV1};

use crate::rig::Rig;

/// That of a guest with i915 at work, saved by xl on Xen 4.17.
const I915: &str = include_str!("../golden/i915-bdw-1.json");

#[test]
fn a_device_of_version_1_is_restored_and_saved_the_same() {
    let saved: DeviceV1 = serde_json::from_str(I915).unwrap();
    let (seams, world, ..) = Rig::seams();
    let device = Device::restore(&saved, seams).unwrap();
    assert_eq!(device.save(), saved);
    // The text, too: a field that is left out or called otherwise would not
    // be found by those who wrote it so.
    let again: Value = serde_json::to_value(device.save()).unwrap();
    assert_eq!(again, serde_json::from_str::<Value>(I915).unwrap());
    // The driver has put it into D3hot and wakes it, where its firmware had
    // put its windows.
    assert_eq!(*world.windows.lock().unwrap(), []);
    device.config_write(0xd4, 2, 0);
    assert_eq!(
        *world.windows.lock().unwrap(),
        [
            (Bar::Registers, 0xf100_0000, 16 << 20),
            (Bar::Aperture, 0xe000_0000, 256 << 20)
        ]
    );
}
