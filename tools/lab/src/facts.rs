//! What scripts and guests report, as lines in their logs.
//!
//! - `LAB KEY TEXT`: one fact; the last one of a key counts.
//! - `LAB= BLOCK`: a longer text begins anew.
//! - `LAB+ BLOCK TEXT`: one more line of it.
//!
//! A kernel prints on the same console, so everything else is passed over.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Context as _;

/// What one log reported.
#[derive(Default, Clone)]
pub struct Report {
    values: BTreeMap<String, String>,
    blocks: BTreeMap<String, Vec<String>>,
}

impl Report {
    /// Reads every line of `text`.
    pub fn parse(text: &str) -> Self {
        let mut report = Self::default();
        for line in text.lines() {
            report.line(line);
        }
        report
    }

    fn line(&mut self, line: &str) {
        let line = line.trim_end_matches('\r');
        if let Some(rest) = line.strip_prefix("LAB+ ") {
            let (block, text) = rest.split_once(' ').unwrap_or((rest, ""));
            self.blocks
                .entry(block.to_owned())
                .or_default()
                .push(text.to_owned());
        } else if let Some(block) = line.strip_prefix("LAB= ") {
            self.blocks.insert(block.to_owned(), Vec::new());
        } else if let Some(rest) = line.strip_prefix("LAB ") {
            let (key, text) = rest.split_once(' ').unwrap_or((rest, ""));
            self.values.insert(key.to_owned(), text.trim().to_owned());
        }
    }

    /// The fact `key`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }

    /// The fact `key` as a number.
    pub fn number(&self, key: &str) -> Option<f64> {
        self.get(key)?.parse().ok()
    }

    /// The lines of `block`; none if it was never reported.
    pub fn block(&self, block: &str) -> &[String] {
        self.blocks.get(block).map_or(&[], Vec::as_slice)
    }

    /// What vgpuctl answered, by the name that the script gave it; if it gave
    /// no answer, how it ended and what it complained of.
    pub fn answer(&self, name: &str) -> Result<String, String> {
        match self.get(&format!("{name}-status")) {
            Some("0") => Ok(self.block(name).join("\n")),
            None => Err(format!("{name}: vgpuctl was not asked")),
            Some(status) => {
                let how = match status {
                    "124" => "gave no answer in time".to_owned(),
                    status => format!("ended with {status}"),
                };
                let said = self.block(&format!("{name}-said")).join(" / ");
                Err(format!("{name}: vgpuctl {how}: {said}"))
            }
        }
    }

    /// The same as JSON.
    pub fn json(&self, name: &str) -> Result<serde_json::Value, String> {
        let text = self.answer(name)?;
        if text.is_empty() {
            // Such blocks come back with the logs, not on the console.
            return Err(format!("{name}: vgpuctl's answer was lost"));
        }
        serde_json::from_str(&text).map_err(|e| format!("{name}: vgpuctl's answer: {e}"))
    }
}

/// All reports of a run.
#[derive(Default)]
pub struct Facts {
    /// The scenario's own.
    pub dom0: Report,
    /// Each guest's.
    pub guests: BTreeMap<String, Report>,
}

impl Facts {
    /// Reads the logs that a run brought back: `dom0.facts` and
    /// `guest-NAME.log`.
    pub fn from_logs(logs: &Path) -> anyhow::Result<Self> {
        let mut facts = Self::default();
        for entry in
            fs::read_dir(logs).with_context(|| format!("cannot list {}", logs.display()))?
        {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let text = || -> anyhow::Result<String> {
                let bytes = fs::read(entry.path())?;
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            };
            if name == "dom0.facts" {
                facts.dom0 = Report::parse(&text()?);
            } else if let Some(guest) = name
                .strip_prefix("guest-")
                .and_then(|n| n.strip_suffix(".log"))
            {
                facts.add_guest(guest, Report::parse(&text()?));
            }
        }
        Ok(facts)
    }

    /// From the console's log alone, for a run that ended before it brought
    /// logs back. Lines stand there as `SECONDS LINE`, a guest's as
    /// `SECONDS [NAME] LINE`.
    pub fn from_console(text: &str) -> Self {
        let mut facts = Self::default();
        for line in text.lines() {
            let (_, line) = line.trim_start().split_once(' ').unwrap_or(("", line));
            match line.strip_prefix('[').and_then(|l| l.split_once("] ")) {
                Some((name, rest)) if !name.is_empty() && !name.contains(' ') => {
                    facts.guests.entry(name.to_owned()).or_default().line(rest);
                }
                _ => facts.dom0.line(line),
            }
        }
        facts
    }

    /// Adds the report of one guest.
    pub fn add_guest(&mut self, name: &str, report: Report) {
        self.guests.insert(name.to_owned(), report);
    }

    /// What guest `name` reported; an empty report if it never did.
    pub fn guest(&self, name: &str) -> Report {
        self.guests.get(name).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_and_blocks_are_told_from_the_kernels_lines() {
        let report = Report::parse(
            "[    0.000000] Linux version 6.1\r\n\
             LAB kernel 6.1.0-57-amd64\r\n\
             LAB wedged 1\nLAB wedged 0\n\
             LAB+ dmesg [ 1.0] first\nnoise\nLAB+ dmesg\nLAB+ dmesg  last\n\
             LABEL is not ours\n",
        );
        assert_eq!(report.get("kernel"), Some("6.1.0-57-amd64"));
        assert_eq!(report.number("wedged"), Some(0.0));
        assert_eq!(report.block("dmesg"), ["[ 1.0] first", "", " last"]);
        assert_eq!(report.get("EL"), None);
        assert!(report.block("none").is_empty());
    }

    #[test]
    fn a_block_that_begins_anew_forgets_what_it_was() {
        let report = Report::parse("LAB+ a 1\nLAB= a\nLAB+ a 2\nLAB+ a 3\n");
        assert_eq!(report.block("a"), ["2", "3"]);
    }

    #[test]
    fn the_console_keeps_guests_apart() {
        let facts = Facts::from_console(
            "    0.10 LAB xen 4.17\n    1.00 [g1] LAB kernel a\n  100.00 [g2] LAB kernel b\n\
             1000.00 [    1.0] LAB kernel c\n",
        );
        assert_eq!(facts.dom0.get("xen"), Some("4.17"));
        assert_eq!(facts.guest("g1").get("kernel"), Some("a"));
        assert_eq!(facts.guest("g2").get("kernel"), Some("b"));
        assert_eq!(facts.guest("g3").get("kernel"), None);
    }
}
