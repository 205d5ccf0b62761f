//! The first process of a device model's own domain.
//!
//! It makes the kernel ready, runs the device model as a process of its own,
//! and another one when that dies, or when there is another vgpud, which cannot
//! know what was said to the last. When the device model has done its work the
//! domain is shut down. A panic here is the kernel's, and so the domain's end.

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::kmod::{ModuleInitFlags, finit_module};
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};
use vgpu_control::{Connection, Disturb};

use super::Holder;
use super::child::{Child, Duties, Orders};
use super::keeper::Kept;

/// This program in the initial RAM disk.
const PROGRAM: &str = "/init";
/// Names of the modules there, a line each, as they have to be loaded.
const ORDER: &str = "/modules/order";

/// Pages that may be granted at once: of the area, and of the pipes of a device
/// model and of those before it that vgpud still maps.
const GRANT_LIMIT: &str = "limit=4096";

/// Deaths of the device model within [`WINDOW`] after which the domain gives
/// up.
const MOST_DEATHS: usize = 5;
/// In which they count.
const WINDOW: Duration = Duration::from_secs(60);

/// Does all that. `arguments` are for the device model.
///
/// # Errors
/// What the kernel refuses. The domain cannot go on without it.
pub fn run(arguments: &[OsString]) -> anyhow::Result<Infallible> {
    prepare()?;
    log::info!("memory: {}", memory()?);
    // An error is told already; there is nothing else to do here.
    if let Err(e) = serve(arguments) {
        log::error!("{e:#}");
    }
    reboot(RebootMode::RB_POWER_OFF).context("cannot shut the domain down")
}

/// Runs device models, one after the other, until one has done its work or too
/// many died.
fn serve(arguments: &[OsString]) -> anyhow::Result<()> {
    let holder = Holder::new()?;
    let dom0 = holder.lifeline();
    let mut first = First {
        orders: Orders::open()?,
        pages: Kept::new()?,
    };
    let mut deaths = Deaths::default();
    for serial in 0.. {
        let (ours, theirs) = Connection::pair()?;
        let comings = dom0.comings();
        let mut device_model = Command::new(PROGRAM)
            .arg("--stub")
            .args(arguments)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()
            .context("cannot run the device model")?;
        if let Err(e) = holder.lend(&ours, serial, comings) {
            log::error!("{e:#}");
        }
        let mut child = Child {
            process: &mut device_model,
            connection: ours,
            serial,
            comings,
            kept: holder.kept(),
        };
        let Some(status) = child.wait(&dom0, &mut first)? else {
            log::info!("another vgpud came: the device model is replaced");
            continue;
        };
        if status.success() {
            log::info!("the device model has done its work");
            break;
        }
        log::error!("the device model ended: {status}");
        if deaths.too_many(Instant::now()) {
            bail!("that was death {MOST_DEATHS} within {WINDOW:?}: the domain ends");
        }
        // A kernel that has no memory, say, needs a moment.
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// What the first process does for a device model.
struct First {
    orders: Orders,
    pages: Kept,
}

impl Duties for First {
    fn order(&mut self, serial: u32) -> Option<Disturb> {
        self.orders.next(serial)
    }

    fn answer(&mut self, connection: &Connection) -> bool {
        self.pages.answer(connection)
    }
}

/// Mounts what is needed and loads the modules.
fn prepare() -> anyhow::Result<()> {
    let nothing: Option<&str> = None;
    for (kind, place) in [("devtmpfs", "/dev"), ("proc", "/proc")] {
        mount(Some(kind), place, Some(kind), MsFlags::empty(), nothing)
            .with_context(|| format!("cannot mount {kind} at {place}"))?;
    }
    let order = fs::read_to_string(ORDER).with_context(|| format!("cannot read {ORDER}"))?;
    for name in order.lines() {
        let path = format!("/modules/{name}");
        let file = File::open(&path).with_context(|| format!("cannot open {path}"))?;
        let parameters = match name {
            "xen-gntalloc.ko" => std::ffi::CString::new(GRANT_LIMIT)?,
            _ => c"".into(),
        };
        finit_module(&file, &parameters, ModuleInitFlags::empty())
            .with_context(|| format!("cannot load {path}"))?;
    }
    Ok(())
}

/// What the kernel says of memory.
fn memory() -> anyhow::Result<String> {
    let text = fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    let names = ["MemTotal", "MemFree", "MemAvailable", "Slab"];
    let told = |line: &&str| names.iter().any(|n| line.starts_with(&format!("{n}:")));
    let lines: Vec<String> = text
        .lines()
        .filter(told)
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    Ok(lines.join(", "))
}

/// When the device model died lately.
#[derive(Default)]
struct Deaths(Vec<Instant>);

impl Deaths {
    /// Counts one; whether they are too many.
    fn too_many(&mut self, now: Instant) -> bool {
        self.0.retain(|at| now.duration_since(*at) < WINDOW);
        self.0.push(now);
        self.0.len() >= MOST_DEATHS
    }
}

#[cfg(test)]
mod tests {
    use fake_xen::{DomainConfig, FakeXen};
    use grant_area::{GrantedArea, MappedArea};
    use vgpu_ring::AreaConfig;
    use xen_glue::DomId;

    use super::*;

    /// Nothing is said, and nothing ordered.
    struct Idle;

    impl Duties for Idle {
        fn order(&mut self, _serial: u32) -> Option<Disturb> {
            None
        }

        fn answer(&mut self, _connection: &Connection) -> bool {
            false
        }
    }

    fn wait(
        process: &mut std::process::Child,
        area: &GrantedArea,
        comings: u32,
    ) -> Option<std::process::ExitStatus> {
        let (connection, _) = Connection::pair().unwrap();
        let mut child = Child {
            process,
            connection,
            serial: 0,
            comings,
            kept: area.kept(),
        };
        child.wait(&area.lifeline(), &mut Idle).unwrap()
    }

    #[test]
    fn one_that_hangs_is_killed() {
        let xen = FakeXen::new();
        let domain = xen.create_domain(DomainConfig::default()).unwrap();
        let stub = domain.id();
        let area = GrantedArea::create(&xen.seen_from(stub), DomId(0), AreaConfig::default());
        let mut stopped = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&stopped);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        let status = wait(&mut stopped, &area.unwrap(), 0);
        assert!(!status.unwrap().success());
    }

    #[test]
    fn the_second_vgpud_ends_what_the_first_talked_to() {
        let xen = FakeXen::new();
        let domain = xen.create_domain(DomainConfig::default()).unwrap();
        let stub = domain.id();
        let area = GrantedArea::create(&xen.seen_from(stub), DomId(0), AreaConfig::default());
        let area = area.unwrap();
        let dom0 = area.lifeline();
        let (offer, life) = area.offer();
        let comes = || MappedArea::open(&xen, stub, &offer, life).unwrap();
        let device_model = || Command::new("sleep").arg("1000").spawn().unwrap();
        let mut first = device_model();
        // The first vgpud does not end it.
        drop(comes());
        first.kill().unwrap();
        let status = wait(&mut first, &area, 0);
        assert!(!status.unwrap().success());
        let mut second = device_model();
        let vgpud = comes();
        assert_eq!(wait(&mut second, &area, 1), None);
        let mut third = device_model();
        assert_eq!(vgpud.coming(), dom0.comings());
        third.kill().unwrap();
        assert!(wait(&mut third, &area, 2).is_some());
    }

    #[test]
    fn deaths_count_for_a_while() {
        let mut deaths = Deaths::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for seconds in [0, 20, 40, 60, 80, 100] {
            assert!(!deaths.too_many(at(seconds)), "{seconds}");
        }
        assert!(!deaths.too_many(at(101)));
        assert!(deaths.too_many(at(102)));
    }
}
