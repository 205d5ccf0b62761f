//! What vgpud says, and the answers: over a socket where there is one host,
//! over a pipe in shared memory where there are two domains.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::OwnedFd;

use anyhow::{Context, bail};
use vgpu_control::{Connection, ControlError, FromDm, MAX_DEVICE, PipeConnection, ToDm};
use vgpu_device::DeviceV1;

/// The way to vgpud.
pub enum Control {
    /// A socket.
    Socket(Connection),
    /// A pipe.
    Pipe(Box<PipeConnection>),
}

/// What came with a message.
#[derive(Debug)]
pub enum Came {
    /// Descriptors, over a socket.
    Descriptors(Vec<OwnedFd>),
    /// Bytes, over a pipe.
    Bytes(Vec<u8>),
}

impl Control {
    /// The next message, and what came with it.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn recv(&self) -> Result<(ToDm, Came), ControlError> {
        match self {
            Self::Socket(socket) => {
                let (message, fds) = socket.recv()?;
                Ok((message, Came::Descriptors(fds)))
            }
            Self::Pipe(pipe) => {
                let (message, bytes) = pipe.recv_with(MAX_DEVICE)?;
                Ok((message, Came::Bytes(bytes)))
            }
        }
    }

    /// Answers.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn send(&self, message: &FromDm) -> Result<(), ControlError> {
        match self {
            Self::Socket(socket) => socket.send(message, &[]),
            Self::Pipe(pipe) => pipe.send(message),
        }
    }

    /// Answers a question for the device's state, with which `came` came.
    ///
    /// # Errors
    /// What vgpud is to hear instead.
    pub fn send_device(&self, came: Came, device: &DeviceV1) -> anyhow::Result<()> {
        match (self, came) {
            (Self::Socket(socket), Came::Descriptors(fds)) => {
                let file = fds.into_iter().next().context("no file came along")?;
                let mut file = BufWriter::new(File::from(file));
                serde_json::to_writer(&mut file, device)?;
                file.flush()?;
                Ok(socket.send(&FromDm::Saved, &[])?)
            }
            (Self::Pipe(pipe), _) => {
                let bytes = serde_json::to_vec(device)?;
                Ok(pipe.send_with(&FromDm::Saved, &bytes)?)
            }
            (Self::Socket(_), Came::Bytes(_)) => bail!("no file came along"),
        }
    }
}

impl Control {
    /// As [`vgpu_dm::PageKeeper::page_at`].
    ///
    /// # Errors
    /// What vgpud says, or that it says nothing.
    pub fn page_at(&self, gfn: u64) -> io::Result<()> {
        self.tell(&FromDm::PageAt { gfn })
    }

    /// As [`vgpu_dm::PageKeeper::enabled`].
    ///
    /// # Errors
    /// As [`Self::page_at`].
    pub fn enabled(&self) -> io::Result<()> {
        self.tell(&FromDm::Enabled)
    }

    /// Tells, and waits for the order to proceed.
    fn tell(&self, message: &FromDm) -> io::Result<()> {
        self.send(message).map_err(io::Error::other)?;
        match self.recv().map_err(io::Error::other)? {
            (ToDm::Proceed, _) => Ok(()),
            (other, _) => Err(io::Error::other(format!(
                "vgpud answered {other:?}, allowed: proceed"
            ))),
        }
    }
}

/// A device from the file it was saved in.
///
/// # Errors
/// When it is no device, or too long for one.
pub fn read_device(file: impl Read) -> anyhow::Result<DeviceV1> {
    let most = u64::try_from(MAX_DEVICE).unwrap_or(u64::MAX);
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes)?)
}
