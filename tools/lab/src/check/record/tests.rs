use super::*;
use crate::facts::Report;

fn guest(kernel: &str) -> String {
    format!(
        "LAB kernel {kernel}\nLAB wedged 0\n\
         LAB+ dmesg-probe [1] i915: Virtual GPU for Intel GVT-g detected.\n\
         LAB+ dmesg [1] i915: fine\n\
         LAB work/all {{\"verified\":9,\"mismatches\":0,\"resets\":0,\"end\":\"time\"}}\n\
         LAB work-exit/all 0\n"
    )
}

const DOM0: &str = r#"
LAB inspect/g1-worked-status 0
LAB inspect/g2-worked-status 0
LAB+ inspect/g1-worked {"scheduler":{"engines":[
LAB+ inspect/g1-worked {"name":"rcs0","registers":{"GT_MODE":512}},
LAB+ inspect/g1-worked {"name":"bcs0","registers":{"EXCC":0}},
LAB+ inspect/g1-worked {"name":"vcs0","registers":{}}]}}
LAB+ inspect/g2-worked {"scheduler":{"engines":[
LAB+ inspect/g2-worked {"name":"rcs0","registers":{"GT_MODE":4294967295}},
LAB+ inspect/g2-worked {"name":"bcs0","registers":{"EXCC":1}}]}}
LAB guest-gone/g1 yes
LAB guest-gone/g2 yes
LAB vgpu-dm-left 0
LAB vgpud-alive yes
"#;

fn verdict(dom0: &str, g1: &str, g2: &str) -> Verdict {
    let mut facts = Facts {
        dom0: Report::parse(dom0),
        ..Facts::default()
    };
    facts.add_guest("g1", Report::parse(g1));
    facts.add_guest("g2", Report::parse(g2));
    judge(&facts, Form::Short)
}

#[test]
fn recordings_are_files_of_their_own() {
    let verdict = verdict(
        DOM0,
        &guest("6.1.0-57-amd64"),
        &guest("6.12.118+deb13-amd64"),
    );
    assert_eq!(verdict.failures, [""; 0]);
    let names: Vec<&str> = verdict.files.iter().map(|f| f.0.as_str()).collect();
    assert_eq!(names, ["gen8-bookworm-6.1.json", "gen8-trixie-6.12.json"]);
    let expected = json!({
        "kernel": "6.1.0-57-amd64",
        "engines": {
            "rcs0": { "GT_MODE": "0x200" },
            "bcs0": { "EXCC": "0x0" },
            "vcs0": {},
        },
    });
    assert_eq!(verdict.files[0].1, expected);
    let other = &verdict.result["trixie-6.12"]["engines"]["rcs0"]["GT_MODE"];
    assert_eq!(other, "0xffffffff");
}

#[test]
fn a_recording_has_the_generation_of_its_gpu() {
    for (gpu, name) in [("bdw", "gen8"), ("kbl", "gen9")] {
        let dom0 = format!("LAB gpu {gpu}\n{DOM0}");
        let verdict = verdict(&dom0, &guest("6.1.0"), &guest("6.12.1"));
        assert_eq!(verdict.files[0].0, format!("{name}-bookworm-6.1.json"));
    }
}

#[test]
fn each_fault_is_named() {
    let (g1, g2) = (guest("6.1.0-57-amd64"), guest("6.12.118+deb13-amd64"));
    for (from, to, expected) in [
        (
            "LAB kernel 6.12",
            "LAB kernel 6.11",
            "the kernel is 6.11.118",
        ),
        ("Virtual GPU", "GPU", "i915 did not see a virtual GPU"),
        ("LAB wedged 0\n", "", "i915 is not bound"),
        ("LAB wedged 0", "LAB wedged 1", "the GPU is wedged"),
        ("i915: fine", "i915: *ERROR* late", "[1] i915: *ERROR* late"),
        ("exit/all 0", "exit/all 2", "gpu-work ended with 2"),
    ] {
        let failures = verdict(DOM0, &g1, &g2.replace(from, to)).failures;
        let start = format!("trixie-6.12: {expected}");
        assert!(failures[0].starts_with(&start), "{failures:?}");
        assert_eq!(failures.len(), 1);
    }
    let without = DOM0.replace("\"EXCC\":1", "");
    assert_eq!(
        verdict(&without, &g1, &g2).failures,
        ["trixie-6.12: no registers of bcs0"]
    );
    let cut = DOM0.replace("\"EXCC\":1}}]}}", "");
    let verdict = verdict(&cut, &g1, &g2);
    assert!(
        verdict.failures[0].starts_with("trixie-6.12: inspect/g2-worked: vgpuctl's answer: EOF"),
        "{:?}",
        verdict.failures
    );
    assert_eq!(verdict.failures.len(), 1);
    assert_eq!(verdict.files.len(), 1);
}
