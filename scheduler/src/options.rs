//! How vgpud is told what to do: by its command line, and by a file.
//!
//! Both have the same options, `--attach-limit` here being `attach_limit`
//! there, and are read into the same struct. What the command line says holds;
//! else the file, else the default.

mod values;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use serde::Deserialize;
use vgpu_config::Gpu;
use vgpu_confine::Seccomp;
use vgpu_sched::ppgtt::ShadowMode;
use vgpu_sched::scan::ScanMode;
use vgpu_sched::switch::SwitchMode;

pub use values::Within;

use crate::daemon::OnCrashLoop;
use values::{gpu, named};

/// Where the file is unless told otherwise; it need not be there.
pub const DEFAULT_FILE: &str = "/etc/vgpu/vgpud.toml";

/// The longest file that is looked at, in bytes.
const MAX_FILE: u64 = 64 << 10;

/// What may be said.
#[derive(Args, Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// Where clients connect [default: /run/vgpud.sock]
    #[arg(long)]
    pub socket: Option<PathBuf>,

    /// The device model to run for each guest [default: vgpu-dm beside vgpud]
    #[arg(long)]
    pub dm: Option<PathBuf>,

    /// What the GPU is, and so every guest's: bdw or kbl. The only GPU there is
    /// now is a software one in this process [default: bdw]
    #[arg(long, value_parser = gpu)]
    pub gpu: Option<Gpu>,

    /// Seconds a device model may take to attach to its guest [default: 20]
    #[arg(long, value_name = "SECONDS")]
    pub attach_limit: Option<Within<1, 50>>,

    /// Seconds a request may hold an engine. One that does not end is taken
    /// off by a reset of its context, and its guest is told [default: 10]
    #[arg(long, value_name = "SECONDS")]
    pub run_limit: Option<Within<1, 3600>>,

    /// Milliseconds a guest may stand still when it is migrated. When more is
    /// expected, it is not stopped for long: it goes on here [default: 500]
    #[arg(long, value_name = "MILLISECONDS")]
    pub downtime_limit: Option<Within<1, 3_600_000>>,

    /// How an engine's registers go from one vGPU to the next: full, no-readback,
    /// merged, delta-previous or delta-image. All but the last are there to be
    /// compared with it [default: delta-image]
    #[arg(long, value_name = "MODE")]
    #[serde(deserialize_with = "named")]
    pub switch_mode: Option<SwitchMode>,

    /// A device model's user id is this and its guest's number: of nobody else,
    /// so that device models cannot reach each other [default: 1900000000]
    #[arg(long, value_name = "UID")]
    pub dm_uid_base: Option<Within<1, 0x7fff_0000>>,

    /// What a system call of a device model leads to that its work does without:
    /// kill, log (a line in the kernel's log, for finding out), off [default: kill]
    #[arg(long, value_name = "ACTION")]
    #[serde(deserialize_with = "named")]
    pub dm_seccomp: Option<Seccomp>,

    /// Milliseconds a device model in dom0 may be at one thing before it is taken
    /// to hang, and replaced; in a domain of its own it is 1000 [default: 1000]
    #[arg(long, value_name = "MILLISECONDS")]
    pub dm_hang_limit: Option<Within<100, 600_000>>,

    /// How many device models of a guest may die within --dm-death-window
    /// before no more are started [default: 10]
    #[arg(long, value_name = "DEATHS")]
    pub dm_deaths: Option<Within<0, 1000>>,

    /// See --dm-deaths [default: 10]
    #[arg(long, value_name = "SECONDS")]
    pub dm_death_window: Option<Within<1, 86_400>>,

    /// What becomes of a guest whose device models die again and again:
    /// fail-device, it runs on without its vGPU; pause-guest, it is paused, too
    /// [default: fail-device]
    #[arg(long, value_name = "WHAT")]
    #[serde(deserialize_with = "named")]
    pub on_crash_loop: Option<OnCrashLoop>,

    /// Let device models keep root's rights [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub unconfined: Option<bool>,

    /// Have device models count accesses by register, for vgpuctl inspect
    /// [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub count_registers: Option<bool>,

    /// How guests' page tables are followed: strict, each write to one
    /// trapped; lazy, each compared at submissions; adaptive, each whichever
    /// way is cheaper. Where Xen cannot trap writes, it is lazy [default: adaptive]
    #[arg(long, value_name = "MODE")]
    #[serde(deserialize_with = "named")]
    pub shadow: Option<ShadowMode>,

    /// What is done about batches that guests' users submit: off, note or refuse.
    /// Noting names what has no place in them to whoever inspects the vGPU;
    /// refusing stops the context. No safety rests on either [default: note]
    #[arg(long, value_name = "MODE")]
    #[serde(deserialize_with = "named")]
    pub scan: Option<ScanMode>,

    /// Where shares that were set while a guest ran are kept
    /// [default: /var/lib/vgpu]
    #[arg(long, value_name = "DIRECTORY")]
    pub state_dir: Option<PathBuf>,

    /// Where is noted what the next vgpud needs to take over guests that run
    /// [default: /run/vgpu]
    #[arg(long, value_name = "DIRECTORY")]
    pub run_dir: Option<PathBuf>,

    /// Give each guest's device model a domain of its own, unless its `vgpu=`
    /// says stub=0 [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub stub: Option<bool>,

    /// What such domains boot from, as vgpu-stub-image makes it
    /// [default: /var/lib/vgpu/stub]
    #[arg(long, value_name = "DIRECTORY")]
    pub stub_image: Option<PathBuf>,

    /// Their memory, MiB; 72 is for a cloud kernel [default: 72]
    #[arg(long, value_name = "MIB")]
    pub stub_memory: Option<Within<32, 1024>>,

    /// The xl that makes them [default: /usr/sbin/xl]
    #[arg(long, value_name = "PROGRAM")]
    pub xl: Option<PathBuf>,

    /// The processors they may run on, as xl's `cpus=` has them [default: all]
    #[arg(long, value_name = "CPUS")]
    pub stub_cpus: Option<String>,

    /// Seconds from such a domain's creation to its device model's being
    /// attached [default: 45]
    #[arg(long, value_name = "SECONDS")]
    pub stub_limit: Option<Within<1, 50>>,
}

impl Options {
    /// What is said here, and else what is said in `file`.
    #[must_use]
    pub fn over(self, file: Self) -> Self {
        Self {
            socket: self.socket.or(file.socket),
            dm: self.dm.or(file.dm),
            gpu: self.gpu.or(file.gpu),
            attach_limit: self.attach_limit.or(file.attach_limit),
            run_limit: self.run_limit.or(file.run_limit),
            downtime_limit: self.downtime_limit.or(file.downtime_limit),
            switch_mode: self.switch_mode.or(file.switch_mode),
            dm_uid_base: self.dm_uid_base.or(file.dm_uid_base),
            dm_seccomp: self.dm_seccomp.or(file.dm_seccomp),
            dm_hang_limit: self.dm_hang_limit.or(file.dm_hang_limit),
            dm_deaths: self.dm_deaths.or(file.dm_deaths),
            dm_death_window: self.dm_death_window.or(file.dm_death_window),
            on_crash_loop: self.on_crash_loop.or(file.on_crash_loop),
            unconfined: self.unconfined.or(file.unconfined),
            count_registers: self.count_registers.or(file.count_registers),
            shadow: self.shadow.or(file.shadow),
            scan: self.scan.or(file.scan),
            state_dir: self.state_dir.or(file.state_dir),
            run_dir: self.run_dir.or(file.run_dir),
            stub: self.stub.or(file.stub),
            stub_image: self.stub_image.or(file.stub_image),
            stub_memory: self.stub_memory.or(file.stub_memory),
            xl: self.xl.or(file.xl),
            stub_cpus: self.stub_cpus.or(file.stub_cpus),
            stub_limit: self.stub_limit.or(file.stub_limit),
        }
    }

    /// What the file at `path` says; with none the default file, if it is
    /// there.
    ///
    /// # Errors
    /// When it cannot be read, or what is wrong in it and where.
    pub fn read(path: Option<&Path>) -> anyhow::Result<Self> {
        let file = path.unwrap_or(Path::new(DEFAULT_FILE));
        let length = match fs::metadata(file) {
            Ok(meta) => meta.len(),
            Err(e) if e.kind() == ErrorKind::NotFound && path.is_none() => {
                return Ok(Self::default());
            }
            Err(e) => return Err(e).with_context(|| format!("cannot read {}", file.display())),
        };
        if length > MAX_FILE {
            let file = file.display();
            bail!("{file} has {length} bytes, allowed: at most {MAX_FILE}");
        }
        let text = fs::read_to_string(file);
        let text = text.with_context(|| format!("cannot read {}", file.display()))?;
        let options = Self::parse(&text);
        options.with_context(|| format!("{}", file.display()))
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        // The parser's report shows the line, over several lines; a log wants
        // one.
        toml::from_str(text).map_err(|e| {
            let line = e.span().map(|span| {
                let before = text.get(..span.start).unwrap_or(text);
                before.matches('\n').count() + 1
            });
            let what = e.message().replace('\n', ", ");
            match line {
                Some(line) => anyhow::anyhow!("line {line}: {what}"),
                None => anyhow::anyhow!(what),
            }
        })
    }
}

#[cfg(test)]
mod tests;
