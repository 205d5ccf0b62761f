use super::*;

const DOM0: &str = "\
LAB save-exit/save 0
LAB restore-exit/save 0
LAB migrate-exit/plain-1 0
LAB migrate-exit/round-1 0
LAB migrate-exit/round-2 0
LAB aborts save
LAB migrate-exit/abort-save 1
LAB domains/abort-save 2
LAB migrate-exit/after-aborts 0
LAB= status/round-1
LAB+ status/round-1 {\"phase\":\"arrived\"}
LAB guest-gone/g1 yes
LAB guest-gone/plain yes
LAB vgpud-alive yes
LAB vgpu-dm-left 0
";

const GUEST: &str = "\
LAB gap/save 25000.0 25000.0 1500.0
LAB gap/round-1 13000.0 13000.0 1500.0
LAB gap/round-2 12000.0 12000.0 1500.0
LAB gap/abort-save 3000.0 3000.0 1500.0
LAB work/migrate {\"seconds\":9.0,\"verified\":9,\"mismatches\":0,\"resets\":0,\"end\":\"signal\"}
LAB work-exit/migrate 0
LAB= dmesg
LAB+ dmesg [ 1.0] i915 is fine
";

const PLAIN: &str = "LAB gap/plain-1 10000.0 10000.0 1500.0\n";

fn verdict(dom0: &str, guest: &str) -> Verdict {
    let mut facts = Facts {
        dom0: Report::parse(dom0),
        ..Facts::default()
    };
    facts.add_guest("g1", Report::parse(guest));
    facts.add_guest("plain", Report::parse(PLAIN));
    judge(&facts, Form::Short)
}

#[test]
fn a_good_run_gives_its_figures() {
    let Verdict {
        result, failures, ..
    } = verdict(DOM0, GUEST);
    assert_eq!(failures, [""; 0]);
    assert_eq!(result["round_trips"], 2);
    assert_eq!(result["mismatches"], 0);
    assert_eq!(result["downtime_ms"], json!([13000.0, 12000.0]));
    assert_eq!(result["downtime_ms_no_vgpu"], json!([10000.0]));
    assert_eq!(result["ratio"], 1.3);
    assert_eq!(result["migrations"]["round-1"]["phase"], "arrived");
}

#[test]
fn each_way_to_fall_short_is_named() {
    for (from, to, expected) in [
        (
            "restore-exit/save 0",
            "restore-exit/save 3",
            "save: xl restore ended with 3",
        ),
        (
            "LAB migrate-exit/round-2 0\n",
            "",
            "round-2: xl migrate was not run",
        ),
        (
            "abort-save 1",
            "abort-save 0",
            "abort-save: xl migrate ended with 0",
        ),
        (
            "abort-save 1",
            "abort-save 124",
            "abort-save: xl migrate did not end",
        ),
        (
            "domains/abort-save 2",
            "domains/abort-save 3",
            "abort-save: Some(\"3\") domains are left, not 2",
        ),
        ("LAB aborts save\n", "", "aborted: no migration was"),
        (
            "guest-gone/g1 yes",
            "guest-gone/g1 no",
            "teardown: g1 left a domain behind",
        ),
    ] {
        assert_eq!(verdict(&DOM0.replace(from, to), GUEST).failures, [expected]);
    }
    for (from, to, expected) in [
        (
            "LAB gap/abort-save 3000.0 3000.0 1500.0\n",
            "",
            "abort-save: the guest does not run any more",
        ),
        (
            "LAB gap/round-2 12000.0 12000.0 1500.0\n",
            "",
            "downtime_ms: 1 of 2 were told",
        ),
        (
            "\"mismatches\":0",
            "\"mismatches\":2",
            "mismatches: 2 buffers were wrong",
        ),
        (
            "\"resets\":0",
            "\"resets\":1",
            "mismatches: the GPU was reset 1 times",
        ),
        (
            "[ 1.0] i915 is fine",
            "[ 1.0] i915 *ERROR* flip_done timed out",
            "i915_errors: [ 1.0] i915 *ERROR* flip_done timed out",
        ),
    ] {
        assert_eq!(verdict(DOM0, &GUEST.replace(from, to)).failures, [expected]);
    }
}
