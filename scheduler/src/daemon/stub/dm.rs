//! A guest's device model in a domain of its own.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use grant_area::{GrantAreaError, Lifeline, MappedArea, MappedControl, Offer};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use vgpu_control::{
    ControlError, Disturb, FromDm, PipeConnection, Place, StartDm, StubOrder, ToDm,
};
use vgpu_ring::{Area, Doorbell, EventBell};
use vgpu_sched::saved::MAX_DEVICE;
use vgpu_sched::sync::lock;
use xen_glue::{DomId, Hypervisor};

use super::service::Service;
use super::{StubDomain, Stubs};
use crate::daemon::device_model::{
    Attached, DeviceModel, Home, LIMIT, left_until, quoted, unexpected, unless_dead,
};
use crate::daemon::records::Records;

/// Between two looks whether what a process had open is closed.
const CLOSING: Duration = Duration::from_millis(20);

/// A device model's domain that runs, and waits to be told what to serve.
pub struct WaitingStub {
    domain: StubDomain,
    serial: u32,
    lifeline: Lifeline,
    talk: Talk,
    area: Area,
    service: Arc<Service>,
    until: Instant,
}

impl WaitingStub {
    /// Makes a domain for the guest's device model and takes what it offers.
    ///
    /// # Errors
    /// Why there is none, or what of its offer is not acceptable.
    pub fn start(
        stubs: &Stubs,
        records: &Records,
        guest: u16,
    ) -> anyhow::Result<(Self, MappedArea)> {
        // What is noted of a guest that had this number is nothing of this one's,
        // which its toolstack lets run.
        records.let_go(guest);
        let service = Service::new(stubs, records, guest)?;
        let frames = stubs.toolstack.have_frames(guest);
        frames.context("no frame for the page of requests")?;
        Self::of(&service)
    }

    /// Another domain for the same guest.
    fn of(service: &Arc<Service>) -> anyhow::Result<(Self, MappedArea)> {
        let (stubs, guest) = (&service.stubs, service.guest);
        let began = Instant::now();
        let until = began + stubs.config.limit;
        let domain = StubDomain::start(&stubs.toolstack, &stubs.config, guest)?;
        let offer = domain.offer(|_| true, until)?;
        let domid = DomId(domain.domid());
        let took = began.elapsed().as_secs_f64();
        log::info!("domain {guest}: its device model's {domid} is up after {took:.2} s");
        let open = || -> Result<_, GrantAreaError> {
            let area = MappedArea::open(&*stubs.xen, domid, &offer.area, offer.life)?;
            Ok((area, Talk::open(&*stubs.xen, domid, &offer)?))
        };
        let (area, talk) = open().with_context(|| format!("what {domid} offers"))?;
        let waiting = Self {
            domain,
            serial: offer.serial,
            lifeline: area.lifeline(),
            talk,
            area: Area::clone(&area),
            service: Arc::clone(service),
            until,
        };
        Ok((waiting, area))
    }

    /// Takes over the domain `domid`, which another vgpud made for a device model
    /// of `guest`. Its area is opened anew; the first process there sees that and
    /// has another device model take the place of the one that the other vgpud
    /// talked to.
    ///
    /// # Errors
    /// How the domain ended, or what of its offers is not acceptable; it is
    /// destroyed then.
    pub fn adopt(
        stubs: &Stubs,
        records: &Records,
        domid: u16,
        guest: u16,
    ) -> anyhow::Result<(Self, MappedArea)> {
        let until = Instant::now() + stubs.config.limit;
        let domain = StubDomain::adopt(&stubs.toolstack, domid, guest)?;
        let domid = DomId(domid);
        let offer = domain.offer(|_| true, until)?;
        let what = || format!("what {domid} offers");
        let area = loop {
            match MappedArea::open(&*stubs.xen, domid, &offer.area, offer.life) {
                Ok(area) => break area,
                // What the other vgpud had open goes a moment after it.
                Err(GrantAreaError::Channel(e)) if Instant::now() < until => {
                    log::debug!("{domid}: {e}");
                    thread::sleep(CLOSING);
                }
                Err(e) => return Err(e).with_context(what),
            }
        };
        // Not one from before, which is about to end.
        let wanted = |offer: &Offer| offer.comings == area.coming();
        let (serial, talk) = Talk::next(&*stubs.xen, &domain, wanted, until)?;
        let waiting = Self {
            domain,
            serial,
            lifeline: area.lifeline(),
            talk,
            area: Area::clone(&area),
            service: Service::new(stubs, records, guest)?,
            until,
        };
        Ok((waiting, area))
    }

    /// Tells it what to serve, with the device to restore, and waits until it
    /// is attached. As long as it dies, at most `deaths` times, the next in the
    /// domain is told.
    ///
    /// # Errors
    /// What it says, or how it failed to say anything.
    pub fn attach(
        mut self,
        start: &StartDm,
        device: Option<&[u8]>,
        deaths: usize,
    ) -> anyhow::Result<DmStub> {
        if start.recover.is_some() {
            // As for any successor.
            self.service.hold()?;
        }
        let attached = unless_dead(deaths, |before| {
            if before {
                let wanted = |offer: &Offer| offer.serial != self.serial;
                let xen = &*self.service.stubs.xen;
                (self.serial, self.talk) = Talk::next(xen, &self.domain, wanted, self.until)?;
            }
            let until = self.until;
            self.talk.start(start.clone(), device, until, &self.service)
        });
        self.service.release();
        let attached = attached.or_else(|e| {
            // The domain's end says more than that of its memory.
            self.domain.alive()?;
            Err(e)
        })?;
        DmStub::new(self, attached)
    }
}

/// What is said to it, one question at a time.
struct Talk {
    connection: PipeConnection,
    /// Answers to questions that were given up.
    owed: u32,
    _control: MappedControl,
}

impl Talk {
    /// The pipe that is offered.
    fn open(xen: &dyn Hypervisor, domid: DomId, offer: &Offer) -> Result<Self, GrantAreaError> {
        let control = MappedControl::open(xen, domid, &offer.control)?;
        Ok(Self {
            connection: PipeConnection::from(control.end()?),
            owed: 0,
            _control: control,
        })
    }

    /// The first pipe that is offered by one that is `wanted` and not dead by
    /// now, and the number of that.
    ///
    /// # Errors
    /// When the domain ends, or for what takes longer than `until`.
    fn next(
        xen: &dyn Hypervisor,
        domain: &StubDomain,
        wanted: impl Fn(&Offer) -> bool,
        until: Instant,
    ) -> anyhow::Result<(u32, Self)> {
        let mut last = None;
        loop {
            let wanted = |o: &Offer| wanted(o) && last != Some(o.serial);
            let offer = domain.next_offer(wanted, until)?;
            match Self::open(xen, DomId(domain.domid()), &offer) {
                Ok(talk) => return Ok((offer.serial, talk)),
                // One that offers without end is not looked at without end.
                Err(e) if Instant::now() >= until => {
                    return Err(e).with_context(|| format!("what {domain:?} offers"));
                }
                // Its offer stays until there is the next.
                Err(e) => log::debug!("what {domain:?} offers: {e}"),
            }
            last = Some(offer.serial);
        }
    }

    /// Tells a device model what to serve, with the device to restore, and waits
    /// until it is attached, all in all no longer than `until`.
    fn start(
        &self,
        start: StartDm,
        device: Option<&[u8]>,
        until: Instant,
        service: &Service,
    ) -> anyhow::Result<Attached> {
        let recv = || {
            self.connection.set_limit(Some(left_until(until)));
            self.connection.recv()
        };
        self.connection.set_limit(Some(left_until(until)));
        let message = ToDm::Start(start);
        let sent = self
            .connection
            .send_with(&message, device.unwrap_or(&[]))
            .map_err(anyhow::Error::from);
        let hear = || -> anyhow::Result<FromDm> {
            // Each of the two once.
            for _ in 0..2 {
                let said = recv()?;
                match said {
                    FromDm::PageAt { gfn } => lock(&service.pages).page_at(gfn)?,
                    FromDm::Enabled => lock(&service.pages).enabled()?,
                    said => return Ok(said),
                }
                self.connection.send(&ToDm::Proceed)?;
            }
            Ok(recv()?)
        };
        let said = sent.and_then(|()| hear());
        Attached::heard(said.context("the device model did not attach")?)
    }
}

/// What all that waits for its end shares.
struct End {
    ended: EventBell,
    stop: EventBell,
}

impl End {
    fn new() -> anyhow::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            ended: EventBell::new()?,
            stop: EventBell::new()?,
        }))
    }
}

/// A device model in a domain of its own, attached to its guest.
pub struct DmStub {
    talk: Mutex<Option<Talk>>,
    domid: u16,
    /// `None` once it is destroyed.
    domain: Arc<Mutex<Option<StubDomain>>>,
    end: Arc<End>,
    watcher: Mutex<Option<thread::JoinHandle<()>>>,
    attached: Attached,
    serial: u32,
    /// The last that was told to take its place, its own number before that.
    tried: AtomicU32,
    /// Holds on to the area, too.
    lifeline: Mutex<Option<Arc<Lifeline>>>,
    /// `None` once it is let go of.
    area: Mutex<Option<Area>>,
    service: Arc<Service>,
    /// Another has taken its place: the domain is not its any more.
    succeeded: AtomicBool,
}

impl DmStub {
    fn new(waiting: WaitingStub, attached: Attached) -> anyhow::Result<Self> {
        let domid = waiting.domain.domid();
        let dm = Self {
            talk: Mutex::new(Some(waiting.talk)),
            domid,
            domain: Arc::new(Mutex::new(Some(waiting.domain))),
            end: End::new()?,
            watcher: Mutex::default(),
            attached,
            serial: waiting.serial,
            tried: AtomicU32::new(waiting.serial),
            lifeline: Mutex::new(Some(Arc::new(waiting.lifeline))),
            area: Mutex::new(Some(waiting.area)),
            service: waiting.service,
            succeeded: AtomicBool::new(false),
        };
        dm.watch()?;
        Ok(dm)
    }

    /// Starts the thread that watches.
    fn watch(&self) -> anyhow::Result<()> {
        let watcher = Watcher {
            domid: self.domid,
            lifeline: lock(&self.lifeline).clone().context("it is lost")?,
            serial: self.serial,
            domain: Arc::clone(&self.domain),
            end: Arc::clone(&self.end),
        };
        let thread = thread::Builder::new()
            .name(format!("stub{}", self.domid))
            .spawn(move || watcher.run())
            .context("cannot watch the device model's domain")?;
        *lock(&self.watcher) = Some(thread);
        Ok(())
    }

    /// Ends the thread that watches, and with it the last look at the domain.
    fn stop_watching(&self) {
        self.end.stop.ring();
        if let Some(watcher) = lock(&self.watcher).take()
            && watcher.join().is_err()
        {
            log::error!("the watch of domain {} panicked", self.domid);
        }
    }
}

/// Notices the end of a device model or of its domain.
struct Watcher {
    domid: u16,
    lifeline: Arc<Lifeline>,
    serial: u32,
    domain: Arc<Mutex<Option<StubDomain>>>,
    end: Arc<End>,
}

impl Watcher {
    fn run(mut self) {
        if let Err(e) = self.wait() {
            log::error!("cannot watch domain {} any more: {e:#}", self.domid);
        }
        // Unwatched is ended: nobody would notice.
        self.end.ended.ring();
    }

    fn wait(&mut self) -> anyhow::Result<()> {
        let mut watches = match &*lock(&self.domain) {
            Some(domain) => domain.watches()?,
            None => return Ok(()),
        };
        loop {
            let [ends, offers] = watches.each_ref().map(|watch| watch.fd());
            let mut fds = [
                PollFd::from_borrowed_fd(self.lifeline.fd(), PollFlags::IN),
                PollFd::new(&self.end.stop, PollFlags::IN),
                PollFd::from_borrowed_fd(ends, PollFlags::IN),
                PollFd::from_borrowed_fd(offers, PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            let [_, stop, changed @ ..] = fds.map(|fd| !fd.revents().is_empty());
            if stop || self.lifeline.ended() {
                return Ok(());
            }
            if changed == [false; 2] {
                continue;
            }
            for (watch, _) in watches.iter_mut().zip(changed).filter(|(_, c)| *c) {
                watch.take()?;
            }
            if let Some(domain) = &*lock(&self.domain)
                && let Err(e) = domain.serves(self.serial)
            {
                log::warn!("{e:#}");
                return Ok(());
            }
        }
    }
}

impl DeviceModel for DmStub {
    fn place(&self) -> Place {
        Place::Domain(self.domid)
    }

    fn ended(&self) -> BorrowedFd<'_> {
        self.end.ended.as_fd()
    }

    fn attached(&self) -> &Attached {
        &self.attached
    }

    fn ask(&self, message: &ToDm, limit: Duration) -> anyhow::Result<FromDm> {
        Ok(self.exchange(message, limit, 0)?.0)
    }

    fn device(&self) -> anyhow::Result<Vec<u8>> {
        match self.exchange(&ToDm::Save, LIMIT, MAX_DEVICE)? {
            (FromDm::Saved, device) => Ok(device),
            (other, _) => Err(unexpected(&other)),
        }
    }

    fn stop(&self) -> String {
        if let Some(talk) = &*lock(&self.talk) {
            // It fails when the device model is gone, which is what we want.
            let _ = talk.connection.send(&ToDm::Stop);
            let mut fds = [PollFd::new(&self.end.ended, PollFlags::IN)];
            let limit = rustix::event::Timespec::try_from(LIMIT).ok();
            let _ = poll(&mut fds, limit.as_ref());
        }
        self.stop_watching();
        // Its memory first: a domain is not gone while others map it.
        lock(&self.talk).take();
        lock(&self.area).take();
        lock(&self.lifeline).take();
        if self.succeeded.load(Ordering::SeqCst) {
            return format!("another went on in domain {}", self.domid);
        }
        let Some(domain) = lock(&self.domain).take() else {
            return format!("domain {} ended before", self.domid);
        };
        let how = match domain.alive() {
            Ok(()) => format!("domain {} did as it was told", self.domid),
            Err(e) => e.to_string(),
        };
        drop(domain);
        how
    }

    fn kill(&self) -> String {
        self.stop_watching();
        // Its domain has to stay: the first process there kills it, or the last
        // that was to take its place, if that is alive. First, so that nobody
        // waits for its answer any more.
        if let Some(domain) = &*lock(&self.domain)
            && domain.alive().is_ok()
        {
            let order = StubOrder {
                serial: self.tried.load(Ordering::SeqCst),
                how: Disturb::Kill,
            };
            if let Err(e) = domain.order(order) {
                log::warn!("domain {}: {e:#}", self.domid);
            }
        }
        lock(&self.talk).take();
        format!("in domain {}", self.domid)
    }

    fn successor(&self, start: StartDm, home: &dyn Home) -> anyhow::Result<Arc<dyn DeviceModel>> {
        // Until another serves it: an access to a server that is disabled for a
        // moment would be lost.
        self.service.hold()?;
        let left = lock(&self.service.pages).lift();
        let alive = match &*lock(&self.domain) {
            Some(domain) => domain.alive(),
            None => Err(anyhow!("domain {} is gone", self.domid)),
        };
        let next = match alive {
            Ok(()) => self.in_same_domain(start),
            Err(how) => {
                log::warn!(
                    "domain {}: {how}; {left} vCPUs waited in it",
                    self.service.guest
                );
                self.in_another_domain(start, home)
            }
        }?;
        self.service.answered()?;
        self.succeeded.store(true, Ordering::SeqCst);
        self.service.release();
        Ok(Arc::new(next))
    }

    fn disturb(&self, how: Disturb) -> anyhow::Result<()> {
        let order = StubOrder {
            serial: self.serial,
            how,
        };
        match &*lock(&self.domain) {
            Some(domain) => domain.order(order),
            None => bail!("domain {} is gone", self.domid),
        }
    }

    fn lost(&self) {
        self.stop();
        self.service.release();
    }

    fn tend(&self) {
        if !lock(&self.service.pages).tend() {
            return;
        }
        // Each look can find something, if a hostile one wants that.
        if let Err(e) = self.ask(&ToDm::Wake, LIMIT) {
            log::debug!("domain {}: {e:#}", self.service.guest);
        }
    }
}

impl DmStub {
    /// The domain's first process has started another.
    fn in_same_domain(&self, start: StartDm) -> anyhow::Result<Self> {
        let service = &self.service;
        let until = Instant::now() + service.stubs.config.limit;
        let domid = DomId(self.domid);
        // The last may have died before it was attached; its offer is still there.
        let tried = self.tried.load(Ordering::SeqCst);
        let wanted = |offer: &Offer| offer.serial != tried;
        let next = match &*lock(&self.domain) {
            Some(domain) => Talk::next(&*service.stubs.xen, domain, wanted, until),
            None => bail!("{domid} is gone"),
        };
        let (serial, talk) = next.map_err(|e| self.as_death(e))?;
        self.tried.store(serial, Ordering::SeqCst);
        let attached = talk.start(start, None, until, service)?;
        let next = Self {
            talk: Mutex::new(Some(talk)),
            domid: self.domid,
            domain: Arc::clone(&self.domain),
            end: End::new()?,
            watcher: Mutex::default(),
            attached,
            serial,
            tried: AtomicU32::new(serial),
            lifeline: Mutex::new(lock(&self.lifeline).clone()),
            area: Mutex::new(lock(&self.area).clone()),
            service: Arc::clone(service),
            succeeded: AtomicBool::new(false),
        };
        next.watch()?;
        Ok(next)
    }

    /// The domain is gone: makes another, with what the area holds.
    fn in_another_domain(&self, start: StartDm, home: &dyn Home) -> anyhow::Result<Self> {
        let service = &self.service;
        let Some(left) = lock(&self.area).clone() else {
            bail!("what domain {} had is let go of", self.domid);
        };
        // Its name is free then.
        drop(lock(&self.domain).take());
        let (stub, area) = WaitingStub::of(service)?;
        home.move_to(&left, &area)?;
        let domid = stub.domain.domid();
        *lock(&self.area) = Some(stub.area.clone());
        let start = StartDm {
            anew: true,
            ..start
        };
        // It may be gone already, too.
        let attached = stub.talk.start(start, None, stub.until, service);
        let attached = attached.map_err(|e| match stub.domain.alive() {
            Ok(()) => e,
            Err(how) => anyhow::Error::from(ControlError::Closed).context(format!("{how:#}")),
        });
        // If it does not serve, its domain ends; what that left is for the next.
        let next = Self::new(stub, attached?)?;
        log::info!("domain {}: domain {domid} serves it now", service.guest);
        Ok(next)
    }

    /// What the end of the domain is to who starts successors.
    fn as_death(&self, e: anyhow::Error) -> anyhow::Error {
        let alive = lock(&self.domain).as_ref().map(StubDomain::alive);
        match alive {
            Some(Err(how)) => anyhow::Error::from(ControlError::Closed).context(format!("{how:#}")),
            _ => e,
        }
    }
}

impl DmStub {
    fn exchange(
        &self,
        message: &ToDm,
        limit: Duration,
        most: usize,
    ) -> anyhow::Result<(FromDm, Vec<u8>)> {
        let mut talk = lock(&self.talk);
        let Some(talk) = talk.as_mut() else {
            bail!("the device model's domain is gone");
        };
        let until = Instant::now() + limit;
        let hear = |talk: &mut Talk| -> anyhow::Result<(FromDm, Vec<u8>)> {
            talk.connection.set_limit(Some(left_until(until)));
            // An answer that is owed may have the most attached that any may.
            let answer = talk.connection.recv_with(MAX_DEVICE);
            let answer = answer.context("the device model's domain")?;
            talk.owed -= 1;
            Ok(answer)
        };
        while talk.owed > 0 {
            hear(talk)?;
        }
        talk.connection.set_limit(Some(left_until(until)));
        talk.connection.send(message)?;
        talk.owed += 1;
        let (answer, attached) = hear(talk)?;
        if attached.len() > most {
            let count = attached.len();
            return Err(unexpected(&answer).context(format!("{count} bytes are attached")));
        }
        match answer {
            FromDm::Refused(reason) => bail!(quoted(&reason)),
            answer => Ok((answer, attached)),
        }
    }
}

impl Drop for DmStub {
    fn drop(&mut self) {
        self.stop();
    }
}
