//! The source's end.

use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam::channel::{self, Receiver, bounded};

use super::bucket::Bucket;
use super::pages::{MAX_PAGES, encode};
use super::{DONE, END, VERSION};
use crate::detect::Frame;
use crate::precopy::Sender;
use crate::stream::{Name, Section, StreamError, read_section};

/// Sections that wait to be sent. With those of a migration's threads, 4 MiB:
/// more would only be known to be sent later.
const QUEUED: usize = 32;

/// Bytes that go at once when the connection was idle.
const BURST: u32 = 64 << 10;

/// Bytes a second before any were seen to go, without a set bandwidth.
const GUESS: f64 = 1.25e9;

/// What was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Pages, as often as they were sent.
    pub pages: u64,
    /// Those of them that were zero, and went as a number.
    pub zero: u64,
    /// Bytes of all sections.
    pub bytes: u64,
}

#[derive(Default)]
struct Counts {
    pages: AtomicU64,
    zero: AtomicU64,
    /// Bytes given to the thread that writes.
    taken: AtomicU64,
    /// Bytes that it wrote, and the nanoseconds that it spent on that.
    written: AtomicU64,
    writing_ns: AtomicU64,
}

/// The source's end of a connection. A thread of its own writes, so that
/// sending goes on while pages are looked at.
pub struct Outgoing<S> {
    queue: Option<channel::Sender<Vec<u8>>>,
    counts: Arc<Counts>,
    bandwidth: Option<f64>,
    thread: Mutex<Option<JoinHandle<io::Result<S>>>>,
    failure: Mutex<Option<String>>,
}

impl<S: Read + Write + Send + 'static> Outgoing<S> {
    /// Over `stream`, at `bandwidth` bytes a second or as fast as it goes.
    ///
    /// # Errors
    /// When there is no thread for it.
    pub fn start(stream: S, bandwidth: Option<f64>) -> io::Result<Self> {
        let (queue, sections) = bounded(QUEUED);
        let counts = Arc::new(Counts::default());
        let thread = thread::Builder::new().name("vgpu-carrier".into()).spawn({
            let counts = Arc::clone(&counts);
            move || write_all(stream, &sections, bandwidth, &counts)
        })?;
        Ok(Self {
            queue: Some(queue),
            counts,
            bandwidth,
            thread: Mutex::new(Some(thread)),
            failure: Mutex::new(None),
        })
    }

    /// What was sent so far.
    #[must_use]
    pub fn sent(&self) -> Sent {
        Sent {
            pages: self.counts.pages.load(Ordering::Relaxed),
            zero: self.counts.zero.load(Ordering::Relaxed),
            bytes: self.counts.taken.load(Ordering::Relaxed),
        }
    }

    /// Sends a section of the vGPU's state.
    ///
    /// # Errors
    /// When the target cannot be reached any more.
    pub fn section(&self, section: &Section<'_>) -> io::Result<()> {
        let mut bytes = Vec::new();
        section.write(&mut bytes);
        self.push(bytes)
    }

    /// Ends what is sent, and waits until the target confirms that it has all
    /// of it. The guest is the target's then, and must not go on here.
    ///
    /// # Errors
    /// When it does not confirm. Unless it did and its word was lost, it has
    /// given up, too.
    pub fn finish(mut self) -> Result<Sent, StreamError> {
        let sent = self.sent();
        let mut body = [0; 16];
        body[..8].copy_from_slice(&sent.pages.to_le_bytes());
        body[8..].copy_from_slice(&sent.zero.to_le_bytes());
        self.section(&Section::required(END, VERSION, &body))?;
        let sent = self.sent();
        // The thread ends with the queue.
        self.queue = None;
        let mut stream = self.join()?;
        let done = read_section(&mut stream, 0, 0)?;
        match done.map(|section| section.name) {
            Some(DONE) => Ok(sent),
            Some(name) => Err(StreamError::Unknown {
                name,
                version: VERSION,
            }),
            None => Err(StreamError::Missing(DONE)),
        }
    }

    fn push(&self, bytes: Vec<u8>) -> io::Result<()> {
        let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        self.counts.taken.fetch_add(len, Ordering::Relaxed);
        match self.queue.as_ref().map(|queue| queue.send(bytes)) {
            Some(Ok(())) => Ok(()),
            // The thread has ended, and why is what it gives.
            _ => Err(self.failure()),
        }
    }

    fn join(&self) -> io::Result<S> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        match thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            _ => Err(io::Error::other("the connection has failed")),
        }
    }

    fn failure(&self) -> io::Error {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        let reason = failure.get_or_insert_with(|| match self.join() {
            Ok(_) => "the connection is closed".into(),
            Err(error) => error.to_string(),
        });
        io::Error::new(io::ErrorKind::BrokenPipe, reason.clone())
    }
}

impl<S: Read + Write + Send + 'static> Sender for Outgoing<S> {
    fn send(&self, frames: &[Frame<'_>]) -> io::Result<()> {
        for frames in frames.chunks(MAX_PAGES) {
            let (body, zero) = encode(frames);
            let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
            self.counts
                .pages
                .fetch_add(count(frames.len()), Ordering::Relaxed);
            self.counts.zero.fetch_add(count(zero), Ordering::Relaxed);
            self.section(&Section::required(Name::PAGES, VERSION, &body))?;
        }
        Ok(())
    }

    fn backlog(&self) -> Option<Duration> {
        let taken = self.counts.taken.load(Ordering::Relaxed);
        let written = self.counts.written.load(Ordering::Relaxed);
        let left = u32::try_from(taken.saturating_sub(written)).unwrap_or(u32::MAX);
        let seconds = f64::from(left) / self.bytes_per_second();
        Some(Duration::from_secs_f64(seconds))
    }

    fn bytes_per_second(&self) -> f64 {
        if let Some(bandwidth) = self.bandwidth {
            return bandwidth.max(1.0);
        }
        let written = Duration::from_nanos(self.counts.written.load(Ordering::Relaxed));
        let took = Duration::from_nanos(self.counts.writing_ns.load(Ordering::Relaxed));
        let speed = written.as_secs_f64() * 1e9 / took.as_secs_f64();
        if speed >= 1.0 && speed.is_finite() {
            speed
        } else {
            GUESS
        }
    }
}

/// Writes what comes, no faster than `bandwidth`; gives the stream back when
/// nothing more will come.
fn write_all<S: Write>(
    mut stream: S,
    sections: &Receiver<Vec<u8>>,
    bandwidth: Option<f64>,
    counts: &Counts,
) -> io::Result<S> {
    let start = Instant::now();
    let mut bucket = bandwidth.map(|bandwidth| Bucket::new(bandwidth, BURST));
    while let Ok(bytes) = sections.recv() {
        let began = Instant::now();
        // Pieces, so that a slow connection is slow all the time and not full
        // for a moment.
        for piece in bytes.chunks(64 << 10) {
            stream.write_all(piece)?;
            let len = u32::try_from(piece.len()).unwrap_or(u32::MAX);
            counts.written.fetch_add(len.into(), Ordering::Relaxed);
            if let Some(bucket) = &mut bucket {
                let gone = bucket.take(len, start.elapsed());
                thread::sleep(gone.saturating_sub(start.elapsed()));
            }
        }
        let took = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        counts.writing_ns.fetch_add(took, Ordering::Relaxed);
    }
    stream.flush()?;
    Ok(stream)
}
