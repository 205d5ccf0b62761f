//! Whether a device model that lives also works.
//!
//! A loaded machine must not look like a hung process. So no answer is waited
//! for by the clock alone: one is hung when it is stopped; when a thread has
//! used up its time on the processor at one and the same thing; or when it has
//! something in hand and none of its threads even wants the processor.
//!
//! vgpud looks at those in dom0, the first process of a domain made for a device
//! model at the one there.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use vgpu_ring::KeptPart;
use vgpu_ring::layout::kept::VCPUS;

/// How often it is looked at.
pub const EVERY: Duration = Duration::from_millis(250);

/// Milliseconds of a tick in /proc: USER_HZ is 100 on every x86
/// (Linux `arch/x86/include/uapi/asm/param.h`).
const TICK_MS: u64 = 10;

/// The thread that hears vgpud.
const EVENTS: &str = "events";

/// A thread as the kernel tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Thread {
    /// R, S, D, T and others (`man 5 proc_pid_stat`).
    state: char,
    /// Time on a processor.
    ran: Duration,
}

/// The threads by name.
type Threads = BTreeMap<String, Thread>;

/// What one thread has had in hand at each look.
#[derive(Clone, Copy, Debug)]
struct InHand {
    what: u64,
    since: Instant,
    ran: Duration,
    /// No thread has wanted the processor at any look since then.
    asleep: Option<Instant>,
}

/// Watches one device model.
pub struct Heartbeat {
    limit: Duration,
    pid: i32,
    kept: KeptPart,
    in_hand: Vec<Option<InHand>>,
    stopped: Option<Instant>,
    /// It has been seen with all its threads.
    serves: bool,
}

impl Heartbeat {
    /// Watches process `pid`, which may be at one thing for `limit`.
    pub fn new(limit: Duration, pid: i32, kept: KeptPart) -> Self {
        Self {
            limit,
            pid,
            kept,
            in_hand: vec![None; VCPUS + 1],
            stopped: None,
            serves: false,
        }
    }

    /// Looks; says what is wrong. To be called every [`EVERY`].
    pub fn look(&mut self) -> Option<String> {
        let threads = threads(self.pid)?;
        let in_hand = self.kept.in_hand(VCPUS);
        self.judge(Instant::now(), &in_hand, &threads)
    }

    fn judge(
        &mut self,
        now: Instant,
        in_hand: &[Option<u64>],
        threads: &Threads,
    ) -> Option<String> {
        let all = |states: &[char]| threads.values().all(|t| states.contains(&t.state));
        if all(&['T']) {
            let since = *self.stopped.get_or_insert(now);
            if now.duration_since(since) >= self.limit / 2 {
                return Some("it is stopped".into());
            }
        } else {
            self.stopped = None;
        }
        // It starts this one last. Before, what is in hand is what its predecessor
        // left there.
        self.serves |= threads.contains_key(EVENTS);
        if !self.serves {
            return None;
        }
        let asleep = all(&['S', 'D']);
        for (n, (held, what)) in self.in_hand.iter_mut().zip(in_hand).enumerate() {
            let name = if n == VCPUS {
                EVENTS.to_owned()
            } else {
                format!("vcpu{n}")
            };
            let Some(what) = *what else {
                *held = None;
                continue;
            };
            let thread = threads.get(&name);
            let ran = thread.map_or(Duration::ZERO, |t| t.ran);
            let held = match held {
                Some(held) if held.what == what => held,
                held => held.insert(InHand {
                    what,
                    since: now,
                    ran,
                    asleep: None,
                }),
            };
            held.asleep = asleep.then(|| held.asleep.unwrap_or(now));
            let at_it = ran.saturating_sub(held.ran);
            let long = |since: Instant| now.duration_since(since) >= self.limit;
            if at_it >= self.limit {
                let ms = at_it.as_millis();
                return Some(format!("its thread {name} ran for {ms} ms at one thing"));
            }
            if held.asleep.is_some_and(long) {
                return Some(format!("its thread {name} waits for something in vain"));
            }
            if thread.is_none() && long(held.since) {
                return Some(format!("its thread {name} is gone"));
            }
        }
        None
    }
}

/// The threads of a process, unless it is gone.
fn threads(pid: i32) -> Option<Threads> {
    let mut threads = Threads::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let stat = entry.ok().map(|e| e.path().join("stat"));
        // One that ends meanwhile is none.
        let Some(stat) = stat.and_then(|path| fs::read_to_string(path).ok()) else {
            continue;
        };
        if let Some((name, thread)) = thread(&stat) {
            threads.insert(name, thread);
        }
    }
    (!threads.is_empty()).then_some(threads)
}

/// A thread's name, state and time from its line in /proc.
fn thread(stat: &str) -> Option<(String, Thread)> {
    let (before, after) = stat.split_at(stat.rfind(')')?);
    let name = before.split_once('(')?.1;
    let fields: Vec<&str> = after.get(1..)?.split_whitespace().collect();
    let state = fields.first()?.chars().next()?;
    // utime and stime are fields 14 and 15; the state is field 3.
    let ticks = |n: usize| fields.get(n)?.parse::<u64>().ok();
    let ticks = ticks(11)?.saturating_add(ticks(12)?);
    let ran = Duration::from_millis(ticks.saturating_mul(TICK_MS));
    Some((name.to_owned(), Thread { state, ran }))
}

#[cfg(test)]
mod tests {
    use vgpu_ring::{AreaConfig, Bells, SharedArea};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(1);

    struct Process {
        watch: Heartbeat,
        start: Instant,
        now: Duration,
        in_hand: Vec<Option<u64>>,
        threads: Threads,
    }

    impl Process {
        fn new() -> Self {
            let area = SharedArea::create(AreaConfig::default()).unwrap();
            let kept = area.daemon_end(Bells::new().unwrap()).kept;
            let thread = Thread {
                state: 'S',
                ran: Duration::ZERO,
            };
            let names = ["vgpu-dm", "vcpu0", "vcpu1", "events"];
            Self {
                watch: Heartbeat::new(LIMIT, 0, kept),
                start: Instant::now(),
                now: Duration::ZERO,
                in_hand: vec![None; VCPUS + 1],
                threads: names.map(|n| (n.to_owned(), thread)).into(),
            }
        }

        /// Looks `n` times, calling `between` before each.
        fn looks(&mut self, n: u32, mut between: impl FnMut(&mut Self, u64)) -> Option<String> {
            for i in 0..n {
                self.now += EVERY;
                between(self, i.into());
                let now = self.start + self.now;
                let wrong = self.watch.judge(now, &self.in_hand, &self.threads);
                if wrong.is_some() {
                    return wrong;
                }
            }
            None
        }

        fn thread(&mut self, name: &str) -> &mut Thread {
            self.threads.get_mut(name).unwrap()
        }
    }

    #[test]
    fn one_that_works_or_waits_for_work_is_well() {
        let mut p = Process::new();
        assert_eq!(p.looks(100, |_, _| {}), None);
        // Always busy, always with something else.
        let busy = p.looks(100, |p, n| {
            p.in_hand[0] = Some(n);
            p.thread("vcpu0").ran += EVERY;
        });
        assert_eq!(busy, None);
    }

    #[test]
    fn one_that_gets_no_processor_is_well() {
        let mut p = Process::new();
        p.in_hand[0] = Some(7);
        p.in_hand[1] = Some(7);
        // The second waits for the first, which is not let run.
        p.thread("vcpu0").state = 'R';
        assert_eq!(p.looks(1000, |_, _| {}), None);
        // A little at a time.
        let slow = p.looks(60, |p, _| p.thread("vcpu0").ran += EVERY / 64);
        assert_eq!(slow, None);
    }

    #[test]
    fn one_that_hangs_is_found() {
        let mut stopped = Process::new();
        for thread in stopped.threads.values_mut() {
            thread.state = 'T';
        }
        assert!(stopped.looks(4, |_, _| {}).unwrap().contains("stopped"));
        let mut busy = Process::new();
        busy.in_hand[VCPUS] = Some(1);
        busy.thread("events").state = 'R';
        let wrong = busy.looks(6, |p, _| p.thread("events").ran += EVERY);
        assert!(wrong.unwrap().contains("events ran"));
        let mut locked = Process::new();
        locked.in_hand[1] = Some(1);
        assert!(locked.looks(6, |_, _| {}).unwrap().contains("vcpu1 waits"));
        let mut gone = Process::new();
        gone.in_hand[1] = Some(1);
        gone.thread("vcpu0").state = 'R';
        gone.threads.remove("vcpu1");
        assert!(gone.looks(6, |_, _| {}).unwrap().contains("vcpu1 is gone"));
    }

    #[test]
    fn what_a_predecessor_left_in_hand_is_not_a_successors() {
        let mut p = Process::new();
        p.in_hand[0] = Some(7);
        let mut threads = std::mem::take(&mut p.threads);
        // It waits for vgpud, as long as that takes; then it attaches.
        for names in [&["vgpu-dm"][..], &["vgpu-dm", "vcpu0"]] {
            for name in names {
                p.threads.extend(threads.remove_entry(*name));
            }
            assert_eq!(p.looks(100, |_, _| {}), None);
        }
        // Now it is the vCPU's thread that is at it.
        p.threads.append(&mut threads);
        assert_eq!(p.looks(4, |_, _| {}), None);
        assert!(p.looks(1, |_, _| {}).unwrap().contains("vcpu0 waits"));
    }

    #[test]
    fn a_stopped_process_shows() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(!threads(own).unwrap().is_empty());
        let line = "7 (vcpu (0)) T 1 7 7 0 -1 4194304 0 0 0 0 150 50 0 0 20 0 5 0";
        let (name, thread) = thread(line).unwrap();
        assert_eq!((name.as_str(), thread.state), ("vcpu (0)", 'T'));
        assert_eq!(thread.ran, Duration::from_secs(2));
    }
}
