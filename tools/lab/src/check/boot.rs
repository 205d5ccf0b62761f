//! The scenario `boot`.

use serde_json::json;

use super::Verdict;
use crate::facts::Facts;
use crate::scenario::Form;

/// Everything has to be reported, and the kernel has to be Debian's 6.1.
pub fn judge(facts: &Facts, _form: Form) -> Verdict {
    let guest = facts.guest("g1");
    let xen = facts.dom0.get("xen-version");
    let kernel = guest.get("kernel");
    let seconds = facts.dom0.number("guest-boot-seconds/g1");
    let igt = guest.get("igt-version");
    let mut failures = Vec::new();
    for (name, there) in [
        ("xen_version", xen.is_some()),
        ("guest_kernel", kernel.is_some()),
        ("guest_boot_seconds", seconds.is_some()),
        ("igt_version", igt.is_some()),
    ] {
        if !there {
            failures.push(format!("{name} was not reported"));
        }
    }
    if let Some(kernel) = kernel.filter(|k| !k.starts_with("6.1.")) {
        failures.push(format!("the guest runs kernel {kernel}, expected 6.1"));
    }
    if guest.number("igt-programs").is_none_or(|n| n < 100.0) {
        failures.push("the guest does not see igt-gpu-tools on its disk".into());
    }
    if facts.dom0.get("guest-gone/g1") != Some("yes") {
        failures.push("the guest did not power off".into());
    }
    Verdict {
        result: json!({
            "xen_version": xen,
            "guest_kernel": kernel,
            "guest_boot_seconds": seconds,
            "igt_version": igt,
        }),
        details: None,
        files: Vec::new(),
        failures,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Report;

    fn facts(dom0: &str, guest: &str) -> Facts {
        let mut facts = Facts {
            dom0: Report::parse(dom0),
            ..Facts::default()
        };
        facts.add_guest("g1", Report::parse(guest));
        facts
    }

    #[test]
    fn a_whole_boot_passes() {
        let verdict = judge(
            &facts(
                "LAB xen-version 4.17.7\nLAB guest-boot-seconds/g1 61.2\nLAB guest-gone/g1 yes\n",
                "LAB kernel 6.1.0-57-amd64\nLAB igt-version 2.5-1\nLAB igt-programs 350\n",
            ),
            Form::Full,
        );
        assert_eq!(verdict.failures, [""; 0]);
        assert_eq!(verdict.result["guest_boot_seconds"], 61.2);
    }

    #[test]
    fn what_is_missing_is_named() {
        let verdict = judge(
            &facts("LAB xen-version 4.17.7\n", "LAB kernel 6.12.1\n"),
            Form::Full,
        );
        assert_eq!(
            verdict.failures,
            [
                "guest_boot_seconds was not reported",
                "igt_version was not reported",
                "the guest runs kernel 6.12.1, expected 6.1",
                "the guest does not see igt-gpu-tools on its disk",
                "the guest did not power off",
            ]
        );
    }
}
