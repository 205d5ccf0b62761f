//! The device model in a domain of its own.
//!
//! Two processes of one program. The first holds what must outlive a device
//! model, the shared area, and lends it ([`Holder`]); the device model grants
//! the pipe to vgpud and offers both ([`offer`]). A successor offers the same
//! area and another pipe, which is how vgpud learns of it.

mod child;
pub mod init;
pub mod keeper;

use std::os::fd::OwnedFd;

use anyhow::{Context, anyhow};
use grant_area::{GrantedArea, GrantedControl, LentArea, Lifeline, Loan, Offer};
use serde::{Deserialize, Serialize};
use vgpu_control::{Connection, PipeConnection, STUB_FAILED, STUB_FOLDER, STUB_OFFER};
use vgpu_ring::{AreaConfig, KeptPart};
use xen_glue::{DomId, Port, XenHost, Xenstore};

/// What vgpud is in.
const DOM0: DomId = DomId(0);

/// From the first process to a device model, with the descriptors of the
/// area.
#[derive(Serialize, Deserialize)]
struct Lent {
    /// The offer; the pipe in it is not yet one.
    offer: String,
    pages: u32,
    index: u64,
    port: u32,
}

/// Holds the area.
pub struct Holder {
    area: GrantedArea,
}

impl Holder {
    /// Grants an area to dom0.
    ///
    /// # Errors
    /// What is refused; xenstore has it too.
    pub fn new() -> anyhow::Result<Self> {
        let area = GrantedArea::create(&XenHost, DOM0, AreaConfig::default());
        let area = area.context("cannot grant an area").inspect_err(tell)?;
        Ok(Self { area })
    }

    /// What the device model keeps for its successor.
    pub fn kept(&self) -> KeptPart {
        self.area.kept()
    }

    /// Tells when dom0 comes and goes.
    pub fn lifeline(&self) -> Lifeline {
        self.area.lifeline()
    }

    /// Lends the area to the device model at the other end of `connection`,
    /// number `serial` of this domain, started when dom0 had come `comings` times.
    ///
    /// # Errors
    /// When it is gone.
    pub fn lend(&self, connection: &Connection, serial: u32, comings: u32) -> anyhow::Result<()> {
        let (area, life) = self.area.offer();
        let offer = Offer {
            serial,
            comings,
            area,
            life,
            control: area,
        };
        let (loan, fds) = self.area.lend().context("the area is not one of Xen's")?;
        let lent = Lent {
            offer: offer.to_string(),
            pages: loan.pages,
            index: loan.index,
            port: loan.port.0,
        };
        Ok(connection.send(&lent, &fds)?)
    }
}

/// What a device model shares with vgpud.
pub struct Shared {
    /// The area.
    pub area: LentArea,
    /// What vgpud says.
    pub control: PipeConnection,
    /// Holds the pipe's memory.
    pub pipe: GrantedControl,
}

/// Takes the area that the first process lends, and offers it to dom0 with a
/// pipe through xenstore.
///
/// # Errors
/// What is refused; xenstore has it too.
pub fn offer(holder: &Connection) -> anyhow::Result<Shared> {
    share(holder).inspect_err(tell)
}

/// Tells vgpud why there is no offer.
fn tell(error: &anyhow::Error) {
    let reason = format!("{error:#}").replace('\n', " ");
    // Paths that do not begin at the root are below our own domain's.
    let node = format!("{STUB_FOLDER}/{STUB_FAILED}");
    let told = Xenstore::open().and_then(|xenstore| xenstore.write(&node, &reason));
    if let Err(e) = told {
        log::error!("{e}");
    }
}

/// Puts the offer where vgpud looks for it.
fn publish(xenstore: &Xenstore, offer: &Offer) -> anyhow::Result<()> {
    let [failed, offered] = [STUB_FAILED, STUB_OFFER].map(|n| format!("{STUB_FOLDER}/{n}"));
    // What a predecessor failed of is not this one's.
    match xenstore.rm(&failed) {
        Err(e) if !e.is_not_found() => log::warn!("{e}"),
        _ => {}
    }
    let written = xenstore.write(&offered, &offer.to_string());
    written.context("cannot offer the shared area")
}

fn share(holder: &Connection) -> anyhow::Result<Shared> {
    let (lent, fds) = holder.recv::<Lent>().context("the area")?;
    let count = fds.len();
    let fds = <[OwnedFd; 2]>::try_from(fds)
        .map_err(|_| anyhow!("the area came with {count} descriptors, allowed: 2"))?;
    let loan = Loan {
        pages: lent.pages,
        index: lent.index,
        port: Port(lent.port),
    };
    let area = LentArea::open(loan, fds)?;
    let pipe = GrantedControl::create(&XenHost, DOM0)?;
    let offer = Offer {
        control: pipe.offer(),
        ..lent.offer.parse()?
    };
    let control = PipeConnection::from(pipe.end()?);
    publish(&Xenstore::open()?, &offer)?;
    Ok(Shared {
        area,
        control,
        pipe,
    })
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::io::{Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::process::Command;

    use super::*;

    const ERROR: u32 = 16;
    const RM: u32 = 13;
    const WRITE: u32 = 11;

    /// A xenstored in which no node is there, for one client: the kind and the
    /// path of each request (Xen `public/io/xs_wire.h`).
    fn xenstored(mut client: UnixStream) -> Vec<(u32, String)> {
        let mut requests = Vec::new();
        let mut header = [0; 16];
        while client.read_exact(&mut header).is_ok() {
            let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().unwrap());
            let mut payload = vec![0; word(12).try_into().unwrap()];
            client.read_exact(&mut payload).unwrap();
            let path = payload.split(|b| *b == 0).next().unwrap();
            requests.push((word(0), String::from_utf8(path.to_vec()).unwrap()));
            let (kind, answer) = match word(0) {
                RM => (ERROR, "ENOENT\0"),
                other => (other, "OK\0"),
            };
            let len = answer.len().try_into().unwrap();
            let words = [kind, word(4), word(8), len].map(u32::to_ne_bytes);
            client.write_all(words.as_flattened()).unwrap();
            client.write_all(answer.as_bytes()).unwrap();
        }
        requests
    }

    /// Where xenstored is, is said to a process as a whole: the test runs itself.
    #[test]
    fn what_a_predecessor_failed_of_goes_before_an_offer() {
        const ITSELF: &str = "stub::tests::what_a_predecessor_failed_of_goes_before_an_offer";
        const SOCKET: &str = "XENSTORED_PATH";
        if env::var_os("VGPU_TEST_OFFERS").is_some() {
            let text = "version=2 serial=3 comings=1 area=2660/9/4 life=5 control=34/8192/6";
            publish(&Xenstore::open().unwrap(), &text.parse().unwrap()).unwrap();
            return;
        }
        let socket = env::temp_dir().join(format!("vgpu-offers-{}", std::process::id()));
        let listener = UnixListener::bind(&socket).unwrap();
        let mut offers = Command::new(env::current_exe().unwrap())
            .args(["--exact", ITSELF])
            .env("VGPU_TEST_OFFERS", "1")
            .env(SOCKET, &socket)
            .spawn()
            .unwrap();
        let requests = xenstored(listener.accept().unwrap().0);
        std::fs::remove_file(&socket).unwrap();
        assert!(offers.wait().unwrap().success());
        let at = |name| format!("{STUB_FOLDER}/{name}");
        let expected = [(RM, at(STUB_FAILED)), (WRITE, at(STUB_OFFER))];
        assert_eq!(requests, expected);
    }
}
