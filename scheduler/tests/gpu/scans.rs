//! Batches without privilege: looked at, and by whom what is wrong is seen.

use gen8::cmd::mi_op;
use gen8::{Engine, ring};
use gpu_bus::Gpu;
use vgpu_ring::FaultReason;
use vgpu_sched::scan::ScanMode;
use vgpu_sched::vgpu::VgpuConfig;

use crate::driver::{Context, Guest, Host, cmd};

const RCS: u8 = 1;
const CODE: u64 = 1 << 20;
const DATA: u64 = 2 << 20;

fn guest(host: &Host, scan: ScanMode) -> Guest {
    let config = VgpuConfig {
        id: 1,
        scan,
        ..VgpuConfig::default()
    };
    Guest::with(&host.scheduler, config, 512)
}

/// A context that runs `words` as a batch; where its data is.
fn batch(guest: &mut Guest, words: &[u32]) -> (Context, u64) {
    let mut c = guest.context(Engine::Rcs, 1);
    let (code, data) = (guest.pages(1), guest.pages(1));
    guest.map(&c, CODE, code);
    guest.map(&c, DATA, data);
    guest.write_words(code, words);
    guest.emit(&mut c, &cmd::batch(CODE));
    (c, data)
}

/// Stores, and does one thing that needs privilege.
fn wrong() -> Vec<u32> {
    let mut words = cmd::store(DATA, 7).to_vec();
    words.extend(cmd::load_register(0x2230, 5));
    words.push(cmd::BATCH_END);
    words
}

#[test]
fn a_refusal_costs_one_context_and_says_why() {
    let host = Host::new();
    let mut guest = guest(&host, ScanMode::Refuse);
    let (c, data) = batch(&mut guest, &wrong());
    let header = cmd::load_register(0, 0)[0];
    assert_eq!(guest.fails(&c), (FaultReason::Refused, header));
    assert_eq!(guest.read(data), 0, "it did not run");
    // What an admin sees: vgpuctl inspect prints this.
    let view = serde_json::to_value(guest.handle.inspect()).unwrap();
    let lrca = c.descriptor & 0xffff_f000;
    assert_eq!(
        view["refusals"],
        serde_json::json!([{
            "engine": "rcs0",
            "context": format!("{lrca:#010x}"),
            "command": "MI_LOAD_REGISTER_IMM (0x11000001)",
            "place": "the context's address 0x100010",
            "reason": "register 0x2230 is not written without privilege",
            "times": 1,
        }])
    );
    // Another context waits behind the reset that i915 makes, on that engine
    // alone.
    let (other, other_data) = batch(&mut guest, &{
        let mut words = cmd::store(DATA, 9).to_vec();
        words.push(cmd::BATCH_END);
        words
    });
    let mut video = guest.context(Engine::Vcs, 1);
    let (gpa, address) = guest.global_page();
    guest.emit(&mut video, &cmd::store_global(address, 3));
    guest.run(&video);
    assert_eq!(guest.read(gpa), 3);
    guest.reset(RCS);
    guest.run(&other);
    assert_eq!(guest.read(other_data), 9);
    // Nobody else was touched, and the GPU was not reset for it.
    assert_eq!(host.scheduler.inspect().engines[0].resets, 0);
}

#[test]
fn what_is_noted_runs() {
    let host = Host::new();
    let mut guest = guest(&host, ScanMode::Note);
    let (mut c, data) = batch(&mut guest, &wrong());
    guest.run(&c);
    assert_eq!(guest.read(data), 7);
    let ignored = host.gpu.counters().engines[0].unprivileged;
    assert_eq!(ignored, 1);
    guest.emit(&mut c, &cmd::batch(CODE));
    guest.run(&c);
    let view = guest.handle.inspect();
    assert!(view.refusals.is_empty());
    assert_eq!(view.noticed.len(), 1, "{:?}", view.noticed);
    assert_eq!(view.noticed[0].times, 2);
    let counters = &view.engines[0].counters;
    assert_eq!(counters.user_commands, 6);
    assert_eq!(counters.unchanged_bytes, 8 * 4);
    assert_eq!(counters.refused, 0);
}

#[test]
fn what_is_off_is_not_looked_at() {
    let host = Host::new();
    let mut guest = guest(&host, ScanMode::Off);
    let (c, data) = batch(&mut guest, &wrong());
    guest.run(&c);
    assert_eq!(guest.read(data), 7);
    let view = guest.handle.inspect();
    assert!(view.noticed.is_empty() && view.refusals.is_empty());
    assert_eq!(view.engines[0].counters.user_commands, 0);
}

#[test]
fn nothing_comes_of_a_batch_that_changes_behind_the_scan() {
    let host = Host::new();
    let mut guest = guest(&host, ScanMode::Refuse);
    const SECOND: u64 = 3 << 20;
    // Waits for the guest, then goes on in a second batch.
    let mut words = cmd::wait(DATA, 1).to_vec();
    words.extend(cmd::batch(SECOND));
    let (c, data) = batch(&mut guest, &words);
    let second = guest.pages(1);
    guest.map(&c, SECOND, second);
    guest.map(&c, 0x1000, second);
    guest.write_words(second, &[cmd::BATCH_END]);
    let seq = guest.submit(&c, None);
    // It passed the scan and is at the engine.
    let ipehr = Engine::Rcs.mmio_base() + ring::IPEHR;
    while host.gpu.read32(ipehr) != words[0] {
        std::thread::yield_now();
    }
    let mut worse = cmd::load_register(0x2230, 0xdead).to_vec();
    worse.extend(cmd::store_global(0x1000, 0xdead));
    worse.extend([mi_op::UPDATE_GTT << 23 | 2, 0, 0, 0]);
    worse.push(cmd::BATCH_END);
    guest.write_words(second, &worse);
    guest.write_words(data, &[1]);
    guest.wait(seq, 0);
    // The hardware ignored both, and the store went through the context's own
    // tables.
    assert_eq!(host.gpu.counters().engines[0].unprivileged, 2);
    assert_eq!(guest.read(second), 0xdead);
    assert_eq!(host.scheduler.inspect().engines[0].resets, 0);
}
