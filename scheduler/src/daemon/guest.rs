//! One guest: how it comes, what it consists of, what it shows.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::{Value, json};
use vgpu_control::{Entry, Held, Register, StartDm, State, VgpuSample};
use vgpu_ring::EventBell;
use vgpu_sched::kept::KeptShares;
use vgpu_sched::qmp::Proxy;
use vgpu_sched::sync::lock;
use xen_glue::PARKING_GFN;

use super::claim::Claim;
use super::device_model::DeviceModel;
use super::events::{RingFate, RingSink, Way};
use super::migration::{self, Arriving, Plug, Record};
use super::platform::{Origin, Platform, Vgpu};
use super::process::Process;
use super::records::{GuestRecord, Records};
use super::replace::{Made, Models};
use super::saving::Progress;
use super::seat::{LeftSeat, Seat, Taken};
use super::server::Host;
use super::worker::{Work, Worker};

/// What ends a supervisor's wait besides the two processes.
pub struct Signals {
    /// The worker found the ring broken.
    pub broke: EventBell,
    /// The daemon stops.
    pub stop: EventBell,
}

/// A guest with a vGPU, or with one that failed.
pub struct Guest {
    /// Its domain.
    pub domid: u16,
    /// What was asked for.
    claim: Mutex<Claim>,
    qemu_pid: i32,
    /// Becomes readable when its QEMU ends.
    pub qemu: OwnedFd,
    /// Ends waits.
    pub signals: Signals,
    pub(super) models: Models,
    fate: Arc<RingFate>,
    /// The ring of events, which changes with the area.
    pub(super) way: Arc<Mutex<Option<Way>>>,
    /// `None` once the vGPU failed.
    pub(super) running: Mutex<Option<Running>>,
    /// Held while a save uses the vGPU, which is not to end then. Locked before
    /// `running`, which is locked for moments only.
    pub(super) in_use: Mutex<()>,
    failure: Mutex<Option<String>>,
    /// Which GPU the host has.
    pub(super) gpu: String,
    /// How far a save is.
    pub(super) progress: Mutex<Progress>,
    proxy: Mutex<Option<Proxy>>,
    migration: Arc<Record>,
    /// What a vgpud to come needs.
    left: Left,
    adopted: bool,
    /// From the request for it to its device model's being attached.
    attaching: Duration,
}

/// What is left to a vgpud to come.
struct Left {
    /// The shared area, if that is memory of dom0.
    area: Option<OwnedFd>,
    record: Mutex<GuestRecord>,
    records: Records,
}

/// Where a guest comes from.
pub enum Comes<'a> {
    /// It begins.
    New,
    /// It goes on from what was saved of its vGPU.
    Arriving(&'a Arriving),
    /// It was another vgpud's, which left this record and its device model's seat.
    Orphan(&'a GuestRecord, Box<LeftSeat>),
}

/// What a vGPU needs to run. Dropped in this order: requests stop before the
/// vGPU goes.
pub struct Running {
    pub(super) worker: Arc<Worker>,
    /// The scheduler's part.
    pub vgpu: Arc<dyn Vgpu>,
}

impl Guest {
    /// Makes everything for a guest whose QEMU is, or is going to be, process
    /// `qemu`: shared area, scheduler's vGPU, device model, QMP proxy.
    ///
    /// # Errors
    /// What failed; nothing is left behind.
    pub fn start(
        register: &Register,
        claim: Claim,
        qemu: Process,
        host: &Host,
        platform: &dyn Platform,
        comes: Comes<'_>,
    ) -> anyhow::Result<Self> {
        let began = Instant::now();
        let domid = register.domid;
        let (left, arriving, orphan) = match comes {
            Comes::New => (None, None, None),
            Comes::Arriving(arriving) => (None, Some(arriving), None),
            Comes::Orphan(record, left) => (Some(*left), None, Some(record)),
        };
        let restored = arriving.map(|a| &a.saved);
        if let Some(saved) = restored {
            saved.fits(&platform.gpu().to_string())?;
        }
        let watched = qemu.open().context("cannot watch the client")?;
        let Taken { seat, ours, wake } = Seat::take(host, claim.spec(), domid, left)?;
        let sink = RingSink::new(Way {
            ring: ours.events,
            worker: wake,
        });
        let (fate, way) = (sink.fate(), sink.way());
        let share = claim.spec().share;
        let origin = match (restored, orphan) {
            (Some(saved), _) => Origin::Saved(saved),
            (None, Some(_)) => Origin::Orphan,
            (None, None) => Origin::New,
        };
        let vgpu = platform.add_vgpu(domid, share, ours.ggtt, origin, Box::new(sink))?;
        vgpu.count_changes(ours.changes);
        let signals = Signals {
            broke: EventBell::new()?,
            stop: EventBell::new()?,
        };
        let migration = Record::new(domid, host.limits.downtime);
        // Before QEMU exists, so that libxl always finds the socket.
        let proxy = register.qmp.as_ref().map(|qmp| {
            let start = if orphan.is_some() {
                Proxy::adopt
            } else {
                Proxy::start
            };
            let hooks = Box::new(Plug::new(Arc::clone(&migration)));
            start(&qmp.public, &qmp.private, hooks)
        });
        let proxy = proxy.transpose()?;
        let table = match orphan {
            Some(record) => record.table_in_ram.then_some(PARKING_GFN),
            None => vgpu.table().gfn(),
        };
        let start = StartDm {
            restored: restored.is_some(),
            confine: host.dm.confinement(domid),
            count_registers: host.dm.counts(),
            recover: orphan.map(|record| record.server),
            replay: orphan.is_some(),
            ..StartDm::new(domid, claim.spec(), platform.gpu(), table)
        };
        let area = seat.area()?;
        let made = Made {
            start: start.clone(),
            // A domain's area is not to stay when another takes its place.
            kept: area.is_some().then_some(ours.kept),
            limits: host.limits,
        };
        let noted = |pid| {
            let Some(record) = orphan else {
                // Until it has a record, its launcher waits, and goes with us.
                return;
            };
            let noted = host.records.write(&GuestRecord {
                dm: Process::of(pid).ok(),
                ..record.clone()
            });
            if let Err(e) = noted {
                log::warn!("domain {domid}: {e:#}");
            }
        };
        let device = restored.map(|s| s.device.as_slice());
        // One that takes another's place may die, as any that does.
        let deaths = orphan.map_or(0, |_| host.limits.crashes.deaths);
        let dm = seat.attach(&start, device, deaths, &noted)?;
        let attaching = began.elapsed();
        if orphan.is_some()
            && let Some(gfn) = dm.table()
        {
            vgpu.table().find(gfn).context("the guest's page table")?;
        }
        let worker = Worker::start(
            domid,
            Work {
                requests: ours.requests,
                fate: Arc::clone(&fate),
                vgpu: Arc::clone(&vgpu),
                broke: signals.broke.try_clone()?,
                first: restored.is_some().then(|| {
                    let migration = Arc::clone(&migration);
                    Box::new(move || migration::submitted(&migration)) as Box<_>
                }),
            },
        )?;
        if let Some(arriving) = arriving {
            migration::loaded(&migration, arriving.times.as_ref(), began.elapsed());
        }
        let inode = area.as_ref().map(rustix::fs::fstat).transpose()?;
        let mut record = GuestRecord {
            uuid: claim.uuid().map(ToString::to_string),
            vgpu: claim.configured().to_string(),
            qmp: register.qmp.clone(),
            server: dm.server(),
            area: inode.map_or(0, |stat| stat.st_ino),
            table_in_ram: vgpu.table().gfn().is_some(),
            ..GuestRecord::new(domid, qemu)
        };
        record.runs_at(dm.place(), platform);
        host.records.write(&record)?;
        let left = Left {
            area,
            record: Mutex::new(record),
            records: host.records.clone(),
        };
        Ok(Self {
            domid,
            claim: Mutex::new(claim),
            qemu_pid: qemu.pid,
            qemu: watched,
            signals,
            models: Models::new(dm, made),
            fate,
            way,
            running: Mutex::new(Some(Running {
                worker: Arc::new(worker),
                vgpu,
            })),
            in_use: Mutex::new(()),
            failure: Mutex::new(None),
            gpu: platform.gpu().to_string(),
            progress: Mutex::default(),
            proxy: Mutex::new(proxy),
            migration,
            left,
            adopted: orphan.is_some(),
            attaching,
        })
    }

    /// The shared area, for the guest's QEMU to hold, if it is memory of dom0.
    ///
    /// # Errors
    /// When the process has no more descriptors.
    pub fn area(&self) -> std::io::Result<Option<OwnedFd>> {
        let area = self.left.area.as_ref().map(OwnedFd::try_clone);
        area.transpose()
    }

    /// Notes what changed for a vgpud to come.
    pub(super) fn note(&self, change: impl FnOnce(&mut GuestRecord)) {
        let mut record = lock(&self.left.record);
        change(&mut record);
        if let Err(e) = self.left.records.write(&record) {
            log::warn!("domain {}: {e:#}", self.domid);
        }
    }

    /// The guest is no more: no vgpud to come needs to know of it.
    pub fn forget(&self) {
        self.left.records.remove(self.domid);
    }

    /// Its migration. It must be [connected](Record::connect) to be of use.
    pub fn migration(&self) -> &Arc<Record> {
        &self.migration
    }

    /// Its device model.
    pub fn dm(&self) -> Arc<dyn DeviceModel> {
        self.models.now()
    }

    /// Whether the guest's page table is RAM of it, and where it is parked;
    /// nothing when the vGPU failed.
    pub(super) fn table_gfn(&self) -> Option<Option<u64>> {
        lock(&self.running).as_ref().map(|r| r.vgpu.table().gfn())
    }

    /// Why its worker ended by itself, if it did.
    pub fn ring_failure(&self) -> Option<String> {
        let running = lock(&self.running);
        Some(running.as_ref()?.worker.failure()?.to_owned())
    }

    /// Takes the vGPU away for good: nothing of the guest's memory is mapped
    /// by this process when it returns.
    pub fn fail(&self, reason: &str) {
        log::error!("domain {}: vGPU dropped: {reason}", self.domid);
        *lock(&self.failure) = Some(reason.to_owned());
        self.note(|record| record.failure = Some(reason.to_owned()));
        self.end();
    }

    /// Stops the worker and removes the vGPU from the scheduler.
    pub fn end(&self) {
        // Whoever saves it has another handle.
        let _in_use = lock(&self.in_use);
        // Out of the lock before the worker is waited for.
        let running = lock(&self.running).take();
        drop(running);
        *lock(&self.way) = None;
    }

    /// Ends the QMP proxy. Before the domain's place is free: the next guest
    /// there may use the same paths.
    pub fn hang_up(&self) {
        let proxy = lock(&self.proxy).take();
        drop(proxy);
    }

    /// Changes what the vGPU gets of the GPU's time, as
    /// [`Claim::change`] has it.
    ///
    /// # Errors
    /// When the vGPU failed, or for what is wrong with `changes`; nothing is
    /// changed then.
    pub fn set_share(&self, changes: &str, kept: &KeptShares) -> anyhow::Result<Held> {
        let running = lock(&self.running);
        let Some(running) = running.as_ref() else {
            bail!(self.lost());
        };
        let mut claim = lock(&self.claim);
        let held = claim.change(changes, kept)?;
        running.vgpu.set_share(held.share);
        Ok(held)
    }

    /// That the vGPU failed, and why.
    pub(super) fn lost(&self) -> String {
        let reason = lock(&self.failure).clone().unwrap_or_default();
        format!("domain {} lost its vGPU: {reason}", self.domid)
    }

    /// What the vGPU did so far.
    pub fn sample(&self) -> VgpuSample {
        let lanes = lock(&self.running).as_ref().map(|r| r.vgpu.lanes());
        let state = lanes.as_ref().map_or(State::Failed, |_| State::Running);
        let (at_ns, lanes) = lanes.unwrap_or_default();
        let claim = lock(&self.claim);
        VgpuSample {
            domid: self.domid,
            name: claim.name().map(str::to_owned),
            state,
            share: claim.spec().share,
            at_ns,
            lanes,
        }
    }

    fn state(&self) -> State {
        if lock(&self.running).is_some() {
            State::Running
        } else {
            State::Failed
        }
    }

    /// A line of the list.
    pub fn entry(&self) -> Entry {
        let requests = lock(&self.running)
            .as_ref()
            .map_or(0, |r| r.worker.requests());
        // Not in the struct expression, to the end of which the guard would
        // live: the claim is locked behind `running`, never before it.
        let vgpu = lock(&self.claim).spec().to_string();
        Entry {
            domid: self.domid,
            vgpu,
            state: self.state(),
            qemu_pid: self.qemu_pid,
            dm: self.dm().place(),
            requests,
            adopted: self.adopted,
            restarts: self.models.replaced().0,
        }
    }

    /// All there is to see.
    pub fn tree(&self) -> Value {
        let entry = self.entry();
        // Asked under the lock: whoever ends the vGPU must find itself with
        // the last handle of it.
        let (scheduler, ggtt, slowed_ns) = match lock(&self.running).as_ref() {
            Some(r) => (
                Some(r.vgpu.tree()),
                Some(r.vgpu.table().gfn()),
                r.worker.slowed_ns(),
            ),
            None => (None, None, 0),
        };
        let device = match (&scheduler, self.dm().tree()) {
            (None, _) => Value::Null,
            (Some(_), Ok(tree)) => tree,
            (Some(_), Err(e)) => json!({"error": format!("{e:#}")}),
        };
        let ggtt = ggtt.map(|gfn| if gfn.is_some() { "ram" } else { "trapped" });
        let failure = lock(&self.failure).clone();
        let (restarts, last_death) = self.models.replaced();
        json!({
            "domid": entry.domid,
            "vgpu": entry.vgpu,
            "state": entry.state,
            "failure": failure,
            "ggtt": ggtt,
            "processes": {
                "qemu": entry.qemu_pid,
                "vgpu-dm": entry.dm,
                "ioreq_server": self.dm().server(),
            },
            "device_models": {
                "replaced": restarts,
                "last_death": last_death,
                "gap_ms": self.models.gap().as_millis(),
            },
            "attach_seconds": self.attaching.as_secs_f64(),
            "confined": self.dm().confined(),
            "rings": {
                "requests": entry.requests,
                "events": self.fate.sent(),
                "slowed_ns": slowed_ns,
            },
            "scheduler": scheduler,
            "device": device,
        })
    }
}
