//! From `vgpu=` to the settings xl knows.

use std::path::Path;

use anyhow::{Context, bail};
use vgpu_config::{Slots, SpecError, VgpuSpec};

use crate::config::{Config, Value};

/// A vGPU that a configuration asks for and can have.
#[derive(Debug, PartialEq, Eq)]
pub struct Vgpu {
    spec: VgpuSpec,
}

impl Vgpu {
    /// What `config` asks for; `None` when it asks for none.
    ///
    /// # Errors
    /// What is wrong, naming key, value and what is allowed.
    pub fn from_config(config: &Config) -> anyhow::Result<Option<Self>> {
        let Some(value) = config.get("vgpu") else {
            return Ok(None);
        };
        let specs = value.atoms();
        if let Value::List(values) = value
            && values.len() != specs.len()
        {
            return Err(SpecError::new("entry", "a list", "a string").into());
        }
        let spec = match specs.as_slice() {
            [] => return Ok(None),
            [spec] => *spec,
            more => {
                let count = more.len().to_string();
                return Err(SpecError::new("number of entries", count, "1").into());
            }
        };
        let mut spec: VgpuSpec = spec.parse()?;
        check_domain(config)?;
        slots(config).check(spec.slot)?;
        if let Some(other) = config.text("device_model_override")
            && spec.qemu.is_none()
            && Path::new(other).file_name() != Some("vgpu-launcher".as_ref())
        {
            // The guest's own QEMU; the launcher becomes it.
            let with_qemu = format!("{spec},qemu={other}");
            spec = with_qemu.parse().context("device_model_override")?;
        }
        Ok(Some(Self { spec }))
    }

    /// The settings that give a guest this vGPU by way of `launcher`.
    ///
    /// # Errors
    /// When the launcher's path is none xl can be told.
    pub fn settings(&self, launcher: &Path) -> anyhow::Result<Vec<String>> {
        let launcher = launcher
            .to_str()
            .with_context(|| format!("{} is not UTF-8", launcher.display()))?;
        Ok(vec![
            format!("device_model_override={}", quote(launcher)),
            r#"device_model_version="qemu-xen""#.into(),
            format!(
                r#"device_model_args_hvm+=["-vgpu",{}]"#,
                quote(&self.spec.to_string())
            ),
        ])
    }
}

/// Settings of the domain that leave no place for a vGPU.
fn check_domain(config: &Config) -> anyhow::Result<()> {
    let must = |setting: &str, value: &str, allowed: &str| {
        bail!("{setting} is {value:?}, allowed with vgpu: {allowed:?}")
    };
    let kind = config.text("type").or_else(|| config.text("builder"));
    if kind != Some("hvm") {
        return must("type", kind.unwrap_or("pv"), "hvm");
    }
    for setting in ["device_model_stubdomain_override", "dm_restrict"] {
        match config.text(setting) {
            None | Some("0") => {}
            Some(value) => return must(setting, value, "0"),
        }
    }
    let has_own = |setting| {
        let args = config.get(setting).map(Value::atoms);
        args.is_some_and(|args| args.contains(&"-vgpu"))
    };
    for setting in ["device_model_args", "device_model_args_hvm"] {
        if has_own(setting) {
            bail!("{setting} has \"-vgpu\", allowed with vgpu: arguments of QEMU");
        }
    }
    Ok(())
}

/// The slots QEMU's devices take, as far as the configuration tells
/// (Xen `tools/libs/light/libxl_dm.c:libxl__build_device_model_args_new`).
/// The launcher sees QEMU's whole command line and looks again.
fn slots(config: &Config) -> Slots {
    let mut slots = Slots::default();
    if config.text("xen_platform_pci") != Some("0") {
        slots.next("xen-platform");
    }
    if config.text("vga") != Some("none") {
        slots.next("VGA");
    }
    for vif in config.get("vif").map(Value::atoms).unwrap_or_default() {
        let option = |key| vif.split(',').find_map(|o| o.trim().strip_prefix(key));
        if !matches!(option("type="), Some("vif" | "netfront")) {
            slots.next(option("model=").unwrap_or("rtl8139"));
        }
    }
    if config.text("hdtype") == Some("ahci") {
        slots.next("ahci");
    }
    for setting in ["device_model_args", "device_model_args_hvm"] {
        slots.add_args(config.get(setting).map(Value::atoms).unwrap_or_default());
    }
    slots
}

/// `text` as a string of a configuration.
pub fn quote(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str(r"\n"),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vgpu(text: &str) -> anyhow::Result<Option<Vgpu>> {
        Vgpu::from_config(&Config::parse(&format!("type = 'hvm'\n{text}")))
    }

    fn error(text: &str) -> String {
        let error = format!("{:#}", vgpu(text).unwrap_err());
        assert_eq!(error.lines().count(), 1);
        error
    }

    #[test]
    fn a_good_setting_becomes_three() {
        let vgpu = vgpu("vgpu = ['gpu=bdw,slot=10']").unwrap().unwrap();
        assert_eq!(
            vgpu.settings(Path::new("/opt/vgpu/vgpu-launcher")).unwrap(),
            [
                r#"device_model_override="/opt/vgpu/vgpu-launcher""#,
                r#"device_model_version="qemu-xen""#,
                r#"device_model_args_hvm+=["-vgpu","gpu=bdw,slot=10,aperture=256,mode=1024x768,weight=100,cap=0,slice=1,priority=normal"]"#,
            ]
        );
    }

    #[test]
    fn no_setting_and_an_empty_one_are_none() {
        assert_eq!(vgpu("").unwrap(), None);
        assert_eq!(vgpu("vgpu = []").unwrap(), None);
    }

    #[test]
    fn bad_settings_are_named_in_one_line() {
        assert_eq!(
            error("vgpu = ['slot=40']"),
            "vgpu: slot is \"40\", allowed: 2 to 31, decimal or 0x hexadecimal"
        );
        assert_eq!(
            error("vgpu = ['a', 'b']"),
            "vgpu: number of entries is \"2\", allowed: 1"
        );
        assert_eq!(
            error("vgpu = [['a']]"),
            "vgpu: entry is \"a list\", allowed: a string"
        );
        assert_eq!(
            error("vgpu = ['']\ntype = 'pvh'"),
            "type is \"pvh\", allowed with vgpu: \"hvm\""
        );
        assert_eq!(
            error("vgpu = ['']\ndm_restrict = 1"),
            "dm_restrict is \"1\", allowed with vgpu: \"0\""
        );
        assert!(error("vgpu = ['']\ndevice_model_args_hvm = ['-vgpu', 'x']").contains("-vgpu"));
    }

    #[test]
    fn slots_of_other_devices_are_known() {
        let with = "vif = ['', 'type=vif', 'model=e1000']\n\
                    device_model_args_hvm = ['-device', 'edu,addr=0x8']";
        for (slot, device) in [
            (2, "xen-platform"),
            (3, "VGA"),
            (4, "rtl8139"),
            (5, "e1000"),
            (8, "edu"),
        ] {
            let error = error(&format!("vgpu = ['slot={slot}']\n{with}"));
            let expected =
                format!("vgpu: slot is \"{slot}, taken by {device}\", allowed: 6, 7, 9, 10");
            assert!(error.starts_with(&expected), "{error}");
        }
        let free = "vgpu = ['slot=2']\nxen_platform_pci = 0\nvga = 'none'";
        assert!(vgpu(free).unwrap().is_some());
    }

    #[test]
    fn another_device_model_becomes_the_qemu() {
        let vgpu = vgpu("vgpu = ['']\ndevice_model_override = '/opt/qemu'").unwrap();
        assert_eq!(vgpu.unwrap().spec.qemu, Some("/opt/qemu".into()));
    }
}
