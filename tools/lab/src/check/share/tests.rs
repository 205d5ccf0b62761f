use super::*;

fn inspect(name: &str, json: &Value) -> String {
    let lines: String = format!("{json:#}")
        .lines()
        .map(|l| format!("LAB+ inspect/{name} {l}\n"))
        .collect();
    format!("LAB inspect/{name}-status 0\nLAB= inspect/{name}\n{lines}")
}

/// The GPU with two vGPUs that were busy for so many seconds.
fn gpu(busy: [f64; 2], switches: u64) -> Value {
    let vgpu = |id: u64, seconds: f64| {
        json!({ "id": id, "engines": [
            { "name": "rcs0", "counters": { "busy_ns": 7 } },
            { "name": "bcs0", "counters": {
                "busy_ns": seconds * 1e9,
                "completed": 10.0 * seconds,
                "switches": switches,
                "switch_ns": 3000 * switches,
                "switch_reads": 2 * switches,
                "switch_writes": 5 * switches,
            } },
        ] })
    };
    json!({ "vgpus": [vgpu(4, busy[0]), vgpu(6, busy[1])] })
}

fn guest(verified: u64) -> String {
    format!(
        "LAB work/share {{\"verified\":{verified},\"mismatches\":0,\"resets\":0,\"end\":\"signal\"}}\n\
         LAB work-exit/share 0\nLAB= dmesg\nLAB+ dmesg [1.0] quiet\n"
    )
}

fn dom0(busy: [f64; 2]) -> String {
    [
        "LAB engine bcs0\nLAB weight/g1 100\nLAB weight/g2 300\n",
        "LAB snapshot/before 100.0 100.4\nLAB snapshot/after 120.0 120.4\n",
        "LAB kept weight=250,cap=50\nLAB vgpud-exit 0\n",
        "LAB set-status 0\nLAB+ set domain 1: weight=250,cap=50,slice=1\n",
        "LAB top-status 0\nLAB+ top ENGINE  BUSY%\nLAB+ top bcs0 99\nLAB+ top NAME WAIT99\n",
        "LAB again-status 0\nLAB+ again 3  running slot=10,weight=250,cap=50\n",
        "LAB guest-gone/g1 yes\nLAB guest-gone/g2 yes\nLAB guest-gone/g3 yes\nLAB vgpu-dm-left 0\nLAB vgpud-alive yes\n",
        &inspect("g1-probe", &json!({ "scheduler": { "id": 4 } })),
        &inspect("g2-probe", &json!({ "scheduler": { "id": 6 } })),
        &inspect("gpu-before", &gpu([2.0, 1.0], 100)),
        &inspect("gpu-after", &gpu([2.0 + busy[0], 1.0 + busy[1]], 200)),
    ]
    .concat()
}

fn verdict(dom0: &str, g1: &str, g2: &str) -> Verdict {
    let mut facts = Facts {
        dom0: Report::parse(dom0),
        ..Facts::default()
    };
    facts.add_guest("g1", Report::parse(g1));
    facts.add_guest("g2", Report::parse(g2));
    judge(&facts, Form::Full)
}

#[test]
fn time_by_weight_passes_and_has_every_key() {
    let verdict = verdict(&dom0([4.9, 14.8]), &guest(50), &guest(150));
    assert_eq!(verdict.failures, [""; 0]);
    let result = verdict.result;
    assert_eq!(result["gpu_time_ratio"], 3.02);
    assert_eq!(result["engine_busy"], 0.985);
    assert_eq!(result["seconds"], 20.0);
    assert_eq!(result["mismatches"], 0);
    assert_eq!(result["buffers_verified"], json!({ "g1": 50, "g2": 150 }));
    assert_eq!(result["busy_seconds"], json!({ "g1": 4.9, "g2": 14.8 }));
    assert_eq!(result["switches"], 200.0);
    let switch = json!({ "us": 3.0, "reads": 2.0, "writes": 5.0 });
    assert_eq!(result["switch"], switch);
}

#[test]
fn each_way_to_fall_short_is_named() {
    let (g1, g2) = (guest(50), guest(150));
    let failures =
        |busy, from: &str, to: &str| verdict(&dom0(busy).replace(from, to), &g1, &g2).failures;
    let good = [4.9, 14.8];
    assert_eq!(
        failures([9.9, 9.9], "", ""),
        ["gpu_time_ratio: 1, expected 3 by the weights, give or take 10 %"]
    );
    assert_eq!(
        failures([3.0, 9.0], "", ""),
        ["engine_busy: 0.6 of the window, at least 0.8 are needed for a ratio to mean anything"]
    );
    assert_eq!(
        failures(good, "LAB weight/g2 300\n", ""),
        ["gpu_time_ratio: the window or the weights were not reported"]
    );
    assert_eq!(
        failures(good, "engine bcs0", "engine vcs0"),
        ["gpu_time_ratio: g1: no counters of vcs0 before the window"]
    );
    assert_eq!(
        failures(good, "gone/g2 yes", "gone/g2 no"),
        ["teardown: g2 left a domain behind"]
    );
    assert_eq!(
        failures(good, "LAB vgpud-alive yes\n", ""),
        ["teardown: vgpud did not live to the end"]
    );
    assert_eq!(
        failures(good, "dm-left 0", "dm-left 1"),
        ["teardown: 1 vgpu-dm processes left"]
    );
    assert_eq!(
        failures(
            good,
            "LAB inspect/gpu-after-status 0\n",
            "LAB inspect/gpu-after-status 1\nLAB+ inspect/gpu-after-said vgpud: gone\n"
        ),
        ["gpu_time_ratio: inspect/gpu-after: vgpuctl ended with 1: vgpud: gone"]
    );
    for (from, to, why) in [
        (
            "set-status 0",
            "set-status 124",
            "set: vgpuctl gave no answer in time: ",
        ),
        ("LAB+ top ENGINE", "LAB+ top", "top: no \"ENGINE\" in "),
        (
            "vgpud-exit 0",
            "vgpud-exit 143",
            "vgpud ended with Some(\"143\")",
        ),
        (
            "again 3  running slot=10,weight=250",
            "again 3",
            "again: no \"weight=250,cap=50\"",
        ),
        ("LAB kept", "LAB lost", "was not tried"),
    ] {
        let failures = failures(good, from, to);
        assert_eq!(failures.len(), 1, "{failures:?}");
        assert!(
            failures[0].starts_with(&format!("set_and_kept: {why}")),
            "{failures:?}"
        );
    }
    let bad = g1.replace("\"mismatches\":0", "\"mismatches\":1");
    assert_eq!(
        verdict(&dom0(good), &bad, &g2).failures,
        ["mismatches: g1: 1 buffers were wrong"]
    );
    let hung = g2.replace("quiet", "i915 0000:00:10.0: [drm] GPU HANG: ecode 8:1");
    assert_eq!(
        verdict(&dom0(good), &g1, &hung).failures,
        ["i915_errors: g2: [1.0] i915 0000:00:10.0: [drm] GPU HANG: ecode 8:1"]
    );
}

#[test]
fn a_short_window_is_judged_by_what_it_can_tell() {
    for (ratio, right) in [(3.6, true), (2.4, true), (3.9, false), (1.0, false)] {
        let wrong = share_wrong(1.0, ratio, 3.0, SHORT_TOLERANCE);
        assert_eq!(wrong.is_none(), right, "{wrong:?}");
    }
}

#[test]
fn an_idle_guest_is_no_ratio() {
    let verdict = verdict(&dom0([0.0, 19.0]), &guest(50), &guest(150));
    assert!(verdict.failures[0].starts_with("gpu_time_ratio: "));
    assert_eq!(verdict.result["engine_busy"], 0.95);
}

#[test]
fn a_run_that_reported_nothing_fails_every_check() {
    let failures = verdict("", "", "").failures;
    for key in [
        "gpu_time_ratio",
        "set_and_kept",
        "mismatches",
        "i915_errors",
        "teardown",
    ] {
        assert!(failures.iter().any(|f| f.starts_with(key)), "{key}");
    }
}
