//! The front-end itself, with a script as the real xl.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Command, Output};

struct Dir(PathBuf);

impl Dir {
    /// A directory with a real `xl` that prints its arguments in brackets,
    /// and another with this program under that name.
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("xl-vgpu-{}-{name}", std::process::id()));
        std::fs::create_dir_all(dir.join("real")).unwrap();
        std::fs::create_dir_all(dir.join("front")).unwrap();
        let xl = dir.join("real/xl");
        std::fs::write(&xl, "#!/bin/sh\nprintf '[%s]' \"$@\"\nexit 5\n").unwrap();
        std::fs::set_permissions(&xl, PermissionsExt::from_mode(0o755)).unwrap();
        symlink(env!("CARGO_BIN_EXE_xl-vgpu"), dir.join("front/xl")).unwrap();
        std::fs::write(dir.join("launcher"), "").unwrap();
        Self(dir)
    }

    fn config(&self, text: &str) -> String {
        let path = self.0.join("guest.cfg");
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Runs `xl` as a shell would find it.
    fn xl(&self, args: &[&str]) -> Output {
        let path = [self.0.join("front"), self.0.join("real"), "/bin".into()];
        Command::new(self.0.join("front/xl"))
            .args(args)
            .env("PATH", std::env::join_paths(path).unwrap())
            .env("VGPU_LAUNCHER", self.0.join("launcher"))
            .env("VGPU_SOCKET", self.0.join("no-vgpud"))
            .env_remove("XL_VGPU_XL")
            .output()
            .unwrap()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn other_commands_and_plain_guests_pass_unchanged() {
    let dir = Dir::new("plain");
    let plain = dir.config("type = 'hvm'\nmemory = 512\n");
    for args in [
        &["list", "-l"][..],
        &["create", &plain, "-p", "memory=1"],
        &["create", "/nonexistent.cfg"],
        &["migrate", "vgpu", "host"],
        &[],
    ] {
        let output = dir.xl(args);
        let expected: String = args.iter().map(|a| format!("[{a}]")).collect();
        let expected = if args.is_empty() { "[]" } else { &expected };
        assert_eq!(text(&output.stdout), expected);
        assert_eq!(output.status.code(), Some(5));
        assert_eq!(text(&output.stderr), "");
    }
}

#[test]
fn a_vgpu_is_passed_in_words_xl_knows() {
    let dir = Dir::new("vgpu");
    let config = dir.config("type = 'hvm'\nvgpu = [ 'gpu=bdw,slot=10' ]\n");
    let output = dir.xl(&["create", "-p", &config, "vcpus=2"]);
    let launcher = dir.0.join("launcher");
    assert_eq!(
        text(&output.stdout),
        format!(
            "[create][-p][{config}][vcpus=2][device_model_override=\"{}\"]\
             [device_model_version=\"qemu-xen\"]\
             [device_model_args_hvm+=[\"-vgpu\",\"gpu=bdw,slot=10,aperture=256,mode=1024x768,weight=100,cap=0,slice=1,priority=normal\"]]",
            launcher.display()
        )
    );
    assert_eq!(output.status.code(), Some(5));
    // No vgpud runs: that is told, and left to the launcher.
    let stderr = text(&output.stderr);
    assert!(stderr.starts_with("xl: vgpud does not run"), "{stderr}");
    assert_eq!(stderr.lines().count(), 1);
}

#[test]
fn settings_on_the_command_line_count() {
    let dir = Dir::new("extra");
    let config = dir.config("type = 'hvm'\n");
    let output = dir.xl(&["create", "-n", &config, "vgpu=['slot=12']"]);
    assert!(text(&output.stdout).contains("slot=12,aperture=256"));
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn a_bad_vgpu_creates_nothing() {
    let dir = Dir::new("bad");
    for (line, expected) in [
        (
            "vgpu = ['typo=1']",
            "xl: vgpu: key is \"typo\", allowed: gpu, type, slot, aperture, mode, msi, weight, cap, slice, priority, stub, qemu\n",
        ),
        (
            "vgpu = ['gpu=skl']",
            "xl: vgpu: gpu is \"skl\", allowed: host, bdw, kbl\n",
        ),
        (
            "vgpu = ['slot=1']",
            "xl: vgpu: slot is \"1\", allowed: 2 to 31, decimal or 0x hexadecimal\n",
        ),
    ] {
        let config = dir.config(&format!("type = 'hvm'\n{line}\n"));
        let output = dir.xl(&["create", &config]);
        assert_eq!(text(&output.stderr), expected);
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(output.stdout, b"");
    }
}

#[test]
fn what_does_not_parse_is_named() {
    let dir = Dir::new("parse");
    let good = dir.config("type = 'hvm'\n");
    let refused = |args: &[&str]| {
        let output = dir.xl(args);
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(output.stdout, b"");
        text(&output.stderr).to_owned()
    };
    assert_eq!(
        refused(&["create", &good, "memory=512", "vgpu=['slot=5'"]),
        "xl: setting \"vgpu=['slot=5'\" does not parse\n"
    );
    assert_eq!(
        refused(&["create", "vgpu=slot=5"]),
        "xl: setting \"vgpu=slot=5\" does not parse\n"
    );
    let bad = dir.config("type = 'hvm'\nvgpu = ['slot=5'\n");
    // What stands behind an open bracket is not what is wrong.
    for extra in [None, Some("memory=512")] {
        let args: Vec<&str> = ["create", &bad].into_iter().chain(extra).collect();
        let expected = format!("xl: line 3 of {bad} does not parse\n");
        assert_eq!(refused(&args), expected);
    }
}
