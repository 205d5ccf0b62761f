use vgpu_migrate::stream::Before;

use super::*;
use crate::vgpu::EngineV1;

mod golden;

fn saved() -> Saved {
    Saved {
        host: HostV1::new("bdw"),
        device: br#"{"config":{}}"#.to_vec(),
        scheduler: SchedulerV1 {
            engines: vec![EngineV1::default(); 4],
        },
        table: PackedTable::pack(|i| u64::from(i) << 12 | 1),
    }
}

fn stream(saved: &Saved) -> Vec<u8> {
    let writer = saved.writer().unwrap();
    writer.finish(Before::default()).unwrap()
}

#[test]
fn what_is_written_is_read() {
    let saved = saved();
    let bytes = stream(&saved);
    assert!(bytes.len() < 600, "{}", bytes.len());
    assert_eq!(Saved::parse(&bytes).unwrap(), saved);
}

#[test]
fn parts_that_no_vgpu_can_have_are_named() {
    let reason = |saved: &Saved| Saved::parse(&stream(saved)).unwrap_err().to_string();
    let mut bad = saved();
    bad.scheduler.engines.pop();
    assert_eq!(
        reason(&bad),
        "section scheduler: saved scheduler state has 3 engines, allowed: 4"
    );
    let mut bad = saved();
    // The blitter's, and not to be switched.
    bad.scheduler.engines[0].registers = vec![(0x2_2098, 1)];
    let reason = reason(&bad);
    assert!(reason.contains("register 0x22098 on rcs0"), "{reason}");
}

#[test]
fn another_gpu_is_refused_by_name() {
    let saved = saved();
    assert!(saved.fits("bdw").is_ok());
    assert_eq!(
        saved.fits("kbl").unwrap_err().to_string(),
        "the vGPU was saved on a host with gpu=bdw, this one has gpu=kbl"
    );
}
