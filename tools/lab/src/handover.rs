//! A guest's kernel put straight into its memory.
//!
//! With `kernel=` in an xl config, QEMU's boot ROM reads the kernel through a
//! byte-wide port, eight million times; emulated, that is a minute for each
//! guest. So QEMU's `loader` device writes kernel, RAM disk and boot
//! parameters into guest memory instead, and `kernel=` names a kernel of three
//! sectors that jumps there. What runs is the same, unchanged kernel, entered
//! by its 32-bit boot protocol (Linux
//! `Documentation/x86/boot.rst`, "32-bit Boot Protocol").

use anyhow::{Context as _, ensure};

/// Where the kernel's protected-mode part goes. It may be anywhere aligned to
/// 2 MiB, with `init_size` bytes (64 MiB for Debian's 6.1) of room.
const KERNEL_AT: u32 = 64 << 20;
/// Where boot parameters, command line, descriptor table and entry code go.
const PARAMETERS_AT: u32 = 144 << 20;
/// Where the RAM disk goes.
const INITRD_AT: u32 = 160 << 20;

/// The least memory of a guest, MiB.
pub const LEAST_MIB: u32 = 512;

/// Where RAM below 4 GiB ends at the latest: the hole for devices that libxl
/// leaves by default (Xen `public/hvm/e820.h:HVM_BELOW_4G_RAM_END`).
const LOW_RAM_END: u64 = 0xf000_0000;

const PAGE: u32 = 4096;
const COMMAND_LINE: u32 = PAGE;
const DESCRIPTORS: u32 = 2 * PAGE;
const ENTRY: u32 = DESCRIPTORS + 64;

/// Selectors that the boot protocol asks for: flat 4 GiB code and data.
const BOOT_CS: u16 = 0x10;
const BOOT_DS: u16 = 0x18;

/// Offsets in the first sectors of a kernel, and in the boot parameters.
mod field {
    pub const E820_ENTRIES: usize = 0x1e8;
    pub const SETUP_HEADER: usize = 0x1f1;
    pub const SETUP_SECTORS: usize = 0x1f1;
    pub const VIDEO_MODE: usize = 0x1fa;
    pub const BOOT_FLAG: usize = 0x1fe;
    pub const JUMP: usize = 0x200;
    pub const MAGIC: usize = 0x202;
    pub const VERSION: usize = 0x206;
    pub const LOADER_TYPE: usize = 0x210;
    pub const LOAD_FLAGS: usize = 0x211;
    pub const CODE32_START: usize = 0x214;
    pub const RAMDISK: usize = 0x218;
    pub const RAMDISK_SIZE: usize = 0x21c;
    pub const COMMAND_LINE: usize = 0x228;
    pub const INIT_SIZE: usize = 0x260;
    pub const E820_TABLE: usize = 0x2d0;
}

/// The memory map that hvmloader and SeaBIOS of Xen 4.17 give a guest of `mib`
/// MiB: first byte, end, type (1 RAM, 2 reserved, 4 ACPI NVS).
fn memory_map(mib: u32) -> Vec<(u64, u64, u32)> {
    const FOUR_GIB: u64 = 1 << 32;
    let bytes = u64::from(mib) << 20;
    let low = bytes.min(LOW_RAM_END);
    let mut map = vec![
        (0, 0x9_fc00, 1),
        (0x9_fc00, 0xa_0000, 2),
        (0xf_0000, 0x10_0000, 2),
        (0x10_0000, low - 0x1000, 1),
        (low - 0x1000, low, 2),
        (0xfc00_0000, 0xfc00_b000, 4),
        (0xfc00_b000, FOUR_GIB, 2),
    ];
    if bytes > low {
        map.push((FOUR_GIB, FOUR_GIB + (bytes - low), 1));
    }
    map
}

/// What goes where.
#[derive(Debug)]
pub struct Handover {
    /// The file for `kernel=`.
    pub stub: Vec<u8>,
    /// The protected-mode part of the real kernel.
    pub kernel: Vec<u8>,
    /// Boot parameters and all else of ours.
    pub parameters: Vec<u8>,
}

/// Prepares `kernel` (a bzImage) to boot with a RAM disk of `initrd` bytes in a
/// guest of `mib` MiB.
pub fn prepare(
    kernel: &[u8],
    initrd: usize,
    command_line: &str,
    mib: u32,
) -> anyhow::Result<Handover> {
    ensure!(
        mib >= LEAST_MIB,
        "a guest of {mib} MiB has no room; at least {LEAST_MIB} are needed"
    );
    ensure!(
        kernel.get(field::MAGIC..field::MAGIC + 4) == Some(b"HdrS"),
        "the kernel is no bzImage"
    );
    let sectors = usize::from(
        *kernel
            .get(field::SETUP_SECTORS)
            .context("no setup header")?,
    );
    let protected = kernel
        .get((sectors + 1) * 512..)
        .context("the kernel ends within its setup part")?;
    let room = PARAMETERS_AT - KERNEL_AT;
    let init_size = read_u32(kernel, field::INIT_SIZE).context("no setup header")?;
    ensure!(
        init_size <= room,
        "the kernel needs {init_size:#x} bytes, {room:#x} are reserved"
    );
    let initrd_size = u32::try_from(initrd).context("the RAM disk is over 4 GiB")?;
    ensure!(
        INITRD_AT
            .checked_add(initrd_size)
            .is_some_and(|end| end <= (LEAST_MIB - 64) << 20),
        "the RAM disk of {initrd} bytes does not fit the guest"
    );
    ensure!(
        command_line.len() < 2048,
        "the command line is over 2047 bytes"
    );

    let mut blob = Blob(vec![0; usize::try_from(3 * PAGE)?]);
    boot_parameters(&mut blob, kernel, initrd_size, &memory_map(mib))?;
    blob.put(usize::try_from(COMMAND_LINE)?, command_line.as_bytes())?;
    for (selector, descriptor) in [
        (BOOT_CS, 0x00cf_9a00_0000_ffff_u64),
        (BOOT_DS, 0x00cf_9200_0000_ffff),
    ] {
        let at = usize::try_from(DESCRIPTORS)? + usize::from(selector);
        blob.put(at, &descriptor.to_le_bytes())?;
    }
    blob.put(usize::try_from(ENTRY)?, &entry_code())?;
    Ok(Handover {
        stub: stub()?,
        kernel: protected.to_vec(),
        parameters: blob.0,
    })
}

/// QEMU's arguments that load the parts from `folder`, in xl's list syntax.
pub fn device_model_arguments(folder: &str) -> String {
    [
        ("kernel", KERNEL_AT),
        ("parameters", PARAMETERS_AT),
        ("initrd", INITRD_AT),
    ]
    .map(|(name, at)| {
        format!("\"-device\", \"loader,file={folder}/{name},addr={at:#x},force-raw=on\"")
    })
    .join(", ")
}

fn boot_parameters(
    blob: &mut Blob,
    kernel: &[u8],
    initrd: u32,
    memory_map: &[(u64, u64, u32)],
) -> anyhow::Result<()> {
    // The header ends where its own jump instruction goes.
    let length = usize::from(*kernel.get(field::JUMP + 1).context("no setup header")?);
    let header = kernel
        .get(field::SETUP_HEADER..field::MAGIC + length)
        .context("the setup header is cut")?;
    blob.put(field::SETUP_HEADER, header)?;
    // "Undefined loader" and "no mode to set".
    blob.put(field::LOADER_TYPE, &[0xff])?;
    blob.put(field::VIDEO_MODE, &0xffff_u16.to_le_bytes())?;
    blob.put(field::CODE32_START, &KERNEL_AT.to_le_bytes())?;
    blob.put(field::RAMDISK, &INITRD_AT.to_le_bytes())?;
    blob.put(field::RAMDISK_SIZE, &initrd.to_le_bytes())?;
    blob.put(
        field::COMMAND_LINE,
        &(PARAMETERS_AT + COMMAND_LINE).to_le_bytes(),
    )?;
    blob.put(field::E820_ENTRIES, &[u8::try_from(memory_map.len())?])?;
    for (index, (start, end, kind)) in memory_map.iter().enumerate() {
        let at = field::E820_TABLE + index * 20;
        blob.put(at, &start.to_le_bytes())?;
        blob.put(at + 8, &(end - start).to_le_bytes())?;
        blob.put(at + 16, &kind.to_le_bytes())?;
    }
    Ok(())
}

/// 32-bit code, at [`ENTRY`]: flat segments, then the kernel with the boot
/// parameters in ESI.
fn entry_code() -> Vec<u8> {
    let mut code = vec![0xb8];
    code.extend(u32::from(BOOT_DS).to_le_bytes()); // mov eax, BOOT_DS
    code.extend([0x8e, 0xd8]); // mov ds, ax
    code.extend([0x8e, 0xc0]); // mov es, ax
    code.extend([0x8e, 0xd0]); // mov ss, ax
    code.extend([0x8e, 0xe0]); // mov fs, ax
    code.extend([0x8e, 0xe8]); // mov gs, ax
    code.extend([0x31, 0xed]); // xor ebp, ebp
    code.extend([0x31, 0xff]); // xor edi, edi
    code.extend([0x31, 0xdb]); // xor ebx, ebx
    code.push(0xbe);
    code.extend(PARAMETERS_AT.to_le_bytes()); // mov esi, parameters
    code.push(0xb8);
    code.extend(KERNEL_AT.to_le_bytes()); // mov eax, kernel
    code.extend([0xff, 0xe0]); // jmp eax
    code
}

/// A "kernel" that QEMU's boot ROM accepts: boot sector, one setup sector, one
/// sector to load high. The ROM enters the setup sector in real mode.
fn stub() -> anyhow::Result<Vec<u8>> {
    const CODE: usize = 0x280;
    const TABLE: usize = 0x2c0;
    let mut file = Blob(vec![0; 3 * 512]);
    file.put(field::SETUP_SECTORS, &[1])?;
    file.put(field::BOOT_FLAG, &0xaa55_u16.to_le_bytes())?;
    file.put(field::JUMP, &[0xeb, 0x7e])?; // jmp CODE
    file.put(field::MAGIC, b"HdrS")?;
    file.put(field::VERSION, &0x0200_u16.to_le_bytes())?;
    file.put(field::LOAD_FLAGS, &[1])?; // loaded high

    // Offsets within the setup segment, which starts at the second sector.
    let table = u16::try_from(TABLE - 512)?;
    let mut code = vec![0xfa]; // cli
    code.extend([0x66, 0x2e, 0x0f, 0x01, 0x16]);
    code.extend(table.to_le_bytes()); // lgdtd cs:[table]
    code.extend([0x0f, 0x20, 0xc0]); // mov eax, cr0
    code.extend([0x0c, 0x01]); // or al, 1
    code.extend([0x0f, 0x22, 0xc0]); // mov cr0, eax
    code.extend([0x66, 0xea]);
    code.extend((PARAMETERS_AT + ENTRY).to_le_bytes());
    code.extend(BOOT_CS.to_le_bytes()); // jmp far BOOT_CS:entry
    file.put(CODE, &code)?;
    let limit = BOOT_DS + 7;
    file.put(TABLE, &limit.to_le_bytes())?;
    file.put(TABLE + 2, &(PARAMETERS_AT + DESCRIPTORS).to_le_bytes())?;
    Ok(file.0)
}

struct Blob(Vec<u8>);

impl Blob {
    fn put(&mut self, at: usize, bytes: &[u8]) -> anyhow::Result<()> {
        self.0
            .get_mut(at..at + bytes.len())
            .with_context(|| format!("{} bytes at {at:#x} do not fit", bytes.len()))?
            .copy_from_slice(bytes);
        Ok(())
    }
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    let four: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(u32::from_le_bytes(four))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(init_size: u32) -> Vec<u8> {
        let mut file = Blob(vec![0; 5 * 512]);
        file.put(field::SETUP_SECTORS, &[2]).unwrap();
        file.put(field::JUMP, &[0xeb, 0x6a]).unwrap();
        file.put(field::MAGIC, b"HdrS").unwrap();
        file.put(field::INIT_SIZE, &init_size.to_le_bytes())
            .unwrap();
        file.put(3 * 512, b"protected").unwrap();
        file.0
    }

    #[test]
    fn the_protected_mode_part_and_its_parameters_are_split_off() {
        let handover = prepare(&kernel(0x10_0000), 0x1234, "console=hvc0", 512).unwrap();
        assert!(handover.kernel.starts_with(b"protected"));
        let p = &handover.parameters;
        assert_eq!(read_u32(p, field::CODE32_START), Some(KERNEL_AT));
        assert_eq!(read_u32(p, field::RAMDISK), Some(INITRD_AT));
        assert_eq!(read_u32(p, field::RAMDISK_SIZE), Some(0x1234));
        assert_eq!(read_u32(p, field::COMMAND_LINE), Some(PARAMETERS_AT + 4096));
        assert_eq!(&p[4096..4109], b"console=hvc0\0");
        assert_eq!(p[field::E820_ENTRIES], 7);
        assert_eq!(&p[field::MAGIC..field::MAGIC + 4], b"HdrS");
    }

    #[test]
    fn the_stub_is_a_kernel_to_qemu_and_jumps_to_the_entry() {
        let stub = stub().unwrap();
        assert_eq!(stub.len(), 3 * 512);
        assert_eq!(&stub[0x202..0x206], b"HdrS");
        // The short jump at 0x200 leads to cli.
        assert_eq!(stub[0x202 + 0x7e], 0xfa);
        let far = (PARAMETERS_AT + ENTRY).to_le_bytes();
        assert!(
            stub.windows(6)
                .any(|w| w[..4] == far && w[4..] == [0x10, 0])
        );
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let error = |kernel: &[u8], initrd, line: &str| {
            prepare(kernel, initrd, line, 512).unwrap_err().to_string()
        };
        assert_eq!(error(b"MZ", 0, ""), "the kernel is no bzImage");
        assert!(error(&kernel(u32::MAX), 0, "").starts_with("the kernel needs 0xffffffff"));
        assert!(error(&kernel(0), 400 << 20, "").contains("does not fit the guest"));
        assert!(error(&kernel(0), 0, &"x".repeat(2048)).contains("command line"));
    }

    #[test]
    fn the_memory_map_is_ordered_and_for_the_guests_size() {
        for mib in [512, 3840, 3841, 8192] {
            let map = memory_map(mib);
            assert!(map.windows(2).all(|w| w[0].1 <= w[1].0), "{mib}");
            // All but the two holes of the first MiB, and a page for ACPI.
            let ram: u64 = map.iter().filter(|m| m.2 == 1).map(|m| m.1 - m.0).sum();
            let lost = (0x10_0000 - 0x9_fc00) + 0x1000;
            assert_eq!(ram + lost, u64::from(mib) << 20, "{mib}");
        }
        let refused = prepare(&kernel(0), 0, "", 256).unwrap_err().to_string();
        assert!(refused.starts_with("a guest of 256 MiB"), "{refused}");
    }
}
