use super::*;

const GUEST: &str = "\
LAB igt-version 2.5-1
LAB probe-start 20.10
[   21.0] noise of the kernel
LAB probe-end 23.60
LAB= dmesg-probe
LAB+ dmesg-probe [   21.1] i915 0000:00:10.0: [drm] Virtual GPU for Intel GVT-g detected.
LAB wedged 0
LAB= engines
LAB+ engines rcs0
LAB+ engines bcs0
LAB+ engines vcs0
LAB+ engines vecs0
LAB= connector/HDMI-A-1
LAB+ connector/HDMI-A-1 HDMI-A-1 connected 128
LAB= modes/HDMI-A-1
LAB+ modes/HDMI-A-1 1024x768
LAB= dmesg
LAB+ dmesg [   21.1] i915 0000:00:10.0: [drm] Virtual GPU for Intel GVT-g detected.
LAB+ dmesg [   40.1] [IGT] i915_hangman: provoking a WARN in i915
LAB+ dmesg [   41.1] snd_hda: *ERROR* of another driver
LAB mmio/vgpu 400.125 390 450 1000
LAB mmio/qemu 900.500 850 990 1000
LAB both-exit/gem_exec_store@basic 0 1 2
";

const DOM0: &str = "\
LAB xen-version 4.17.7
LAB inspect/g1-probe-status 0
LAB= inspect/g1-probe
LAB+ inspect/g1-probe {
LAB+ inspect/g1-probe  \"counters\": { \"mmio_exits\": 4711 }
LAB+ inspect/g1-probe }
LAB= memory
LAB+ memory vgpu-dm probe 8192 8000
LAB+ memory vgpud probe 20480 20000
LAB+ memory vgpu-dm igt 10240 9000
LAB guest-gone/g1 yes
LAB guest-gone/g2 yes
LAB vgpu-dm-left 0
LAB vgpud-alive yes
";

fn facts(dom0: &str, g1: &str) -> Facts {
    let mut igt = String::new();
    for line in igt::list(Form::Short, &[""; 0]).lines() {
        let mut words = line.split(' ');
        let (name, subtest) = (words.next().unwrap(), words.next().unwrap());
        igt.push_str(&format!("LAB igt-exit/{name}@{subtest} 0 1 2\n"));
    }
    let mut facts = Facts {
        dom0: Report::parse(dom0),
        ..Facts::default()
    };
    facts.add_guest("g1", Report::parse(&format!("{igt}{g1}")));
    facts.add_guest("g2", Report::parse(GUEST));
    facts
}

#[test]
fn a_good_run_passes_and_has_every_key() {
    let verdict = judge(&facts(DOM0, GUEST), Form::Short);
    assert_eq!(verdict.failures, [""; 0]);
    let result = verdict.result;
    assert_eq!(result["vgpu_detected"], true);
    assert_eq!(result["wedged"], false);
    assert_eq!(result["engines"], json!(ENGINES));
    assert_eq!(result["i915_errors"], json!([]));
    assert_eq!(result["connector"]["modes"], json!(["1024x768"]));
    assert_eq!(result["igt"]["gem_softpin"], "SUCCESS");
    assert_eq!(result["two_guests"], true);
    assert_eq!(result["probe_mmio_exits"], 4711);
    assert_eq!(result["probe_seconds"], 3.5);
    assert_eq!(result["mmio_read_us_vgpu"], 400.125);
    assert_eq!(result["mmio_read_us_qemu"], 900.5);
    assert_eq!(result["rss_mib"], json!({ "vgpu_dm": 10.0, "vgpud": 20.0 }));
}

#[test]
fn every_check_can_fail() {
    let failed: Vec<String> = failures(&Seen::default(), Yardstick::Qemu)
        .iter()
        .filter_map(|f| f.split(':').next().map(str::to_owned))
        .collect();
    let keys: Vec<&str> = CHECKS.iter().map(|c| c.key).collect();
    assert_eq!(failed, keys);
}

#[test]
fn each_fault_is_named() {
    let cases: &[(&str, &str, &str)] = &[
        ("LAB wedged 0", "LAB wedged 1", "wedged: the GPU is wedged"),
        (
            "LAB+ engines vecs0\n",
            "",
            "engines: [\"bcs0\", \"rcs0\", \"vcs0\"]",
        ),
        (
            "LAB+ dmesg [   40.1] [IGT]",
            "LAB+ dmesg [   40.1] i915 *ERROR* x [drm]",
            "i915_errors: [   40.1] i915 *ERROR*",
        ),
        (
            "HDMI-A-1 connected 128",
            "HDMI-A-1 disconnected 0",
            "connector: HDMI-A-1 is disconn",
        ),
        (
            "HDMI-A-1 connected 128",
            "HDMI-A-1 connected 0",
            "connector: HDMI-A-1 has 0 bytes",
        ),
        (
            "LAB mmio/vgpu 400.125",
            "LAB mmio/vgpu 950",
            "mmio_read_us_vgpu: 950 us a read",
        ),
        (
            "LAB mmio/qemu 900.500 850 990 1000\n",
            "",
            "mmio_read_us_vgpu: was not measured",
        ),
        (
            "LAB both-exit/gem_exec_store@basic 0",
            "LAB both-exit/gem_exec_store@basic 98",
            "two_guests: g1: FAIL: exit code 98",
        ),
        (
            "LAB probe-end 23.60\n",
            "",
            "probe_seconds: i915's probe did not end",
        ),
        (
            "LAB wedged 0",
            "LAB wedged 0\nLAB igt-exit/gem_sync@idle@rcs0 124 1 2",
            "igt: gem_sync: FAIL: idle@rcs0: timed out",
        ),
    ];
    for (from, to, expected) in cases {
        assert!(GUEST.contains(from), "{from}");
        // Appended after the passing facts, so the last one counts.
        let verdict = judge(&facts(DOM0, &GUEST.replace(from, to)), Form::Short);
        assert_eq!(verdict.failures.len(), 1, "{:?}", verdict.failures);
        assert!(
            verdict.failures[0].starts_with(expected),
            "{:?}",
            verdict.failures
        );
    }
}

#[test]
fn each_fault_in_dom0_is_named() {
    let cases: &[(&str, &str, &str)] = &[
        (
            "igt 10240",
            "igt 25600",
            "rss_mib: vgpu-dm has 25 MiB resident, allowed are 24",
        ),
        (
            "guest-gone/g2 yes",
            "guest-gone/g2 no",
            "teardown: a guest left a domain",
        ),
        (
            "vgpu-dm-left 0",
            "vgpu-dm-left 1",
            "teardown: 1 vgpu-dm processes left",
        ),
        (
            "vgpud-alive yes",
            "vgpud-alive no",
            "teardown: vgpud did not live",
        ),
        ("4711", "0", "probe_mmio_exits: vgpuctl counted no exit"),
    ];
    for (from, to, expected) in cases {
        assert!(DOM0.contains(from), "{from}");
        let verdict = judge(&facts(&DOM0.replace(from, to), GUEST), Form::Short);
        assert_eq!(verdict.failures.len(), 1, "{:?}", verdict.failures);
        assert!(
            verdict.failures[0].starts_with(expected),
            "{:?}",
            verdict.failures
        );
    }
}
