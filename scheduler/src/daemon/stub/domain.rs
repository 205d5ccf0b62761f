//! A domain for a device model: its life, and what it offers.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use grant_area::Offer;
use vgpu_control::StubOrder;
use xen_glue::DomainState;

use super::{DomainPlan, Toolstack, Watch};

/// How domains for device models are made.
#[derive(Clone, Debug)]
pub struct StubConfig {
    /// The folder of the image that they boot from.
    pub image: PathBuf,
    /// Their memory, MiB.
    pub memory_mib: u32,
    /// The processors they may run on, as xl has them; any without.
    pub cpus: Option<String>,
    /// From a domain's creation to its device model's being attached.
    pub limit: Duration,
}

/// The kernel's part of the command line: a console, and an end instead of a
/// new start; then the first process's.
const COMMAND_LINE: &str = "console=hvc0 loglevel=4 panic=-1 RUST_LOG=info \
     initcall_blacklist=tracer_init_tracefs cgroup_disable=memory -- --init";

/// The node of the domain's that its device model may write.
fn folder(stub: u16) -> String {
    format!("/local/domain/{stub}/{}", vgpu_control::STUB_FOLDER)
}

/// A domain for a device model, destroyed on drop.
pub struct StubDomain {
    toolstack: Arc<dyn Toolstack>,
    domid: u16,
    guest: u16,
}

impl StubDomain {
    /// Makes the domain for a device model of `guest`, and has it run.
    ///
    /// # Errors
    /// What failed; nothing is left.
    pub fn start(
        toolstack: &Arc<dyn Toolstack>,
        config: &StubConfig,
        guest: u16,
    ) -> anyhow::Result<Self> {
        let plan = DomainPlan {
            name: format!("vgpu-dm-{guest}"),
            kernel: config.image.join("vmlinuz"),
            initramfs: config.image.join("initramfs.gz"),
            command_line: COMMAND_LINE.into(),
            memory_mib: config.memory_mib,
            cpus: config.cpus.clone(),
        };
        for file in [&plan.kernel, &plan.initramfs] {
            if !file.is_file() {
                bail!("there is no {}: vgpu-stub-image makes it", file.display());
            }
        }
        let domid = toolstack
            .create(&plan)
            .context("the device model's domain was not made")?;
        // From here on it is destroyed whatever fails.
        let stub = Self {
            toolstack: Arc::clone(toolstack),
            domid,
            guest,
        };
        toolstack
            .set_target(domid, guest, &folder(domid))
            .with_context(|| format!("domain {domid} does not become its device model"))?;
        toolstack
            .unpause(domid)
            .with_context(|| format!("domain {domid} does not start"))?;
        Ok(stub)
    }

    /// The domain `domid`, which another daemon made for a device model of
    /// `guest`. It runs.
    ///
    /// # Errors
    /// How it ended; what is left of it is destroyed.
    pub fn adopt(toolstack: &Arc<dyn Toolstack>, domid: u16, guest: u16) -> anyhow::Result<Self> {
        if toolstack.state(domid)? == DomainState::Gone {
            bail!("domain {domid} was destroyed");
        }
        let stub = Self {
            toolstack: Arc::clone(toolstack),
            domid,
            guest,
        };
        stub.alive()?;
        Ok(stub)
    }

    /// Its number.
    pub fn domid(&self) -> u16 {
        self.domid
    }

    /// What its device model offers, once that is an offer that is `wanted`.
    ///
    /// # Errors
    /// When it ends, fails, or takes longer than `until`.
    pub fn offer(&self, wanted: impl Fn(&Offer) -> bool, until: Instant) -> anyhow::Result<Offer> {
        self.look_for(wanted, until, false)
    }

    /// The same for a successor. That one failed is no last word: others come
    /// after it, and it may be one of before.
    ///
    /// # Errors
    /// When the domain ends, or for what takes longer than `until`.
    pub fn next_offer(
        &self,
        wanted: impl Fn(&Offer) -> bool,
        until: Instant,
    ) -> anyhow::Result<Offer> {
        self.look_for(wanted, until, true)
    }

    fn look_for(
        &self,
        wanted: impl Fn(&Offer) -> bool,
        until: Instant,
        more_come: bool,
    ) -> anyhow::Result<Offer> {
        let domid = self.domid;
        let mut watch = self.toolstack.watch(&folder(domid))?;
        loop {
            let node = |name| self.toolstack.read(&format!("{}/{name}", folder(domid)));
            if let Some(text) = node(vgpu_control::STUB_OFFER)? {
                let offer: Offer = text.parse().with_context(|| format!("domain {domid}"))?;
                if wanted(&offer) {
                    return Ok(offer);
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if (!more_come || left.is_zero())
                && let Some(reason) = node(vgpu_control::STUB_FAILED)?
            {
                // A stub domain is not trusted with our log.
                let reason: String = reason.chars().take(200).collect();
                bail!("domain {domid}: {}", reason.escape_debug());
            }
            self.alive()?;
            if left.is_zero() {
                bail!("domain {domid} offers no shared area in time");
            }
            // Its end does not show in its folder.
            watch.wait(left.min(Duration::from_millis(500)))?;
        }
    }

    /// That it runs.
    ///
    /// # Errors
    /// How it ended.
    pub fn alive(&self) -> anyhow::Result<()> {
        let domid = self.domid;
        match self.toolstack.state(domid)? {
            DomainState::Alive => Ok(()),
            DomainState::Gone => bail!("domain {domid} was destroyed"),
            DomainState::Shutdown(code) => bail!("domain {domid} {}", end(code)),
        }
    }

    /// Tells its first process what to do to its device model.
    ///
    /// # Errors
    /// When xenstore refuses.
    pub fn order(&self, order: StubOrder) -> anyhow::Result<()> {
        let node = format!("{}/{}", folder(self.domid), vgpu_control::STUB_ORDER);
        self.toolstack.write(self.domid, &node, &order.to_string())
    }

    /// What tells when domains end, this one among them, and when this one
    /// offers something.
    ///
    /// # Errors
    /// When it cannot be watched.
    pub fn watches(&self) -> anyhow::Result<[Box<dyn Watch>; 2]> {
        Ok([
            self.toolstack.watch("@releaseDomain")?,
            self.toolstack.watch(&folder(self.domid))?,
        ])
    }

    /// That it runs, and offers nothing but number `serial`.
    ///
    /// # Errors
    /// How it ended, or that another device model took the place of that one.
    pub fn serves(&self, serial: u32) -> anyhow::Result<()> {
        self.alive()?;
        let node = format!("{}/{}", folder(self.domid), vgpu_control::STUB_OFFER);
        let text = self.toolstack.read(&node)?.unwrap_or_default();
        let offer: Offer = text.parse()?;
        if offer.serial != serial {
            let domid = self.domid;
            bail!("domain {domid}: its device model died");
        }
        Ok(())
    }
}

/// `SHUTDOWN_*` in words (Xen `public/sched.h`).
fn end(code: u8) -> String {
    match code {
        0 => "shut down".into(),
        1 => "rebooted".into(),
        3 => "crashed".into(),
        other => format!("shut down with code {other}"),
    }
}

impl fmt::Debug for StubDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "domain {} for domain {}", self.domid, self.guest)
    }
}

impl Drop for StubDomain {
    fn drop(&mut self) {
        if let Ok(DomainState::Gone) = self.toolstack.state(self.domid) {
            log::info!(
                "domain {}: its device model's domain {} is gone",
                self.guest,
                self.domid
            );
            return;
        }
        match self.toolstack.destroy(self.domid) {
            Ok(()) => log::info!(
                "domain {}: its device model's domain {} ended",
                self.guest,
                self.domid
            ),
            Err(e) => log::error!("{self:?} is left: {e:#}"),
        }
    }
}
