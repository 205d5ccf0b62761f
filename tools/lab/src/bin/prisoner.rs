//! Reaches, from a process confined as vgpu-dm is for one guest, for another
//! guest and for dom0, by all that vgpu-dm's handles can do. Prints facts for
//! the lab.
//!
//! `prisoner OWN OTHER` (domids of two guests that do not run) makes each
//! attempt unconfined (`free`), and has itself make them confined by
//! [`vgpu_confine::process`] (`process`) and with the filter of vgpu-dm's main
//! thread besides (`filtered`). What came of one is the fact
//! `prison/HOW/TARGET/ATTEMPT`: `ok`, an errno, or SIGSYS.

#![forbid(unsafe_code)]

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use nix::libc;
use vgpu_confine::{Identity, Role, Seccomp, process, thread};
use xen_glue::{
    Access, DEVICE_MODEL_REQUESTS, DeviceModel, DomId, DomainMemory, Errno, EventChannel,
    EventChannelError, EventChannels, Extent, Handles, Hypercall, HypercallError, Hypervisor,
    IoreqPage, IoreqServer, IoreqServerId, MemType, PARKING_GFN, Port, Privcmd, XenHost,
};

/// Of nobody else here.
const IDENTITY: Identity = Identity {
    uid: 0x7654_3210,
    gid: 0x7654_3210,
};

const DOM0: DomId = DomId(0);
/// As a foreign domain it stands for the machine's I/O memory (Xen
/// `public/xen.h`).
const DOMID_IO: DomId = DomId(0x7ff1);
/// In the VGA hole, which is I/O memory on every PC.
const IO_FRAME: u64 = 0xb8;
/// RAM of a guest, 32 MiB from its start.
const RAM: Extent = Extent {
    first_gfn: 0x2000,
    frames: 1,
};

/// A domain, and what there is to reach for.
struct Target {
    name: &'static str,
    domid: DomId,
    /// A frame to map.
    gfn: u64,
    /// An ioreq server of dom0's.
    server: u16,
    /// A port that dom0 may bind to.
    port: u32,
}

/// The handles that are tried.
struct Handle {
    privcmd: Arc<dyn Privcmd>,
    events: Arc<dyn EventChannels>,
    hypercall: Hypercall,
}

impl Handle {
    fn free() -> anyhow::Result<Self> {
        Ok(Self {
            privcmd: XenHost.open_privcmd()?,
            events: XenHost.open_event_channels()?,
            hypercall: Hypercall::open()?,
        })
    }

    /// Those of `domid`'s device model. It has none for hypercalls: that is one
    /// of privcmd, restricted likewise.
    fn restricted(domid: DomId) -> anyhow::Result<Self> {
        let mut handles = Handles::open(&XenHost, domid)?;
        let hypercall = Hypercall::open()?;
        hypercall.restrict(domid)?;
        Ok(Self {
            privcmd: handles.privcmd,
            events: handles.channels.pop().context("a guest without vCPUs")?,
            hypercall,
        })
    }

    fn dm(&self, target: &Target) -> DeviceModel {
        DeviceModel::new(Arc::clone(&self.privcmd), target.domid)
    }

    fn server(&self, target: &Target) -> IoreqServer {
        let server = self
            .dm(target)
            .attach_ioreq_server(IoreqServerId(target.server));
        server.persist(true);
        server
    }
}

type Outcome = Result<(), Errno>;
type Attempt = (&'static str, fn(&Handle, &Target) -> Outcome);

const MMIO: std::ops::RangeInclusive<u64> = 0xf_ffff_f000..=0xf_ffff_ffff;

/// Calls that a device model makes. In this order: one may use what another did.
const REACH: &[Attempt] = &[
    ("nr_vcpus", |h, t| said(h.dm(t).nr_vcpus())),
    ("create_server", |h, t| said(h.dm(t).create_ioreq_server())),
    ("server_info", |h, t| said(h.server(t).info())),
    ("map_resource", |h, t| said(h.server(t).map_page(1))),
    ("enable_server", |h, t| said(h.server(t).set_enabled(true))),
    ("map_range", |h, t| said(h.server(t).map_mmio(&MMIO))),
    ("unmap_range", |h, t| said(h.server(t).unmap_mmio(&MMIO))),
    ("claim_writes", |h, t| {
        said(h.server(t).claim_write_protection())
    }),
    ("set_mem_type", |h, t| {
        said(h.dm(t).set_mem_type(RAM, MemType::WriteProtected))
    }),
    ("release_writes", |h, t| {
        said(h.server(t).release_write_protection())
    }),
    ("set_intx", |h, t| {
        said(h.dm(t).set_pci_intx_level(16, 0, false))
    }),
    ("inject_msi", |h, t| {
        said(h.dm(t).inject_msi(0xfee0_0000, 0x30))
    }),
    ("relocate_memory", |h, t| {
        said(h.dm(t).relocate_memory(RAM, PARKING_GFN))?;
        let there = Extent {
            first_gfn: PARKING_GFN,
            ..RAM
        };
        said(h.dm(t).relocate_memory(there, RAM.first_gfn))
    }),
    ("modified_memory", |h, t| {
        h.dm(t).modified_memory(&[RAM]).map_err(|e| e.errno)
    }),
    ("map_foreign", |h, t| {
        let map = h
            .privcmd
            .map_foreign(t.domid, &[t.gfn], Access::ReadOnly)
            .map_err(|e| e.errno())?;
        map.errors
            .iter()
            .flatten()
            .next()
            .map_or(Ok(()), |e| Err(*e))
    }),
    ("bind_interdomain", |h, t| {
        let events = Arc::clone(&h.events);
        let bound = EventChannel::bind_interdomain(events, t.domid, Port(t.port));
        events_said(bound.and_then(|port| port.notify()))
    }),
    // Last, since it is gone then.
    ("destroy_server", |h, t| said(h.server(t).destroy())),
];

/// Calls that no thread of a device model makes.
const CLOSED: &[Attempt] = &[
    ("open_privcmd", |_, _| opened("/dev/xen/privcmd")),
    ("open_hypercall", |_, _| opened("/dev/xen/hypercall")),
    ("open_evtchn", |_, _| opened("/dev/xen/evtchn")),
    ("open_gntdev", |_, _| opened("/dev/xen/gntdev")),
    ("open_gntalloc", |_, _| opened("/dev/xen/gntalloc")),
    ("open_xenbus", |_, _| opened("/dev/xen/xenbus")),
    ("hypercall_memory_op", |h, t| {
        called(h.hypercall.maximum_reservation(t.domid))
    }),
    ("hypercall_domctl", |h, t| {
        called(h.hypercall.domain_state(t.domid))
    }),
    ("bind_unbound", |h, t| {
        let events = Arc::clone(&h.events);
        events_said(EventChannel::bind_unbound(events, t.domid))
    }),
    // Last: a free handle is no more.
    ("restrict_evtchn", |h, t| {
        events_said(h.events.restrict(t.domid))
    }),
    ("restrict_privcmd", |h, t| {
        h.privcmd.restrict(t.domid).map_err(|e| e.errno())
    }),
];

fn said<T>(result: Result<T, xen_glue::DeviceModelError>) -> Outcome {
    result.map(drop).map_err(|e| e.errno)
}

fn events_said<T>(result: Result<T, EventChannelError>) -> Outcome {
    result.map(drop).map_err(|e| match e {
        EventChannelError::Open { errno, .. }
        | EventChannelError::Bind { errno, .. }
        | EventChannelError::Port { errno, .. }
        | EventChannelError::Wait { errno }
        | EventChannelError::Restrict { errno, .. } => errno,
    })
}

fn called<T>(result: Result<T, HypercallError>) -> Outcome {
    result.map(drop).map_err(|e| match e {
        HypercallError::Open { errno, .. } | HypercallError::Call { errno, .. } => errno,
    })
}

fn opened(path: &str) -> Outcome {
    let file = File::options().read(true).write(true).open(path);
    file.map(drop)
        .map_err(|e| Errno::from_raw(e.raw_os_error().unwrap_or(0)))
}

fn attempt(how: &str, handle: &Handle, target: &Target, (name, run): &Attempt) {
    let outcome = run(handle, target).map_or_else(|e| format!("{e:?}"), |()| "ok".into());
    println!("LAB prison/{how}/{}/{name} {outcome}", target.name);
}

/// All of [`REACH`] that there is in each target.
fn reach(how: &str, handle: &Handle, targets: &[Target]) {
    for target in targets {
        let there = |(name, _): &&Attempt| target.domid != DOMID_IO || *name == "map_foreign";
        for tried in REACH.iter().filter(there) {
            attempt(how, handle, target, tried);
        }
    }
}

/// What is in a guest to be reached for: a server that gets no request.
struct Bait {
    page: IoreqPage,
    server: IoreqServer,
}

impl Bait {
    fn lay(domid: DomId) -> anyhow::Result<Self> {
        let dm = DeviceModel::new(XenHost.open_privcmd()?, domid);
        let server = dm.create_ioreq_server()?;
        let page = server.map_page(1)?;
        server.set_enabled(true)?;
        Ok(Self { page, server })
    }
}

/// The targets from the numbers of [`all`].
fn targets(numbers: &[u32]) -> anyhow::Result<[Target; 4]> {
    let [own, own_server, own_port, other, server, port, dom0_port] = *numbers else {
        bail!("{} numbers, allowed: 7", numbers.len());
    };
    let target = |name, domid: DomId, gfn, server: u32, port| -> anyhow::Result<Target> {
        Ok(Target {
            name,
            domid,
            gfn,
            server: u16::try_from(server)?,
            port,
        })
    };
    let domid = |number: u32| u16::try_from(number).map(DomId);
    let ram = RAM.first_gfn;
    Ok([
        target("own", domid(own)?, ram, own_server, own_port)?,
        target("other", domid(other)?, ram, server, port)?,
        target("dom0", DOM0, ram, 0, dom0_port)?,
        target("io", DOMID_IO, IO_FRAME, 0, 0)?,
    ])
}

/// The prisoner: makes one of [`CLOSED`], which in the filter is its end, or all
/// of [`REACH`].
fn inside(how: &str, what: &str, numbers: &[u32]) -> anyhow::Result<()> {
    let targets = targets(numbers)?;
    let [own, other, dom0, _] = &targets;
    let handle = Handle::restricted(own.domid)?;
    process(IDENTITY)?;
    if how == "filtered" {
        thread(Role::Control, Seccomp::Kill, &DEVICE_MODEL_REQUESTS)?;
    }
    if what == "reach" {
        reach(how, &handle, &targets);
        return Ok(());
    }
    let closed = CLOSED.iter().find(|(name, _)| *name == what);
    let closed = closed.with_context(|| format!("no attempt {what}"))?;
    if how == "process" {
        attempt(how, &handle, dom0, closed);
    }
    attempt(how, &handle, other, closed);
    Ok(())
}

/// Has a prisoner try `what`.
fn confined(how: &str, what: &str, numbers: &[u32]) -> anyhow::Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["inside", how, what]);
    let numbers = numbers.iter().map(u32::to_string);
    let status = command.args(numbers).status()?;
    if status.signal() == Some(libc::SIGSYS) {
        println!("LAB prison/{how}/other/{what} SIGSYS");
        return Ok(());
    }
    ensure!(status.success(), "{how}: {what}: {status}");
    Ok(())
}

/// Makes all attempts, each way.
fn all(own: u32, other: u32) -> anyhow::Result<()> {
    let events = XenHost.open_event_channels()?;
    for how in ["free", "process", "filtered"] {
        let domid = |number: u32| u16::try_from(number).map(DomId);
        let baits = [Bait::lay(domid(own)?)?, Bait::lay(domid(other)?)?];
        let loopback = EventChannel::bind_unbound(Arc::clone(&events), DOM0)?;
        let mut numbers = Vec::new();
        for (number, bait) in [own, other].into_iter().zip(&baits) {
            let server = u32::from(bait.server.id().0);
            numbers.extend([number, server, bait.page.port(0)?.0]);
        }
        numbers.push(loopback.port().0);
        if how == "free" {
            let handle = Handle::free()?;
            let targets = targets(&numbers)?;
            reach(how, &handle, &targets);
            let [_, other, ..] = &targets;
            for closed in CLOSED {
                attempt(how, &handle, other, closed);
            }
            continue;
        }
        confined(how, "reach", &numbers)?;
        for (closed, _) in CLOSED {
            confined(how, closed, &numbers)?;
        }
    }
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let numbers = |texts: &[String]| -> anyhow::Result<Vec<u32>> {
        Ok(texts.iter().map(|n| n.parse()).collect::<Result<_, _>>()?)
    };
    match arguments.as_slice() {
        [role, how, what, rest @ ..] if role == "inside" => inside(how, what, &numbers(rest)?),
        [own, other] => all(own.parse()?, other.parse()?),
        _ => bail!("usage: prisoner OWN OTHER"),
    }
}
