//! Tries the shared area over grants where there is a real Xen: dom0 grants to
//! itself, from one process to another, and either is killed again and again.
//! Prints facts for the lab.

#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use grant_area::{GrantedArea, GrantedControl, Lifeline, MappedArea, MappedControl, Offer};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use vgpu_ring::{AreaConfig, Event, PipeError, PipeLimits, Request, Wake};
use xen_glue::{DomId, XenHost};

const DOM0: DomId = DomId(0);

const ROUNDS: u32 = 20;

const MOST: PipeLimits = PipeLimits {
    text: 1 << 20,
    attached: 16 << 20,
};

/// What is attached to each message.
const ATTACHED: usize = 1 << 20;

fn main() -> anyhow::Result<()> {
    match std::env::args().nth(1).as_deref() {
        None => both(),
        Some("device") => device(),
        Some("daemon") => daemon(),
        Some(other) => bail!("{other:?} is no side"),
    }
}

fn side(name: &str) -> anyhow::Result<Child> {
    let child = Command::new(std::env::current_exe()?)
        .arg(name)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    Ok(child)
}

/// What `child` says next.
fn heard(child: &mut BufReader<std::process::ChildStdout>) -> anyhow::Result<String> {
    let mut line = String::new();
    ensure!(child.read_line(&mut line)? > 0, "it ended");
    Ok(line.trim().into())
}

/// Waits for the end, and how long that took.
fn end(lifeline: &Lifeline, since: Instant) -> anyhow::Result<Duration> {
    while !lifeline.ended() {
        ensure!(since.elapsed() < Duration::from_secs(10), "no end is told");
        let mut fds = [PollFd::new(lifeline.fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::from(1000_u16))?;
    }
    Ok(since.elapsed())
}

struct Device {
    area: GrantedArea,
    control: GrantedControl,
    offer: Offer,
}

fn offer() -> anyhow::Result<Device> {
    let area = GrantedArea::create(&XenHost, DOM0, AreaConfig::default())?;
    let control = GrantedControl::create(&XenHost, DOM0)?;
    let (region, life) = area.offer();
    let offer = Offer {
        serial: 0,
        comings: 0,
        area: region,
        life,
        control: control.offer(),
    };
    Ok(Device {
        area,
        control,
        offer,
    })
}

/// Offers, and answers whatever comes, until killed.
fn device() -> anyhow::Result<()> {
    let Device {
        area,
        control,
        offer,
    } = offer()?;
    println!("{offer}");
    let mut ends = area.device_end(area.bells()?);
    let mut control = control.end()?;
    std::thread::spawn(move || {
        while ends.events.wait(None).is_ok() {
            while let Ok(Some(Event::Pong { token })) = ends.events.pop() {
                let _ = ends.requests.push(Request::Ping { token });
            }
        }
    });
    loop {
        let message = control.recv(MOST, None)?;
        control.send(&message.text, &message.attached, None)?;
    }
}

/// Opens what standard input offers, says so, and does nothing until killed.
fn daemon() -> anyhow::Result<()> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let offer: Offer = line.trim().parse()?;
    let _area = MappedArea::open(&XenHost, DOM0, &offer.area, offer.life)?;
    let _control = MappedControl::open(&XenHost, DOM0, &offer.control)?;
    println!("open");
    std::io::stdin().read_line(&mut line)?;
    Ok(())
}

fn both() -> anyhow::Result<()> {
    let mut told = Vec::new();
    for round in 0..ROUNDS {
        let mut child = side("device")?;
        let out = child.stdout.take().context("no output")?;
        let offer: Offer = heard(&mut BufReader::new(out))?.parse()?;
        let start = Instant::now();
        let area = MappedArea::open(&XenHost, DOM0, &offer.area, offer.life)?;
        let control = MappedControl::open(&XenHost, DOM0, &offer.control)?;
        let opened = start.elapsed();
        let mut ends = area.daemon_end(area.bells()?);
        for token in 0..100 {
            ends.events.push(Event::Pong { token })?;
            while ends.requests.wait(None)? != Wake::Message {}
            let got = ends.requests.pop()?;
            ensure!(got == Some(Request::Ping { token }), "{got:?}");
        }
        let mut pipe = control.end()?;
        let attached: Vec<u8> = (0..ATTACHED).map(|n| n.to_le_bytes()[0]).collect();
        let start = Instant::now();
        pipe.send(b"text", &attached, Some(Duration::from_secs(10)))?;
        let back = pipe.recv(MOST, Some(Duration::from_secs(10)))?;
        ensure!(
            back.text == b"text" && back.attached == attached,
            "other bytes"
        );
        let there_and_back = start.elapsed();
        let lifeline = area.lifeline();
        ensure!(!lifeline.ended(), "an end before the end");
        child.kill()?;
        told.push(end(&lifeline, Instant::now())?);
        let closed = pipe.recv(MOST, Some(Duration::from_secs(10)));
        ensure!(closed == Err(PipeError::Closed), "{closed:?}");
        child.wait()?;
        if round == 0 {
            println!("LAB grant-open-us {}", opened.as_micros());
            println!("LAB grant-pipe-mib-us {}", there_and_back.as_micros());
        }
    }
    told.sort_unstable();
    println!("LAB grant-device-killed {ROUNDS}");
    println!(
        "LAB grant-device-end-us {}",
        told[told.len() / 2].as_micros()
    );

    let device = offer()?;
    let lifeline = device.area.lifeline();
    let mut control = device.control.end()?;
    told.clear();
    for _ in 0..ROUNDS {
        let mut child = side("daemon")?;
        writeln!(
            child.stdin.as_mut().context("no input")?,
            "{}",
            device.offer
        )?;
        let out = child.stdout.take().context("no output")?;
        ensure!(heard(&mut BufReader::new(out))? == "open", "not open");
        ensure!(!lifeline.ended(), "an end before the end");
        ensure!(device.area.life().peer_there(), "nobody is there");
        child.kill()?;
        told.push(end(&lifeline, Instant::now())?);
        let closed = control.recv(MOST, Some(Duration::from_secs(10)));
        ensure!(closed == Err(PipeError::Closed), "{closed:?}");
        child.wait()?;
    }
    told.sort_unstable();
    println!("LAB grant-daemon-killed {ROUNDS}");
    println!(
        "LAB grant-daemon-end-us {}",
        told[told.len() / 2].as_micros()
    );
    Ok(())
}
