//! The connection to vgpud.

use std::fmt;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use serde::de::DeserializeOwned;
use vgpu_control::{ClientRequest, Connection, ControlError, Reply};

/// How long vgpud may take for an answer. It asks a device model in turn,
/// which may take 2 s.
const LIMIT: Duration = Duration::from_secs(5);

/// Where vgpud is.
#[derive(clap::Args)]
pub struct Daemon {
    /// vgpud's socket.
    #[arg(long, default_value = vgpu_control::DEFAULT_SOCKET, value_name = "PATH")]
    socket: PathBuf,
}

impl Daemon {
    /// Asks vgpud.
    ///
    /// # Errors
    /// That it does not run, or what it said.
    pub fn ask<T: DeserializeOwned>(&self, request: &ClientRequest) -> anyhow::Result<T> {
        let connection = Connection::connect(&self.socket, LIMIT).map_err(unreached)?;
        connection.send(request, &[])?;
        let (reply, _) = connection.recv::<Reply<T>>().context("vgpud")?;
        reply.into_result().map_err(|e| Refusal(e).into())
    }
}

/// Why vgpud cannot be asked: its socket is root's.
fn unreached(error: ControlError) -> anyhow::Error {
    let why = match &error {
        ControlError::Socket { source, .. } if source.kind() == ErrorKind::PermissionDenied => {
            "only root may ask vgpud"
        }
        _ => "vgpud does not run, or not here",
    };
    anyhow::Error::from(error).context(why)
}

/// vgpud's reason for not doing it: there is a vgpud, unlike after any other
/// error.
#[derive(Debug)]
pub struct Refusal(pub String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_not_ask_is_told_so() {
        let error = |kind: ErrorKind| {
            let error = unreached(ControlError::Socket {
                what: "connect to /s".into(),
                source: kind.into(),
            });
            format!("{error:#}")
        };
        assert_eq!(
            error(ErrorKind::PermissionDenied),
            "only root may ask vgpud: cannot connect to /s: permission denied"
        );
        assert_eq!(
            error(ErrorKind::NotFound),
            "vgpud does not run, or not here: cannot connect to /s: entity not found"
        );
    }
}
