//! Tells systemd that vgpud listens, as its sd_notify(3) has it, so that what is
//! started after it finds it.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Says so to whoever has the socket `place`, the value of `NOTIFY_SOCKET`: a
/// path, or @ and an abstract name.
///
/// # Errors
/// When it is no such place, or nobody listens there.
pub fn ready(place: &OsStr) -> io::Result<()> {
    let address = match place.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(place)?,
    };
    UnixDatagram::unbound()?.send_to_addr(b"READY=1", &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_heard_at_a_path_and_at_an_abstract_name() {
        let name = format!("vgpud-notify-{}", std::process::id());
        let path = std::env::temp_dir().join(&name);
        let heard = |place: &OsStr, address: SocketAddr| {
            let systemd = UnixDatagram::bind_addr(&address).unwrap();
            ready(place).unwrap();
            let mut message = [0; 64];
            let length = systemd.recv(&mut message).unwrap();
            assert_eq!(&message[..length], b"READY=1");
        };
        heard(path.as_ref(), SocketAddr::from_pathname(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        assert!(ready(path.as_ref()).is_err());
        let place = format!("@{name}");
        heard(
            place.as_ref(),
            SocketAddr::from_abstract_name(name).unwrap(),
        );
    }
}
