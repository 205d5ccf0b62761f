//! What `gpu-work` in a guest reported.

use serde_json::Value;

use crate::facts::Report;

/// The last line of a run of it, and how it ended.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Work {
    /// Buffers compared and right.
    pub verified: u64,
    /// Buffers compared and wrong.
    pub mismatches: u64,
    /// Resets of the GPU meanwhile.
    pub resets: u64,
    /// The last buffer that was wrong.
    pub mismatch: Option<Value>,
    /// Why it does not count as right, if it does not.
    pub wrong: Option<String>,
}

impl Work {
    /// The run that the guest's script calls `tag`.
    pub fn of(guest: &Report, tag: &str) -> Self {
        let json = |kind: &str| -> Option<Value> {
            serde_json::from_str(guest.get(&format!("{kind}/{tag}"))?).ok()
        };
        let last = json("work").unwrap_or_default();
        let number = |key: &str| last.get(key).and_then(Value::as_u64);
        let said = guest.get(&format!("work-said/{tag}"));
        let wrong = match guest.get(&format!("work-exit/{tag}")) {
            None => Some("gpu-work did not end".to_owned()),
            Some("0") if last.get("end").is_none() => Some("gpu-work printed no last line".into()),
            Some("0") => None,
            Some("1") => Some(match number("mismatches") {
                Some(n) => format!("{n} buffers were wrong"),
                None => "buffers were wrong".into(),
            }),
            Some(code) => Some(format!(
                "gpu-work ended with {code}: {}",
                said.unwrap_or("it gave no reason")
            )),
        };
        let mut work = Self {
            verified: number("verified").unwrap_or(0),
            mismatches: number("mismatches").unwrap_or(0),
            resets: number("resets").unwrap_or(0),
            mismatch: json("work-mismatch"),
            wrong,
        };
        if work.wrong.is_none() {
            work.wrong = work.complaint();
        }
        work
    }

    fn complaint(&self) -> Option<String> {
        if self.mismatches > 0 {
            Some(format!("{} buffers were wrong", self.mismatches))
        } else if self.verified == 0 {
            Some("no buffer was verified".into())
        } else if self.resets > 0 {
            Some(format!("the GPU was reset {} times", self.resets))
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(text: &str) -> Work {
        Work::of(&Report::parse(text), "t")
    }

    const GOOD: &str = "\
LAB work/t {\"seconds\":1.0,\"verified\":3,\"mismatches\":0,\"resets\":0}
LAB work/t {\"seconds\":2.0,\"verified\":9,\"mismatches\":0,\"resets\":0,\"end\":\"signal\"}
LAB work-exit/t 0
";

    #[test]
    fn the_last_line_counts() {
        let good = work(GOOD);
        assert_eq!((good.verified, good.mismatches), (9, 0));
        assert_eq!(good.wrong, None);
    }

    #[test]
    fn every_fault_is_named() {
        for (from, to, expected) in [
            ("LAB work-exit/t 0\n", "", "gpu-work did not end"),
            (",\"end\":\"signal\"", "", "gpu-work printed no last line"),
            ("exit/t 0", "exit/t 1", "0 buffers were wrong"),
            (
                "LAB work-exit/t 0",
                "LAB work-said/t i915 GEM_WAIT: gone\nLAB work-exit/t 2",
                "gpu-work ended with 2: i915 GEM_WAIT: gone",
            ),
            (
                "\"mismatches\":0,\"resets\":0,\"end\"",
                "\"mismatches\":2,\"resets\":0,\"end\"",
                "2 buffers were wrong",
            ),
            ("\"verified\":9", "\"verified\":0", "no buffer was verified"),
            (
                "\"resets\":0,\"end\"",
                "\"resets\":1,\"end\"",
                "the GPU was reset 1 times",
            ),
        ] {
            assert_eq!(
                work(&GOOD.replace(from, to)).wrong.as_deref(),
                Some(expected)
            );
        }
    }

    #[test]
    fn a_wrong_buffer_is_kept() {
        let text = format!("LAB work-mismatch/t {{\"mismatch\":{{\"offset\":4}}}}\n{GOOD}");
        assert_eq!(work(&text).mismatch.unwrap()["mismatch"]["offset"], 4);
    }
}
