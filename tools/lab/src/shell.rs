//! A dom0 prompt on this terminal.

use std::fs;

use anyhow::Context as _;
use log::info;

use crate::cache::Cache;
use crate::image::Images;
use crate::machine::{self, Console};
use crate::payload::{self, GPU_WORK, MMIO_LATENCY, Payload, Settings};
use crate::scenario::{Form, Gpu};

/// What the prompt's guests get.
const PROGRAMS: [payload::GuestProgram; 2] = [MMIO_LATENCY, GPU_WORK];

/// Boots dom0 and hands over the terminal until QEMU ends.
pub fn shell(no_build: bool) -> anyhow::Result<()> {
    let cache = Cache::open()?;
    let images = Images::ensure(&cache)?;
    if !no_build {
        info!("building our programs");
        payload::build_programs(true, false, &PROGRAMS)?;
    }
    let out = payload::workspace().join("target/lab/shell");
    fs::create_dir_all(&out)?;
    machine::check_path(images.dir())?;
    machine::check_path(&out)?;
    // A prompt is of use without our programs, too.
    let device = payload::programs_built();
    let settings = Settings {
        scenario: "shell",
        device,
        stub: None,
        guest_programs: if device { &PROGRAMS } else { &[] },
        guest_options: "",
        kernels: &[],
        form: Form::Full,
        only: &[],
        shadow: None,
        gpu: Gpu::Bdw,
        large_guest: None,
        plain_boot: false,
        timeout: 0,
    };
    let payload = Payload::make(&out.join("payload"), &images, &settings)?;
    info!("booting dom0 (about half a minute); ctrl-a x leaves, ctrl-a h helps");
    let status = machine::start(&images, &payload, &Console::Terminal, 0)?
        .wait()
        .context("cannot wait for QEMU")?;
    anyhow::ensure!(status.success(), "QEMU ended with {status}");
    Ok(())
}
