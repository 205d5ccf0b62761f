//! Asks vgpud for the vGPU.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow};
use rustix::io::{FdFlags, fcntl_setfd};
use serde::de::DeserializeOwned;
use serde_json::Value;
use vgpu_control::{ClientRequest, Connection, QmpSockets, Register, Registered, Reply};

use crate::command_line::Guest;

/// How long vgpud may take to show that it is there: with what the domain's
/// creation takes, `xl create` is to fail within 2 s.
const ALIVE: Duration = Duration::from_secs(1);

/// How long it may take to attach the vGPU. libxl gives a device model 60 s.
const ATTACH: Duration = Duration::from_secs(55);

/// Returns when the guest's vGPU answers, with the file of an incoming one at
/// the place from where QEMU is to read it, and with what QEMU is to hold open
/// as long as it lives: a vgpud to come finds the vGPU's shared memory there.
///
/// # Errors
/// That nobody is there, or what vgpud said.
pub fn register(socket: &Path, guest: &Guest) -> anyhow::Result<(Option<File>, Vec<OwnedFd>)> {
    let connection = Connection::connect(socket, ALIVE).context("vgpud does not run")?;
    ask::<Value>(&connection, &ClientRequest::Ping, &[]).context("vgpud does not answer")?;
    connection.set_limit(Some(ATTACH))?;
    // Opened anew, with a file position of its own.
    let incoming = guest.incoming.map(|number| {
        let path = format!("/proc/self/fd/{number}");
        File::open(&path).with_context(|| format!("cannot read -incoming fd:{number}"))
    });
    let incoming = incoming.transpose()?;
    let request = ClientRequest::Register(Register {
        domid: guest.domid,
        vgpu: guest.spec.to_string(),
        qmp: guest
            .qmp
            .clone()
            .map(|(public, private)| QmpSockets { public, private }),
        incoming: incoming.is_some(),
    });
    let fds: Vec<BorrowedFd<'_>> = incoming.iter().map(AsFd::as_fd).collect();
    let (registered, held): (Registered, _) =
        ask(&connection, &request, &fds).context("no vGPU")?;
    for fd in &held {
        fcntl_setfd(fd, FdFlags::empty()).context("cannot leave a descriptor to QEMU")?;
    }
    if let Some(mut file) = incoming.as_ref() {
        file.seek(SeekFrom::Start(registered.incoming_at))
            .context("the file of -incoming")?;
    }
    Ok((incoming, held))
}

fn ask<T: DeserializeOwned>(
    connection: &Connection,
    request: &ClientRequest,
    fds: &[BorrowedFd<'_>],
) -> anyhow::Result<(T, Vec<OwnedFd>)> {
    connection.send(request, fds)?;
    let (reply, held) = connection.recv::<Reply<T>>()?;
    Ok((reply.into_result().map_err(|e| anyhow!(e))?, held))
}
