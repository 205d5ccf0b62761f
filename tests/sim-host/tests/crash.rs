//! A guest at work whose device model is killed ten thousand times.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use fake_xen::Vcpu;
use gen8::platform::BDW;
use gen8::vreg::pch;
use guest_driver::{Driver, Frames};
use sim_host::{Cpu, Death, MortalGuest, SimGuest, SimGuestConfig, SimHost, SimHostConfig};
use vgpu_device::{EDID_BYTES, Mode, edid};

/// Kills in all.
const KILLS: u64 = 10_000;

/// A sequence of numbers that looks like chance (xorshift64).
fn chance(seed: u64) -> impl FnMut() -> u64 {
    let mut x = seed;
    move || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    }
}

/// Where BAR0 is.
fn registers(vcpu: &Vcpu) -> u64 {
    let base = vcpu.pci_config_read(SimGuest::sbdf(), 0x10, 4).unwrap();
    u64::from(base & !0xf)
}

/// What a CPU does beside the driver's: it counts in a register, reading each
/// number back, and reads the monitor's identification, which each read moves
/// on. Done twice or not at all, either would show.
fn beside(vcpu: &Vcpu, done: &AtomicBool) -> u64 {
    const COUNTER: u64 = 0x10_0040;
    let base = registers(vcpu);
    let read = |at: u64| vcpu.mmio_read(base + at, 4).unwrap();
    let write = |at: u64, value: u64| vcpu.mmio_write(base + at, 4, value).unwrap();
    let mut count = 0;
    let expected = edid(Mode::default());
    while !done.load(SeqCst) {
        for _ in 0..16 {
            let there = read(COUNTER);
            if done.load(SeqCst) {
                return count;
            }
            assert_eq!(there, count);
            count = (count + 1) & 0xffff_ffff;
            write(COUNTER, count);
        }
        // Pin pair 5, then an indexed read of 128 bytes at 0x50.
        write(pch::GMBUS0.into(), 5);
        let command = 1_u64 << 30 | 1 << 25 | 1 << 26 | 128 << 16 | 0x50 << 1 | 1;
        write(pch::GMBUS1.into(), command);
        for bytes in expected.chunks(4) {
            let word = u32::from_le_bytes(bytes.try_into().unwrap());
            assert_eq!(read(pch::GMBUS3.into()), u64::from(word));
        }
        write(pch::GMBUS1.into(), 1 << 30 | 1 << 27);
        write(pch::GMBUS0.into(), 0);
    }
    assert_eq!(expected.len(), EDID_BYTES);
    count
}

/// Has the GPU work while `on`, and then with a device model that lives on.
fn work(vcpu: &Vcpu, on: impl Fn() -> bool) -> anyhow::Result<usize> {
    let mut driver = Driver::start_restless(Cpu(vcpu), Frames::new(256, 4096), 11)?;
    let mut requests = 0;
    let mut last = false;
    while !last {
        last = !on();
        for finished in driver.complete(if last { 20 } else { 4 })? {
            finished.result?;
            requests += 1;
        }
    }
    Ok(requests)
}

/// A host, and a guest with a CPU beside the driver's.
fn host() -> (SimHost, SimGuestConfig) {
    let host = SimHost::start(SimHostConfig {
        gpu: &BDW,
        ..SimHostConfig::default()
    });
    let config = SimGuestConfig {
        vcpus: 2,
        ..SimGuestConfig::default()
    };
    (host.unwrap(), config)
}

/// Has both CPUs of a guest work while `on`: how many requests came back, and
/// how far the other one counted. vgpud is not to see anything wrong.
fn serve(guest: &MortalGuest, on: impl Fn() -> bool) -> anyhow::Result<(usize, u64)> {
    let (first, second) = (guest.vcpu(0)?, guest.vcpu(1)?);
    let done = AtomicBool::new(false);
    let worked = std::thread::scope(|scope| {
        let beside = scope.spawn(|| beside(&second, &done));
        let requests = work(&first, on);
        done.store(true, SeqCst);
        Ok((requests?, beside.join().unwrap()))
    });
    assert_eq!(guest.link().failure(), None);
    assert_eq!(guest.link().handle().inspect().refusals, []);
    worked
}

#[test]
fn ten_thousand_kills_are_not_noticed() {
    let (host, config) = host();
    let mut next = chance(0x9e37_79b9_7f4a_7c15);
    let mut left = KILLS;
    // Some die while they take over, most a few requests later.
    let guest = MortalGuest::start(&host, &config, move || {
        left = left.checked_sub(1)?;
        let steps = next();
        Some(match steps % 4 {
            0 => steps / 4 % 40,
            1 => steps / 4 % 400,
            _ => steps / 4 % 120,
        })
    })
    .unwrap();
    let worked = serve(&guest, || guest.kills() < KILLS);
    let kills = guest.kills();
    guest.end().unwrap();
    let (requests, count) = worked.unwrap();
    assert!(kills >= KILLS);
    assert!(requests > 100, "{requests}");
    assert!(count > 100, "{count}");
}

/// Guests, and how often the domain of a device model dies in the life of each.
/// Xen 4.17 lets a guest have eight ioreq servers.
const GUESTS: u64 = 12;
const DOMAINS: u64 = 3;

/// Deaths of device models in domains of their own, now and then with that.
fn deaths(seed: u64) -> impl FnMut() -> Option<Death> {
    let mut next = chance(seed);
    let mut domains = DOMAINS;
    let mut since = 2;
    move || {
        let draw = next();
        since += 1;
        let (after, domain) = match since {
            // One that goes on in a new domain may die of that, which then costs
            // another domain, but not the next.
            1 => (draw / 4 % 200, false),
            2 => (20_000 + draw / 4 % 1000, false),
            _ => (draw / 4 % 300, domains > 0 && draw.is_multiple_of(4)),
        };
        if domain {
            domains -= 1;
            since = 0;
        }
        Some(Death { after, domain })
    }
}

#[test]
fn deaths_of_domains_are_not_noticed() {
    let (host, config) = host();
    let (mut gone, mut in_flight) = (0, 0);
    for number in 1..=GUESTS {
        let deaths = deaths(0x9e37_79b9_7f4a_7c15 ^ number << 32);
        let guest = MortalGuest::start_in_domains(&host, &config, deaths).unwrap();
        let worked = serve(&guest, || guest.domains_gone().0 < DOMAINS);
        let toll = guest.domains_gone();
        guest.end().unwrap();
        let (requests, count) = worked.unwrap();
        assert!(requests > 0 && count > 0, "{requests} {count}");
        gone += toll.0;
        in_flight += toll.1;
    }
    assert!(gone >= GUESTS * DOMAINS, "{gone}");
    // With a vCPU that waited for the domain's answer.
    assert!(in_flight > GUESTS, "{in_flight} of {gone}");
}
