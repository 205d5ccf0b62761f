use clap::ValueEnum as _;
use vgpu_config::Share;
use vgpu_control::{EngineSample, LaneSample, State, VgpuSample};

use super::batch::{self, Form};
use super::order::Order;
use super::rates::Rates;
use super::screen::{Line, Style, View};
use super::snapshot::Snapshot;

const SECOND: u64 = 1_000_000_000;

fn engine(name: &str, busy_ns: u64) -> EngineSample {
    EngineSample {
        name: name.into(),
        busy_ns,
        running: Some(5),
        owner: Some(6),
        waiting: 2,
        ..EngineSample::default()
    }
}

fn vgpu(domid: u16, at_ns: u64, lanes: Vec<LaneSample>) -> VgpuSample {
    VgpuSample {
        domid,
        name: Some(format!("guest-{domid}")),
        state: State::Running,
        share: Share::default(),
        at_ns,
        lanes,
    }
}

fn lane(engine: u8, busy_ns: u64, completed: u64) -> LaneSample {
    LaneSample {
        engine,
        busy_ns,
        completed,
        ..LaneSample::default()
    }
}

fn snapshot(at_ns: u64, engines: Vec<EngineSample>, vgpus: Vec<VgpuSample>) -> Snapshot {
    Snapshot {
        vgpud: 1,
        at_ns,
        engines,
        vgpus,
    }
}

fn two() -> (Snapshot, Snapshot) {
    let at = 10 * SECOND;
    let engines = vec![engine("rcs0", SECOND), engine("bcs0", 0)];
    let first = LaneSample {
        switches: 10,
        switch_accesses: 100,
        switch_accesses_saved: 0,
        bytes_copied: 1000,
        overruns: 5,
        waits: vec![(100, 1000), (2000, 3)],
        ..lane(0, SECOND, 100)
    };
    let before = snapshot(at, engines, vec![vgpu(5, at, vec![first.clone()])]);
    let at = 12 * SECOND;
    let second = LaneSample {
        completed: 300,
        busy_ns: 2 * SECOND,
        switches: 20,
        handovers: 4,
        switch_accesses: 110,
        switch_accesses_saved: 190,
        bytes_copied: 5000,
        overruns: 6,
        waits: vec![(100, 1010), (2000, 3), (50_000, 90)],
        ..first
    };
    let engines = vec![engine("rcs0", 5 * SECOND / 2), engine("bcs0", SECOND / 10)];
    let vgpus = vec![
        vgpu(5, at, vec![second, lane(1, 0, 0)]),
        vgpu(6, at, vec![lane(0, SECOND / 2, 8)]),
    ];
    (before, snapshot(at, engines, vgpus))
}

#[test]
fn rates_are_of_what_came_between() {
    let (before, now) = two();
    let rates = Rates::between(&before, &now).unwrap();
    assert_eq!(rates.seconds, 2.0);
    assert_eq!(rates.engines[0].busy_percent, 75.0);
    assert_eq!(rates.engines[1].busy_percent, 5.0);
    let v = &rates.vgpus[0];
    assert_eq!(v.busy_percent, [50.0, 0.0]);
    assert_eq!(v.total_percent, 50.0);
    assert_eq!(v.requests_per_second, 100.0);
    assert_eq!(v.switches_per_second, 7.0);
    assert_eq!(v.accesses_saved_percent, Some(95.0));
    assert_eq!(v.copied_bytes_per_second, 2000.0);
    assert_eq!(v.overruns, 1);
    // The thousand short waits of before do not count.
    assert_eq!((v.wait_us_p50, v.wait_us_p99), (Some(50.0), Some(50.0)));
    // Came since, so began with nothing.
    let new = &rates.vgpus[1];
    assert_eq!((new.total_percent, new.requests_per_second), (25.0, 4.0));
    assert_eq!((new.wait_us_p50, new.accesses_saved_percent), (None, None));
}

#[test]
fn what_cannot_be_compared_has_no_rates() {
    let (before, now) = two();
    assert_eq!(Rates::between(&now, &before), None);
    assert_eq!(Rates::between(&now, &now), None);
    let other = Snapshot {
        vgpud: 2,
        ..now.clone()
    };
    assert_eq!(Rates::between(&before, &other), None);
    // Another vGPU of the same domain: its counts begin anew.
    let mut anew = now.clone();
    anew.vgpus[0].lanes = vec![lane(0, SECOND, 50)];
    let rates = Rates::between(&before, &anew).unwrap();
    assert_eq!(rates.vgpus[0].requests_per_second, 25.0);
    // More than all the time is all.
    let mut fast = now;
    fast.engines[0].busy_ns = 100 * SECOND;
    let rates = Rates::between(&before, &fast).unwrap();
    assert_eq!(rates.engines[0].busy_percent, 100.0);
}

#[test]
fn every_figure_at_its_limit_is_a_rate() {
    let (before, mut now) = two();
    let most = u64::MAX;
    now.at_ns = most;
    now.vgpus[0].at_ns = 0;
    now.vgpus[0].lanes[0] = LaneSample {
        engine: 200,
        switch_accesses: most,
        switch_accesses_saved: most,
        completed: most,
        bytes_copied: most,
        waits: vec![(most, most), (most, most)],
        ..LaneSample::default()
    };
    let rates = Rates::between(&before, &now).unwrap();
    assert!(rates.vgpus.iter().all(|v| v.total_percent.is_finite()));
    assert!(batch::text(&rates, Form::Text).is_ok());
}

#[test]
fn each_order_has_a_key_and_ties_go_by_domain() {
    for order in Order::ALL {
        // The option, the key and the screen agree.
        let option = order.to_possible_value().unwrap();
        assert_eq!(option.get_name(), order.name());
        let key = order.name().chars().next().unwrap();
        assert_eq!(Order::of_key(key), Some(order));
    }
    assert_eq!(Order::of_key('x'), None);
    let (before, now) = two();
    let mut vgpus = Rates::between(&before, &now).unwrap().vgpus;
    vgpus[1].name = Some("a".into());
    let mut first = |order: Order| {
        vgpus.sort_by_key(|v| std::cmp::Reverse(v.domid));
        order.sort(&mut vgpus);
        vgpus[0].domid
    };
    for order in Order::ALL {
        let expected = if order == Order::Name { 6 } else { 5 };
        assert_eq!(first(order), expected, "{order:?}");
    }
}

fn view(rates: Option<&Rates>, width: usize, height: usize) -> View<'_> {
    View {
        rates,
        trouble: None,
        order: Order::Busy,
        scroll: 0,
        width,
        height,
    }
}

fn texts(lines: &[Line]) -> Vec<String> {
    lines.iter().map(Line::text).collect()
}

#[test]
fn the_screen_shows_engines_and_vgpus() {
    let (before, now) = two();
    let rates = Rates::between(&before, &now).unwrap();
    let lines = texts(&view(Some(&rates), 160, 24).lines());
    assert!(lines[0].starts_with("vgpuctl top   2 vGPUs   2.0 s   by busy"));
    let bar = format!(
        "rcs0  [{}{}]  75.0%  runs dom 5",
        "|".repeat(30),
        " ".repeat(10)
    );
    assert!(lines[1].starts_with(&bar), "{}", lines[1]);
    assert!(lines[1].contains("owner dom 6    waiting 2   switches 0/s, handed over 0/s, 0.0%"));
    assert!(lines[4].starts_with("DOMID NAME           WEIGHT  CAP  SLICE   PRIO  RCS0%  BCS0%"));
    assert!(lines[5].starts_with("    5 guest-5           100    -    1ms normal   50.0    0.0"));
    assert!(lines[5].contains("50us") && lines[5].contains("95.0%"));
    assert!(lines[6].starts_with("    6 guest-6"));
    assert_eq!(lines.len(), 7);
}

#[test]
fn nothing_is_wider_or_longer_than_the_terminal() {
    let (before, mut now) = two();
    now.vgpus[0].name = Some("\x1b]0;evil\x07".into());
    now.engines[1].dead = Some("it did not come back from a reset".into());
    let many = (10..60).map(|d| vgpu(d, now.at_ns, vec![lane(0, 5, 5)]));
    now.vgpus.extend(many);
    let rates = Rates::between(&before, &now).unwrap();
    for width in [0, 1, 20, 40, 80, 100, 300] {
        for height in [0, 1, 2, 6, 24, 100] {
            let mut view = view(Some(&rates), width, height);
            view.trouble = Some("no answer in time");
            view.scroll = view.most_scroll();
            let lines = texts(&view.lines());
            assert!(lines.len() <= height);
            assert!(lines.iter().all(|l| l.chars().count() <= width));
            assert!(!lines.concat().contains(char::is_control));
            // Scrolled to its end, the last vGPU is there.
            if width >= 40 && height >= 24 {
                let last = lines.last().unwrap();
                assert!(last.starts_with("   59"), "{last} {width} {height}");
            }
        }
    }
    // A narrow screen keeps what matters most.
    let lines = texts(&view(Some(&rates), 40, 24).lines());
    assert!(lines[4].contains("DOMID") && lines[4].contains("TOTAL%"));
    assert!(!lines[4].contains("THROT"));
    assert_eq!(lines.len(), 24);
    assert_eq!(lines[23], "34 more below");
}

#[test]
fn trouble_is_told() {
    let mut view = view(None, 80, 24);
    assert_eq!(texts(&view.lines())[1], "looking");
    view.trouble = Some("vgpud does not run");
    let lines = view.lines();
    assert_eq!(lines[1].text(), "vgpud does not run; trying again");
    assert_eq!(lines[1].0[0].0, Style::Alarm);
    assert_eq!(lines.len(), 2);
}

#[test]
fn batches_are_tables_or_lines_of_json() {
    let (before, now) = two();
    let rates = Rates::between(&before, &now).unwrap();
    let text = batch::text(&rates, Form::Text).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("ENGINE  BUSY%"));
    assert!(lines[1].starts_with("rcs0    75.0   5     6      2"));
    assert!(lines[4].starts_with("DOMID NAME") && lines[4].ends_with("FAIL"));
    assert_eq!((lines.len(), lines[7]), (8, ""));
    let json = batch::text(&rates, Form::Json).unwrap();
    assert_eq!(json.lines().count(), 1);
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(value["vgpus"][0]["busy_percent"][0], 50.0);
    assert_eq!(value["vgpus"][1]["wait_us_p99"], serde_json::Value::Null);
    assert_eq!(value["engines"][0]["name"], "rcs0");
}

#[test]
fn delays_are_bounded() {
    assert_eq!(super::seconds("0.5").unwrap().as_millis(), 500);
    for bad in ["0", "0.09", "-1", "NaN", "inf", "3601", "1s", ""] {
        assert!(super::seconds(bad).is_err(), "{bad}");
    }
}
