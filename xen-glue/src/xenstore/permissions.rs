//! Who owns a node.
//!
//! `xenstore-rs` knows no permissions, so this speaks the wire format itself
//! (Xen `docs/misc/xenstore.txt`, SET_PERMS).

use std::io;

use super::XenstoreError;
use super::watch::{Connection, invalid};
use crate::DomId;

/// A SET_PERMS request: the first entry names the owner, who may always do
/// anything, and what those may who are not named: nothing.
fn request(path: &str, owner: DomId) -> io::Result<Vec<u8>> {
    let payload = format!("{path}\0n{}\0", owner.0);
    let len = u32::try_from(payload.len())
        .ok()
        .filter(|n| *n <= xen_sys::XENSTORE_PAYLOAD_MAX)
        .ok_or_else(|| invalid(format!("path of {} bytes", path.len())))?;
    let mut bytes = Vec::new();
    for dword in [xen_sys::XS_SET_PERMS, 1, 0, len] {
        bytes.extend(dword.to_ne_bytes());
    }
    bytes.extend(payload.as_bytes());
    Ok(bytes)
}

pub(super) fn give(path: &str, owner: DomId) -> Result<(), XenstoreError> {
    let set = || -> io::Result<()> {
        let mut connection = Connection::open()?;
        connection.send(&request(path, owner)?)?;
        let answer = connection.message()?;
        match answer.kind {
            xen_sys::XS_SET_PERMS => Ok(()),
            xen_sys::XS_ERROR => {
                let name = answer.payload.split(|b| *b == 0).next();
                let name = String::from_utf8_lossy(name.unwrap_or_default());
                Err(io::Error::other(name.into_owned()))
            }
            kind => Err(invalid(format!("message of type {kind}"))),
        }
    };
    set().map_err(|source| XenstoreError {
        op: "give to a domain",
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_names_the_owner_alone() {
        let bytes = request("/a", DomId(7)).unwrap();
        let mut expected = Vec::new();
        for dword in [xen_sys::XS_SET_PERMS, 1, 0, 6] {
            expected.extend(u32::to_ne_bytes(dword));
        }
        expected.extend(b"/a\0n7\0");
        assert_eq!(bytes, expected);
        assert!(request(&"x".repeat(5000), DomId(7)).is_err());
    }
}
