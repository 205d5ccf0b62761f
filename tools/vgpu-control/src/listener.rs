//! The listening end.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen,
    shutdown, socket_with,
};

use crate::{Connection, ControlError};

/// How many connections wait to be accepted.
const BACKLOG: i32 = 64;

/// Why nobody listens.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// A process listens there already.
    #[error("cannot listen at {}: another process does", .0.display())]
    Taken(PathBuf),
    /// A file that is no socket is there.
    #[error("cannot listen at {}: something else is there", .0.display())]
    NotASocket(PathBuf),
    /// The system refuses.
    #[error("cannot listen at {}", path.display())]
    System {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// A listening socket for its owner only. The file goes when it is dropped.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
}

impl Listener {
    /// Listens at `path`. A socket that nobody listens at any more is
    /// removed first.
    ///
    /// # Errors
    /// [`ListenError`] naming the path.
    pub fn bind(path: &Path) -> Result<Self, ListenError> {
        let failed = |source: io::Error| ListenError::System {
            path: path.to_owned(),
            source,
        };
        match std::fs::symlink_metadata(path) {
            Ok(meta) if meta.file_type().is_socket() => {
                // Only a socket without a listener refuses; one whose queue
                // is full lets callers wait.
                match Connection::connect(path, Duration::from_secs(1)) {
                    Err(ControlError::Socket { source, .. })
                        if source.kind() == io::ErrorKind::ConnectionRefused =>
                    {
                        std::fs::remove_file(path).map_err(failed)?;
                    }
                    _ => return Err(ListenError::Taken(path.to_owned())),
                }
            }
            Ok(_) => return Err(ListenError::NotASocket(path.to_owned())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(failed(e)),
        }
        let socket = (|| {
            let address = SocketAddrUnix::new(path)?;
            let socket = socket_with(
                AddressFamily::UNIX,
                SocketType::SEQPACKET,
                SocketFlags::CLOEXEC,
                None,
            )?;
            bind(&socket, &address)?;
            Ok(socket)
        })()
        .map_err(|e: rustix::io::Errno| failed(e.into()))?;
        // Nobody can connect before listen, so there is no moment with a
        // wider mode.
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).map_err(failed)?;
        listen(&socket, BACKLOG).map_err(|e| failed(e.into()))?;
        Ok(Self {
            socket,
            path: path.to_owned(),
        })
    }

    /// The next client.
    ///
    /// # Errors
    /// When there are no descriptors left, or after [`Listener::close`].
    pub fn accept(&self) -> io::Result<Connection> {
        Ok(accept_with(&self.socket, SocketFlags::CLOEXEC)?.into())
    }

    /// Lets nobody in any more, and ends an [`Listener::accept`] that waits
    /// (Linux `net/unix/af_unix.c:unix_accept`).
    pub fn close(&self) {
        // It cannot fail on a socket that listens.
        let _ = shutdown(self.socket.as_fd(), Shutdown::Both);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Somebody may have removed it.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClientRequest;

    #[test]
    fn one_listens_and_its_file_goes_with_it() {
        let dir = std::env::temp_dir().join(format!("vgpu-control-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("sock");
        let listener = Listener::bind(&path).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let client = Connection::connect(&path, Duration::from_secs(1)).unwrap();
        client.send(&ClientRequest::Ping, &[]).unwrap();
        let server = listener.accept().unwrap();
        assert_eq!(server.peer().unwrap().pid, std::process::id().cast_signed());
        assert_eq!(
            server.recv::<ClientRequest>().unwrap().0,
            ClientRequest::Ping
        );
        assert!(matches!(
            Listener::bind(&path),
            Err(ListenError::Taken(p)) if p == path
        ));
        // The second one's look at the first is a connection as well.
        drop(listener.accept().unwrap());
        listener.close();
        assert!(listener.accept().is_err());
        drop(listener);
        assert!(!path.exists());
        // A process that listens and is too busy to accept.
        let busy = Listener::bind(&path).unwrap();
        listen(&busy.socket, 0).unwrap();
        let _queued = Connection::connect(&path, Duration::from_secs(1)).unwrap();
        assert!(matches!(Listener::bind(&path), Err(ListenError::Taken(_))));
        assert!(path.exists());
        drop(busy);
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(
            Listener::bind(&path),
            Err(ListenError::NotASocket(_))
        ));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
