use super::*;

const DOM0: &str = "\
LAB save-exit/save 0
LAB restore-exit/save 0
LAB migrate-exit/plain-1 0
LAB migrate-exit/round-1 0
LAB migrate-exit/round-2 0
LAB migrate-exit/abort-limit 1
LAB domains/abort-limit 2
LAB= xl/abort-limit
LAB+ xl/abort-limit error: it would stand still for 70 ms, allowed: 1; 20 pages are left
LAB migrate-exit/abort-xl-stop 137
LAB resume-exit/abort-xl-stop 0
LAB domains/abort-xl-stop 2
LAB= status/abort-xl-stop
LAB+ status/abort-xl-stop failure: it has to be resumed here
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
LAB gap/abort-limit 3000.0 3000.0 1500.0
LAB gap/abort-xl-stop 3000.0 3000.0 1500.0
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
    assert_eq!(result["awake_ms"], json!([1500.0, 1500.0]));
    // The medians of 11500 and 10500, and of 8500.
    assert_eq!(result["ratio_asleep"], 11000.0 / 8500.0);
    assert_eq!(result["ratio"], 1.25);
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
            "abort-limit 1",
            "abort-limit 0",
            "abort-limit: xl migrate ended with 0",
        ),
        (
            "abort-limit 1",
            "abort-limit 124",
            "abort-limit: xl migrate did not end",
        ),
        (
            "domains/abort-limit 2",
            "domains/abort-limit 3",
            "abort-limit: Some(\"3\") domains are left, not 2",
        ),
        (
            "LAB migrate-exit/abort-limit 1\n",
            "",
            "abort-limit: xl migrate was not run",
        ),
        (
            "resume-exit/abort-xl-stop 0",
            "resume-exit/abort-xl-stop 1",
            "abort-xl-stop: the guest could not be resumed",
        ),
        (
            "LAB+ xl/abort-limit error: it would stand still",
            "LAB+ xl/abort-limit error: it stands still",
            "abort-limit: xl does not say \"it would stand still for\"",
        ),
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
            "LAB gap/abort-limit 3000.0 3000.0 1500.0\n",
            "",
            "abort-limit: the guest does not run any more",
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

#[test]
fn cases_alone_are_judged_alone() {
    let dom0 = "\
LAB only damaged,debug
LAB migrate-exit/after-aborts 0
LAB save-exit/abort-damaged 0
LAB restore-exit/abort-cut-memory 3
LAB domains/abort-cut-memory 1
LAB= xl/abort-cut-memory
LAB+ xl/abort-cut-memory xc: error: Failed to read Record Header from stream
LAB restore-exit/abort-cut-state 3
LAB domains/abort-cut-state 1
LAB= xl/abort-cut-state
LAB+ xl/abort-cut-state libxl: error: stream truncated
LAB restore-exit/abort-flipped 3
LAB domains/abort-flipped 1
LAB= dm-log/abort-flipped
LAB+ dm-log/abort-flipped vgpu-launcher: section device: checksum
LAB restore-exit/abort-former 3
LAB domains/abort-former 1
LAB= dm-log/abort-former
LAB+ dm-log/abort-former vgpu-launcher: not the one that belongs to it
LAB migrate-exit/abort-damaged 0
LAB domains/abort-damaged 2
LAB migrate-exit/abort-debug 0
LAB domains/abort-debug 2
LAB verify-failed/abort-debug 0
LAB guest-gone/g1 yes
LAB vgpud-alive yes
LAB vgpu-dm-left 0
";
    let guest = GUEST.replace("gap/abort-xl-stop", "gap/abort-damaged");
    let guest = guest.replace("gap/abort-limit", "gap/abort-debug");
    assert_eq!(verdict(dom0, &guest).failures, [""; 0]);
    for (from, to, expected) in [
        (
            "restore-exit/abort-flipped 3",
            "restore-exit/abort-flipped 0",
            "abort-flipped: it was not refused",
        ),
        (
            "domains/abort-cut-memory 1",
            "domains/abort-cut-memory 2",
            "abort-cut-memory: Some(\"2\") domains are left, not 1",
        ),
        (
            "belongs to it",
            "is broken",
            "abort-former: the device model's log does not say \"belongs to it\"",
        ),
        (
            "verify-failed/abort-debug 0",
            "verify-failed/abort-debug 3",
            "abort-debug: Some(\"3\") pages are not the source's",
        ),
        (
            "migrate-exit/abort-debug 0",
            "migrate-exit/abort-debug 1",
            "abort-debug: xl migrate ended with 1",
        ),
    ] {
        assert_eq!(
            verdict(&dom0.replace(from, to), &guest).failures,
            [expected]
        );
    }
}

#[test]
fn with_stub_domains_both_kinds_have_been_there() {
    let more = "\
LAB stub yes
LAB stubs-left 0
LAB stub-nodes-left 0
LAB migrate-exit/to-process 0
LAB place/to-process-status 0
LAB+ place/to-process [{\"domid\": 4, \"dm\": {\"process\": 77}}]
LAB migrate-exit/to-stub 0
LAB place/to-stub-status 0
LAB+ place/to-stub [{\"domid\": 5, \"dm\": {\"domain\": 6}}]
";
    let passed = verdict(&format!("{DOM0}{more}"), GUEST);
    assert_eq!(passed.failures, [""; 0]);
    let stayed = more.replace("\"process\": 77", "\"domain\": 3");
    let failed = verdict(&format!("{DOM0}{stayed}"), GUEST).failures;
    assert_eq!(
        failed,
        [r#"to-process: vgpuctl list has [{"dm":{"domain":3},"domid":4}], expected a process"#]
    );
    let left = more.replace("stubs-left 0", "stubs-left 1");
    let failed = verdict(&format!("{DOM0}{left}"), GUEST).failures;
    assert_eq!(failed, ["teardown: 1 stub domains or zombies are left"]);
}
