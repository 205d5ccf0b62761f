//! How fast the toolstack sends a guest's memory.
//!
//! libxl has a process of its own do it, `libxl-save-helper`, a child of
//! the process whose QMP client we see (Xen libxl_save_callout.c). What a
//! process has written is in its `/proc/PID/io`.

use std::fs;
use std::time::{Duration, Instant};

/// The helper's name, as long as the kernel keeps one.
const HELPER: &str = "libxl-save-helpe";

/// What a rate is made of, at least. Before a pass over memory has begun there
/// is little to see.
const ENOUGH: u64 = 1 << 20;

/// A rate is that of about this time.
const WINDOW: Duration = Duration::from_secs(2);

/// What the toolstack in one process sends.
#[derive(Debug)]
pub struct Sender {
    toolstack: i32,
    helper: Option<i32>,
    /// When it was looked at, and the bytes by then.
    first: Option<(Instant, u64)>,
    last: Option<(Instant, u64)>,
    rate: Option<u64>,
}

impl Sender {
    /// Nothing seen yet of the toolstack in process `toolstack`.
    pub fn new(toolstack: i32) -> Self {
        Self {
            toolstack,
            helper: None,
            first: None,
            last: None,
            rate: None,
        }
    }

    /// Looks again.
    pub fn look(&mut self) {
        self.helper = self.helper.or_else(|| helper_of(self.toolstack));
        if let Some(bytes) = self.helper.and_then(written) {
            self.seen(Instant::now(), bytes);
        }
    }

    fn seen(&mut self, now: Instant, bytes: u64) {
        let &mut (begin, before) = self.first.get_or_insert((now, bytes));
        self.last = Some((now, bytes));
        let sent = bytes.saturating_sub(before);
        let time = now.saturating_duration_since(begin);
        if sent < ENOUGH || time < WINDOW / 4 {
            return;
        }
        let per_second = u128::from(sent) * 1_000_000_000 / time.as_nanos().max(1);
        self.rate = u64::try_from(per_second).ok();
        if time >= WINDOW {
            self.first = self.last;
        }
    }

    /// Bytes a second, lately, once some memory was sent.
    pub fn rate(&self) -> Option<u64> {
        self.rate
    }
}

/// The child of a process that sends.
fn helper_of(parent: i32) -> Option<i32> {
    let tasks = fs::read_dir(format!("/proc/{parent}/task")).ok()?;
    for task in tasks.flatten() {
        let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace() {
            let name = fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
            if name
                .trim_end()
                .starts_with(HELPER.get(..15).unwrap_or(HELPER))
            {
                return child.parse().ok();
            }
        }
    }
    None
}

/// Bytes a process has written so far.
fn written(pid: i32) -> Option<u64> {
    let io = fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    let line = io.lines().find_map(|line| line.strip_prefix("wchar: "))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_that_of_the_last_seconds() {
        let mut sender = Sender::new(1);
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        sender.seen(at(0), 4096);
        sender.seen(at(1000), 9000);
        // Too little to tell.
        assert_eq!(sender.rate(), None);
        sender.seen(at(2000), 4096 + (200 << 20));
        assert_eq!(sender.rate(), Some(100 << 20));
        sender.seen(at(3000), 4096 + (210 << 20));
        assert_eq!(sender.rate(), Some(10 << 20));
    }

    #[test]
    fn a_process_without_a_helper_sends_nothing() {
        let own = i32::try_from(std::process::id()).unwrap();
        let mut sender = Sender::new(own);
        sender.look();
        assert_eq!((sender.helper, sender.rate()), (None, None));
        assert!(written(own).is_some());
    }
}
