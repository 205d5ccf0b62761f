//! Which PCI slots QEMU's own devices take.

use crate::SpecError;

/// The last slot of a PCI bus.
pub const MAX_SLOT: u8 = 31;

/// A slot that is taken, and by what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotUse {
    /// The slot.
    pub slot: u8,
    /// The device in it.
    pub device: String,
}

/// The slots of bus 0. QEMU gives a device its `addr=`, or else the lowest
/// free slot at the moment the device is made, in the order of its command
/// line (QEMU `hw/pci/pci.c:do_pci_register_device`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slots(Vec<SlotUse>);

impl Default for Slots {
    /// Slots 0 and 1 hold the host bridge and the PIIX3 of every xenfv and pc
    /// machine.
    fn default() -> Self {
        Self(vec![
            SlotUse {
                slot: 0,
                device: "host bridge".into(),
            },
            SlotUse {
                slot: 1,
                device: "PIIX3".into(),
            },
        ])
    }
}

impl Slots {
    /// Places `device` in the lowest free slot.
    pub fn next(&mut self, device: &str) {
        if let Some(slot) = (0..=MAX_SLOT).find(|&s| self.holder(s).is_none()) {
            self.at(slot, device);
        }
    }

    /// Places `device` in `slot`.
    pub fn at(&mut self, slot: u8, device: &str) {
        self.0.push(SlotUse {
            slot,
            device: device.to_owned(),
        });
    }

    /// Places the devices of a QEMU command line: what `-machine xenfv` and
    /// `-device` make. Devices that are not on the PCI bus, and those in
    /// another function of a slot, take none.
    pub fn add_args<'a>(&mut self, args: impl IntoIterator<Item = &'a str>) {
        let args: Vec<&str> = args.into_iter().collect();
        let options = || args.iter().zip(args.iter().skip(1));
        // The machine's own device is there before any other, wherever the
        // option stands.
        for (_, machine) in options().filter(|(o, _)| ["-machine", "-M"].contains(o)) {
            if machine.split(',').next() == Some("xenfv") {
                self.next("xen-platform");
            }
        }
        for (option, value) in options() {
            match *option {
                "-device" => self.add_device(value),
                "-vga" if *value != "none" => self.next("VGA"),
                _ => {}
            }
        }
    }

    fn add_device(&mut self, device: &str) {
        let name = device.split(',').next().unwrap_or_default();
        let option = |key| device.split(',').find_map(|o| o.strip_prefix(key));
        if let Some(addr) = option("addr=") {
            // SLOT or SLOT.FUNCTION in hexadecimal, with or without 0x
            // (QEMU hw/core/qdev-properties-system.c:set_pci_devfn).
            let slot = addr.split('.').next().unwrap_or_default();
            let slot = slot.strip_prefix("0x").unwrap_or(slot);
            if let Ok(slot) = u8::from_str_radix(slot, 16) {
                self.at(slot, name);
            }
            return;
        }
        // bus=pci.0 is ours; any other bus is behind a bridge or not PCI.
        let elsewhere = option("bus=").is_some_and(|b| b != "pci.0");
        if !elsewhere && is_pci(name) {
            self.next(name);
        }
    }

    /// What sits in `slot`.
    #[must_use]
    pub fn holder(&self, slot: u8) -> Option<&str> {
        let used = self.0.iter().find(|u| u.slot == slot)?;
        Some(&used.device)
    }

    /// Whether the vGPU may take `slot`.
    ///
    /// # Errors
    /// [`SpecError`] naming the device in it and the free slots.
    pub fn check(&self, slot: u8) -> Result<(), SpecError> {
        let Some(device) = self.holder(slot) else {
            return Ok(());
        };
        let free: Vec<String> = (2..=MAX_SLOT)
            .filter(|&s| self.holder(s).is_none())
            .map(|s| s.to_string())
            .collect();
        Err(SpecError::new(
            "slot",
            format!("{slot}, taken by {device}"),
            free.join(", "),
        ))
    }
}

/// Whether a QEMU device goes on the PCI bus, as far as its name tells.
fn is_pci(name: &str) -> bool {
    const PREFIXES: [&str; 5] = ["e1000", "ich9-", "lsi", "megasas", "vmware-svga"];
    const NAMES: [&str; 23] = [
        "AC97",
        "ES1370",
        "VGA",
        "ahci",
        "cirrus-vga",
        "edu",
        "i82801b11-bridge",
        "intel-hda",
        "ne2k_pci",
        "nvme",
        "pci-bridge",
        "pci-ohci",
        "pci-serial",
        "pci-testdev",
        "pcnet",
        "piix3-usb-uhci",
        "pvscsi",
        "qxl",
        "qxl-vga",
        "rtl8139",
        "secondary-vga",
        "tulip",
        "vmxnet3",
    ];
    NAMES.contains(&name)
        || PREFIXES.iter().any(|p| name.starts_with(p))
        || name.starts_with("virtio-") && !name.ends_with("-device")
        || name.ends_with("-ehci")
        || name.ends_with("-xhci")
        || name.starts_with("xen-p")
}
