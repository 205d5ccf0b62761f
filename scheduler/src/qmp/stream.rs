//! Stream sockets that carry descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// The most descriptors of one call.
const MAX_FDS: usize = 16;

/// Receives what there is: a count of bytes, 0 at the end, and descriptors.
pub fn receive(from: &UnixStream, buf: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = retry_on_intr(|| {
        recvmsg(
            from,
            &mut [IoSliceMut::new(buf)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        )
    })?;
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::Error::other("more descriptors than can be passed"));
    }
    Ok((received.bytes, fds))
}

/// Sends all of `bytes`, `fds` with the first of them.
pub fn send(to: &UnixStream, mut bytes: &[u8], fds: &[OwnedFd]) -> io::Result<()> {
    let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    let mut rights: &[BorrowedFd<'_>] = &borrowed;
    while !bytes.is_empty() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        // With the first byte alone: a longer piece may be cut anywhere.
        let mut piece = bytes;
        if !rights.is_empty() {
            if !ancillary.push(SendAncillaryMessage::ScmRights(rights)) {
                return Err(io::Error::other("more descriptors than can be passed"));
            }
            piece = &bytes[..1];
        }
        let sent = retry_on_intr(|| {
            sendmsg(
                to,
                &[IoSlice::new(piece)],
                &mut ancillary,
                SendFlags::NOSIGNAL,
            )
        })?;
        bytes = bytes.get(sent..).unwrap_or_default();
        rights = &[];
    }
    Ok(())
}
