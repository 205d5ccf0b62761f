//! Guests whose page tables change with each request, in each way of
//! following them. Every result is checked by the CPU.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use fake_xen::Vcpu;
use guest_driver::{Driver, Frames, Platform};
use guest_memory::{Gfn, GuestMemory, MemoryError};
use sim_host::{SimGuest, SimGuestConfig, SimHost, SimHostConfig};
use vgpu_sched::ppgtt::{Costs, ShadowConfig, ShadowMode, TableCounts};

fn host(mode: ShadowMode, trap_ns: u32) -> SimHost {
    let costs = Costs {
        trap_ns,
        compare_ns: 1000,
        protect_ns: 1000,
    };
    let shadow = ShadowConfig {
        mode,
        costs,
        fixed_costs: true,
    };
    SimHost::start(SimHostConfig {
        shadow,
        ..SimHostConfig::default()
    })
    .unwrap()
}

/// Memory that is written by one vCPU after another, as threads of a driver
/// move between them.
struct ByTurns {
    vcpus: Vec<Vcpu>,
    turn: AtomicUsize,
}

impl ByTurns {
    fn vcpu(&self) -> &Vcpu {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        &self.vcpus[turn % self.vcpus.len()]
    }
}

impl GuestMemory for ByTurns {
    fn read(&self, gpa: u64, buf: &mut [u8]) -> Result<(), MemoryError> {
        self.vcpu().read(gpa, buf)
    }

    fn write(&self, gpa: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.vcpu().write(gpa, data)
    }
}

/// A guest whose driver runs on several vCPUs; its registers are the first
/// one's.
struct OnVcpus<'a> {
    guest: &'a SimGuest,
    memory: ByTurns,
}

impl<'a> OnVcpus<'a> {
    fn new(guest: &'a SimGuest, vcpus: std::ops::Range<u32>) -> Self {
        let vcpus = vcpus.map(|n| guest.domain().vcpu(n).unwrap()).collect();
        let turn = AtomicUsize::new(0);
        let memory = ByTurns { vcpus, turn };
        Self { guest, memory }
    }
}

impl Platform for OnVcpus<'_> {
    fn memory(&self) -> &dyn GuestMemory {
        &self.memory
    }

    fn config_read(&mut self, register: u16, size: u8) -> u32 {
        self.guest.config_read(register, size)
    }

    fn config_write(&mut self, register: u16, size: u8, value: u32) {
        self.guest.config_write(register, size, value);
    }

    fn mmio_read(&mut self, address: u64, size: u8) -> u64 {
        self.guest.mmio_read(address, size)
    }

    fn mmio_write(&mut self, address: u64, size: u8, value: u64) {
        self.guest.mmio_write(address, size, value);
    }

    fn wait_interrupt(&mut self, timeout: Duration) -> bool {
        self.guest.wait_interrupt(timeout)
    }
}

/// Runs `requests` requests on every engine and checks each.
fn work(guest: &SimGuest, seed: u64, requests: usize) {
    work_on(guest, guest, seed, requests, |_| {});
}

/// The same on a platform that is the guest. `tables` is told where the
/// tables of buffers are.
fn work_on<P: Platform>(
    guest: &SimGuest,
    platform: P,
    seed: u64,
    requests: usize,
    tables: impl FnOnce(Vec<u64>),
) {
    let mut driver = Driver::start_restless(platform, Frames::new(256, 4096), seed).unwrap();
    tables(driver.tables().unwrap());
    for done in driver.complete(requests).unwrap() {
        done.result.unwrap();
    }
    assert_eq!(guest.failure(), None);
    assert_eq!(guest.scheduled().refusals, []);
}

fn run(mode: ShadowMode, trap_ns: u32) -> TableCounts {
    let host = host(mode, trap_ns);
    let guest = SimGuest::start(&host, &SimGuestConfig::default()).unwrap();
    work(&guest, 3, 60);
    let counts = guest.scheduled().tables;
    let traps = guest.server().protection();
    assert_eq!(traps.writes > 0, counts.traps > 0);
    counts
}

#[test]
fn lazy() {
    let counts = run(ShadowMode::Lazy, 5000);
    assert_eq!((counts.traps, counts.protects, counts.spared), (0, 0, 0));
    assert!(counts.compared > 240, "{counts:?}");
}

#[test]
fn strict() {
    let counts = run(ShadowMode::Strict, 5000);
    assert!(counts.traps > 1000, "{counts:?}");
    assert!(counts.spared > 0, "{counts:?}");
    // Tables were taken out, and their pages were other memory then.
    assert!(counts.unlinked > 0, "{counts:?}");
}

#[test]
fn adaptive_where_traps_are_dear_and_where_they_are_cheap() {
    let dear = run(ShadowMode::Adaptive, 50_000);
    assert_eq!(dear.traps, 0, "{dear:?}");
    // So cheap that tables which hardly change are protected, and the ones
    // that do for a while.
    let cheap = run(ShadowMode::Adaptive, 100);
    assert!(cheap.protects > 0 && cheap.spared > 0, "{cheap:?}");
}

#[test]
fn guests_side_by_side_in_each_mode() {
    for mode in ShadowMode::ALL {
        let host = host(mode, 200);
        std::thread::scope(|scope| {
            for id in 1..=3 {
                let host = &host;
                scope.spawn(move || {
                    let guest = SimGuest::start(host, &SimGuestConfig::default()).unwrap();
                    work(&guest, id, 20);
                });
            }
        });
    }
}

#[test]
fn while_xen_logs_writes_tables_are_followed_lazily() {
    let host = host(ShadowMode::Strict, 5000);
    let guest = SimGuest::start(&host, &SimGuestConfig::default()).unwrap();
    guest.domain().enable_log_dirty().unwrap();
    work(&guest, 4, 30);
    let counts = guest.scheduled().tables;
    assert_eq!((counts.protected, counts.traps), (0, 0));
    assert!(counts.refused > 0);
    assert!(!guest.server().protection().offered);
}

/// Several vCPUs write the tables of requests; others write entries that no
/// request uses, in the same tables, without a pause: the submit ring is never
/// empty, and vgpud always behind.
fn many_vcpus(mode: ShadowMode, seed: u64, requests: usize) -> TableCounts {
    let host = host(mode, 500);
    let config = SimGuestConfig {
        vcpus: 4,
        ..SimGuestConfig::default()
    };
    let guest = SimGuest::start(&host, &config).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let noise = |tables: Vec<u64>| {
            let vcpu = guest.domain().vcpu(3).unwrap();
            let done = &done;
            scope.spawn(move || {
                let mut n = 0_u64;
                while !done.load(Ordering::Relaxed) {
                    for table in &tables {
                        n += 1;
                        // Behind what any buffer's address uses.
                        let at = table + 8 * (384 + n % 100);
                        vcpu.write_u64(at, (n % 4096) << 12 | 3).unwrap();
                    }
                }
            });
        };
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _stop = Stop(&done);
        let platform = OnVcpus::new(&guest, 0..3);
        work_on(&guest, platform, seed, requests, noise);
    });
    guest.scheduled().tables
}

#[test]
fn several_vcpus_write_tables_in_each_mode() {
    for mode in ShadowMode::ALL {
        for seed in 0..3 {
            let counts = many_vcpus(mode, seed, 60);
            match mode {
                ShadowMode::Strict => assert!(counts.traps > 1000, "{counts:?}"),
                ShadowMode::Lazy => assert_eq!(counts.traps, 0, "{counts:?}"),
                ShadowMode::Adaptive => {}
            }
        }
    }
}

/// What a migration does to a guest at work.
#[test]
fn protection_is_held_back_and_comes_again_under_work() {
    let host = host(ShadowMode::Strict, 5000);
    let guest = SimGuest::start(&host, &SimGuestConfig::default()).unwrap();
    let done = AtomicBool::new(false);
    let mut came = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            work(&guest, 9, 100);
            done.store(true, Ordering::Relaxed);
        });
        while !done.load(Ordering::Relaxed) {
            guest.server().hold_protection().unwrap();
            assert_eq!(guest.server().protection().frames, 0);
            guest.domain().enable_log_dirty().unwrap();
            std::thread::yield_now();
            guest.domain().disable_log_dirty();
            guest.server().allow_protection();
            while guest.server().protection().frames == 0 && !done.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            came += u32::from(guest.server().protection().frames > 0);
        }
    });
    assert!(came > 0);
}

/// A host that is short of memory, and a guest that was started with less than
/// it may have: many of its frames are not there when they are looked for.
#[test]
fn frames_that_are_away_or_never_were_there_are_no_trouble() {
    for mode in ShadowMode::ALL {
        let host = host(mode, 200);
        let guest = SimGuest::start(&host, &SimGuestConfig::default()).unwrap();
        for gfn in 256..4096 {
            match gfn % 3 {
                0 => guest.domain().page_out(Gfn(gfn), 2).unwrap(),
                1 => guest.domain().populate_on_demand(Gfn(gfn)).unwrap(),
                _ => {}
            }
        }
        work(&guest, 5, 30);
        assert_eq!(guest.domain().stopped(), None);
    }
}
