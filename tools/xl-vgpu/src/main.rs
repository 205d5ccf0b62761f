//! An xl front-end that understands vgpu=.
//!
//! xl ignores settings it does not know. This program reads `vgpu=` from the
//! configuration of `xl create`, checks it, and runs the real xl with three
//! settings more, which say the same in words xl knows. Installed as `xl`
//! ahead of the real one, it makes `xl create guest.cfg` just work; everything
//! else passes unchanged.
//!
//! Environment: XL_VGPU_XL names the real xl, VGPU_LAUNCHER the launcher,
//! VGPU_SOCKET vgpud's socket.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use vgpu_control::{ClientRequest, Connection};

use xl_vgpu::arguments::Create;
use xl_vgpu::config::Config;
use xl_vgpu::{real_xl, vgpu};

/// The longest configuration that is read. xl takes any that fits memory.
const MAX_CONFIG: u64 = 16 << 20;

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let more = match more_settings(&args) {
        Ok(more) => more,
        Err(e) => {
            eprintln!("xl: {e:#}");
            return ExitCode::FAILURE;
        }
    };
    // Only a failure comes back: on success this process is the real xl.
    let error = real_xl::exec(args.into_iter().chain(more.into_iter().map(Into::into)));
    eprintln!("xl: {error:#}");
    ExitCode::FAILURE
}

/// The settings that a `vgpu=` in what `xl create` would read stands for.
///
/// # Errors
/// What is wrong with it; nothing is to be created then.
fn more_settings(args: &[OsString]) -> anyhow::Result<Vec<String>> {
    let Some(create) = Create::parse(args) else {
        return Ok(Vec::new());
    };
    let Some(file) = read(&create)? else {
        return Ok(Vec::new());
    };
    let mut text = file.clone();
    for extra in &create.extra {
        text.push('\n');
        text.push_str(&extra.to_string_lossy());
    }
    let config = Config::parse(&text);
    if config.bad_line.is_some() && text.contains("vgpu") && config.get("vgpu").is_none() {
        // xl may understand it. Then it would ignore vgpu= in silence.
        bail!("{} does not parse", bad_part(&create, &file));
    }
    let Some(vgpu) = vgpu::Vgpu::from_config(&config)? else {
        return Ok(Vec::new());
    };
    if !create.dry_run {
        look_for_vgpud();
    }
    vgpu.settings(&launcher()?)
}

/// What does not parse, of a file with the text `file` and the settings behind
/// it.
fn bad_part(create: &Create, file: &str) -> String {
    let path = create.config.as_deref().unwrap_or_default();
    if let Some(line) = Config::parse(file).bad_line {
        return format!("line {line} of {}", Path::new(path).display());
    }
    let mut settings = create.extra.iter().map(|extra| extra.to_string_lossy());
    let bad = settings.find(|text| Config::parse(text).bad_line.is_some());
    bad.map_or("the configuration".into(), |text| {
        format!("setting {text:?}")
    })
}

/// The text of the file xl would parse; `None` when that is xl's to refuse.
fn read(create: &Create) -> anyhow::Result<Option<String>> {
    if let Some(path) = create.config.as_ref().filter(|p| *p != "/dev/null") {
        let path = Path::new(path);
        // xl takes regular files only.
        let Some(meta) = std::fs::metadata(path)
            .ok()
            .filter(std::fs::Metadata::is_file)
        else {
            return Ok(None);
        };
        if meta.len() > MAX_CONFIG {
            let size = meta.len();
            bail!("{} has {size} bytes, allowed: {MAX_CONFIG}", path.display());
        }
        let bytes = std::fs::read(path).ok();
        return Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()));
    }
    Ok(Some(String::new()))
}

/// Where the launcher is: beside this program, unless told otherwise.
fn launcher() -> anyhow::Result<PathBuf> {
    let path = match std::env::var_os("VGPU_LAUNCHER") {
        Some(path) => PathBuf::from(path),
        None => std::env::current_exe()
            .context("cannot find this program's directory")?
            .with_file_name("vgpu-launcher"),
    };
    if !path.is_file() {
        bail!("cannot find the launcher at {}", path.display());
    }
    Ok(path)
}

/// Says so if vgpud does not run. The launcher finds out as well, and that
/// fails the creation, but its words go to the device model's log.
fn look_for_vgpud() {
    let path = std::env::var_os("VGPU_SOCKET")
        .map_or_else(|| vgpu_control::DEFAULT_SOCKET.into(), PathBuf::from);
    let limit = Duration::from_millis(500);
    let answers = Connection::connect(&path, limit)
        .and_then(|vgpud| vgpud.send(&ClientRequest::Ping, &[]).map(|()| vgpud))
        .and_then(|vgpud| vgpud.recv::<vgpu_control::Reply<vgpu_control::Version>>());
    if let Err(e) = answers {
        let e = anyhow::Error::from(e);
        eprintln!("xl: vgpud does not run, so the guest will not start: {e:#}");
    }
}
