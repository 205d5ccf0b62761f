//! Panics of any thread, which must not be.
//!
//! A thread of the device model or of the scheduler that panics is seen by
//! nobody: its owner logs it and goes on. So they are counted here.

use std::cell::Cell;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

static PANICS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// A test's own thread: its panics have a reporter.
    static TEST: Cell<bool> = const { Cell::new(false) };
}

/// Counts panics from now on, but not those of this thread. Under a fuzzer,
/// whose own hook ends the process, this is not called.
pub fn count() {
    TEST.set(true);
    count_all();
}

/// Counts panics of every thread from now on.
pub fn count_all() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !TEST.get() {
                PANICS.fetch_add(1, Ordering::SeqCst);
            }
            before(info);
        }));
    });
}

/// Panics of other threads since [`count`].
#[must_use]
pub fn seen() -> usize {
    PANICS.load(Ordering::SeqCst)
}
