//! What two threads with nothing but eventfds do, to compare with.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, write};

/// A thread that answers each signal with one.
pub struct PingPong {
    to: Arc<OwnedFd>,
    from: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// Tells the thread to end. Signals are counted, and it gets one at a time.
const END: u64 = 2;

impl PingPong {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system has no more descriptors or threads.
    pub fn start() -> anyhow::Result<Self> {
        let to = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let from = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let thread = thread::Builder::new().name("eventfd".into()).spawn({
            let (to, from) = (Arc::clone(&to), Arc::clone(&from));
            move || {
                while wait(&to) != END {
                    signal(&from, 1);
                }
            }
        })?;
        Ok(Self {
            to,
            from,
            thread: Some(thread),
        })
    }

    /// There and back.
    pub fn trip(&self) {
        signal(&self.to, 1);
        wait(&self.from);
    }
}

impl Drop for PingPong {
    fn drop(&mut self) {
        signal(&self.to, END);
        if let Some(thread) = self.thread.take() {
            // Its panic has been reported on standard error.
            let _ = thread.join();
        }
    }
}

fn signal(fd: &OwnedFd, count: u64) {
    // It can only fail on a full counter, which nobody fills.
    let _ = write(fd, &count.to_ne_bytes());
}

fn wait(fd: &OwnedFd) -> u64 {
    let mut count = [0; 8];
    loop {
        match read(fd, &mut count) {
            Ok(_) => return u64::from_ne_bytes(count),
            Err(rustix::io::Errno::INTR) => {}
            // Not a state an eventfd of ours can be in.
            Err(_) => return END,
        }
    }
}
