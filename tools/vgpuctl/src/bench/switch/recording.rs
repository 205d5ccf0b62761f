//! What a kind of guest wants in its registers, from `tests/recordings`.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use gen8::Engine;
use gen8::switched::Table;
use serde::Deserialize;
use vgpu_sched::switch::RegisterFile;

macro_rules! recordings {
    ($($name:literal),* $(,)?) => {
        const RECORDINGS: &[(&str, &str)] = &[$((
            $name,
            include_str!(concat!("../../../../../tests/recordings/registers/", $name, ".json")),
        )),*];
    };
}

recordings![
    "gen8-bookworm-6.1",
    "gen8-trixie-6.12",
    "gen9-bookworm-6.1",
    "gen9-buster-4.19",
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(rename = "kernel")]
    _kernel: String,
    derived: Option<String>,
    engines: BTreeMap<String, BTreeMap<String, String>>,
}

/// A kind of guest.
pub struct Recording {
    /// Why nobody recorded it.
    pub derived: Option<String>,
    values: [Vec<(u32, u32)>; Engine::COUNT],
}

impl Recording {
    /// One that was built in.
    ///
    /// # Errors
    /// When there is none of that name or it is no good.
    pub fn load(name: &str, table: &Table) -> anyhow::Result<Self> {
        let found = RECORDINGS.iter().find(|r| r.0 == name);
        let (_, text) = found.with_context(|| format!("no recording {name}"))?;
        Self::parse(text, table).with_context(|| format!("recording {name}"))
    }

    fn parse(text: &str, table: &Table) -> anyhow::Result<Self> {
        let file: File = serde_json::from_str(text)?;
        let mut values = [const { Vec::new() }; Engine::COUNT];
        for (engine, registers) in &file.engines {
            let Some(engine) = Engine::ALL.into_iter().find(|e| e.sysfs_name() == engine) else {
                bail!("engine {engine:?}, allowed: rcs0, bcs0, vcs0, vecs0");
            };
            for (name, value) in registers {
                let mut all = table.registers().filter(|s| s.row.engine == engine);
                let Some(register) = all.find(|s| s.to_string() == *name) else {
                    bail!("{} has no register {name:?}", engine.sysfs_name());
                };
                let digits = value.strip_prefix("0x").unwrap_or(value);
                let value = u32::from_str_radix(digits, 16)
                    .with_context(|| format!("{name} is {value:?}, not a hexadecimal number"))?;
                values[engine.index()].push((register.offset(), value));
            }
        }
        Ok(Self {
            derived: file.derived,
            values,
        })
    }

    /// A vGPU of this kind.
    pub fn file(&self, table: &'static Table, engine: Engine) -> RegisterFile {
        let mut file = RegisterFile::with_table(table, engine);
        for (offset, value) in &self.values[engine.index()] {
            file.write(*offset, *value);
        }
        file
    }
}

#[cfg(test)]
mod tests {
    use gen8::switched::{GEN8, GEN9};

    use super::*;

    #[test]
    fn every_recording_names_registers_of_its_generation() {
        for (name, _) in RECORDINGS {
            let table = if name.starts_with("gen8") {
                &GEN8
            } else {
                &GEN9
            };
            let recording = Recording::load(name, table).unwrap();
            assert!(recording.values.iter().all(|v| !v.is_empty()), "{name}");
        }
    }

    #[test]
    fn what_is_no_good_is_refused() {
        let bad = [
            r#"{"kernel": "1", "engines": {"rcs1": {}}}"#,
            r#"{"kernel": "1", "engines": {"rcs0": {"NOTHING": "0x0"}}}"#,
            r#"{"kernel": "1", "engines": {"rcs0": {"HWSTAM": "many"}}}"#,
            r#"{"engines": {}}"#,
        ];
        for text in bad {
            assert!(Recording::parse(text, &GEN8).is_err(), "{text}");
        }
    }
}
