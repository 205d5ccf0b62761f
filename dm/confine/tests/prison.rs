//! A prisoner tries what is forbidden; every attempt must fail.
//!
//! The program runs itself once for each attempt, with what confines it: only
//! [`vgpu_confine::process`], only a thread's filter, or both. Its own end tells
//! how the attempt went.

#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode};

use nix::sys::signal::{Signal, kill};
use nix::sys::{prctl, ptrace};
use nix::unistd::{Pid, Uid, getppid, setuid};
use vgpu_confine::{Identity, Role, Seccomp, process, thread};

/// Of nobody else here.
const IDENTITY: Identity = Identity {
    uid: 0x7654_3210,
    gid: 0x7654_3210,
};

/// Attempts that must fail, and how they are made.
type Attempt = (&'static str, fn() -> bool);

const FORBIDDEN: &[Attempt] = &[
    ("open-a-file", || File::open("/etc/passwd").is_ok()),
    ("open-proc", || File::open("/proc/self/status").is_ok()),
    ("open-xen", || File::open("/dev/xen/privcmd").is_ok()),
    ("open-the-root", || File::open("/").is_ok()),
    ("create-a-file", || File::create("/left-behind").is_ok()),
    ("exec", || {
        // It returns only when it fails.
        let _error = Command::new("/bin/sh").exec();
        false
    }),
    ("spawn", || Command::new("/bin/true").status().is_ok()),
    ("ptrace-the-parent", || ptrace::attach(getppid()).is_ok()),
    ("signal-the-parent", || {
        kill(getppid(), Some(Signal::SIGCONT)).is_ok()
    }),
    ("signal-init", || {
        kill(Pid::from_raw(1), Some(Signal::SIGCONT)).is_ok()
    }),
    ("become-root", || setuid(Uid::from_raw(0)).is_ok()),
    ("connect-out", || {
        TcpStream::connect(SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 9)).is_ok()
    }),
    ("listen", || {
        TcpListener::bind(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 4711)).is_ok()
    }),
    ("connect-to-vgpud", || {
        UnixStream::connect("/run/vgpud.sock").is_ok()
    }),
    ("mount", || {
        let none: Option<&str> = None;
        nix::mount::mount(none, "/", Some("tmpfs"), nix::mount::MsFlags::empty(), none).is_ok()
    }),
    ("new-user-namespace-with-rights", || {
        use nix::sched::{CloneFlags, unshare};
        unshare(CloneFlags::CLONE_NEWUSER).is_ok()
            && unshare(CloneFlags::CLONE_NEWNS).is_ok()
            && File::open("/etc/passwd").is_ok()
    }),
    ("be-dumped", || prctl::get_dumpable().unwrap_or(true)),
];

/// Harmless to the host, and still no call that the thread makes.
const FOREIGN_CALLS: &[Attempt] = &[
    ("ioctl", || {
        use std::io::IsTerminal;
        // TCGETS. Its answer is no matter: it must not be asked.
        let _ = std::io::stderr().is_terminal();
        true
    }),
    ("send-signals-by-fcntl", || {
        use nix::fcntl::{FcntlArg, OFlag, fcntl};
        fcntl(std::io::stderr(), FcntlArg::F_SETFL(OFlag::O_ASYNC)).is_ok()
    }),
];

/// What a device model does all the time, and has to be able to.
fn works() -> bool {
    let memory: Vec<u8> = (0..8_u32 << 20).map(|i| i.to_le_bytes()[0]).collect();
    let Ok(bell) = nix::sys::eventfd::EventFd::new() else {
        return false;
    };
    let (mut reader, mut writer) = match std::io::pipe() {
        Ok(ends) => ends,
        Err(_) => return false,
    };
    let before = std::time::Instant::now();
    std::thread::sleep(std::time::Duration::from_millis(1));
    let mut back = [0; 2];
    bell.write(3).is_ok()
        && bell.read() == Ok(3)
        && writer.write_all(b"hi").is_ok()
        && reader.read_exact(&mut back).is_ok()
        && &back == b"hi"
        && memory.len() == 8 << 20
        && memory.iter().map(|b| u64::from(*b)).sum::<u64>() > 0
        && before.elapsed() >= std::time::Duration::from_millis(1)
}

/// In the filter from the start: what it needs was made before.
fn works_filtered(mode: Seccomp) -> bool {
    let Ok((mut reader, mut writer)) = std::io::pipe() else {
        return false;
    };
    if thread(Role::Vcpu, mode, &[]).is_err() {
        return false;
    }
    let memory: Vec<u8> = (0..8_u32 << 20).map(|i| i.to_le_bytes()[0]).collect();
    let mut back = [0; 2];
    let piped = writer.write_all(b"hi").is_ok() && reader.read_exact(&mut back).is_ok();
    std::thread::sleep(std::time::Duration::from_millis(1));
    std::thread::yield_now();
    eprintln!("still able to say so");
    piped && &back == b"hi" && memory.len() == 8 << 20
}

const DONE: u8 = 10;
const FAILED: u8 = 11;
const NOT_CONFINED: u8 = 12;

fn outcome(done: bool) -> ExitCode {
    ExitCode::from(if done { DONE } else { FAILED })
}

/// The prisoner: `HOW ATTEMPT`.
fn prisoner(how: &str, attempt: &str) -> ExitCode {
    if how.contains("process")
        && let Err(e) = process(IDENTITY)
    {
        eprintln!("process: {e:?}");
        return ExitCode::from(NOT_CONFINED);
    }
    if attempt == "work" {
        return outcome(match how {
            "process" => works(),
            "thread" | "process+thread" => works_filtered(Seccomp::Kill),
            _ => works_filtered(Seccomp::Log),
        });
    }
    if how.contains("thread")
        && let Err(e) = thread(Role::Control, Seccomp::Kill, &[])
    {
        eprintln!("thread: {e:?}");
        return ExitCode::from(NOT_CONFINED);
    }
    let Some((_, run)) = FORBIDDEN
        .iter()
        .chain(FOREIGN_CALLS)
        .find(|(name, _)| *name == attempt)
    else {
        return ExitCode::from(NOT_CONFINED);
    };
    outcome(run())
}

/// Runs a prisoner: its exit status or the signal that ended it.
fn try_it(how: &str, attempt: &str) -> Result<u8, i32> {
    let me = std::env::current_exe().expect("this program has a path");
    let status = Command::new(me).args(["prisoner", how, attempt]).status();
    let status = status.expect("a prisoner can be started");
    match (status.code(), status.signal()) {
        (Some(code), _) => Ok(u8::try_from(code).unwrap_or(u8::MAX)),
        (None, signal) => Err(signal.unwrap_or(0)),
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    if let [_, role, how, attempt] = args.as_slice()
        && role == "prisoner"
    {
        return prisoner(how, attempt);
    }
    if !Uid::effective().is_root() {
        println!("prison: needs root, as vgpud does; nothing was tried");
        return ExitCode::FAILURE;
    }
    let sigsys = nix::libc::SIGSYS;
    let mut wrong = Vec::new();
    let mut check = |how: &str, attempt: &str, allowed: &[Result<u8, i32>]| {
        let got = try_it(how, attempt);
        println!("{how}: {attempt}: {got:?}");
        if !allowed.contains(&got) {
            wrong.push(format!("{how}: {attempt}: {got:?}, allowed: {allowed:?}"));
        }
    };
    // Free, each of these would do: an attempt that cannot succeed shows nothing.
    for free in [
        "open-a-file",
        "open-proc",
        "open-the-root",
        "spawn",
        "signal-the-parent",
        "become-root",
        "listen",
        "be-dumped",
    ] {
        check("free", free, &[Ok(DONE)]);
    }
    for how in ["process", "thread", "process+thread", "log"] {
        check(how, "work", &[Ok(DONE)]);
    }
    for (attempt, _) in FORBIDDEN {
        check("process", attempt, &[Ok(FAILED)]);
        // prctl and unshare are forbidden themselves.
        check("process+thread", attempt, &[Err(sigsys), Ok(FAILED)]);
        check("thread", attempt, &[Err(sigsys)]);
    }
    for (attempt, _) in FOREIGN_CALLS {
        check("free", attempt, &[Ok(DONE), Ok(FAILED)]);
        check("thread", attempt, &[Err(sigsys)]);
    }
    if wrong.is_empty() {
        println!("prison: every attempt failed");
        return ExitCode::SUCCESS;
    }
    for line in wrong {
        println!("prison: WRONG: {line}");
    }
    ExitCode::FAILURE
}
