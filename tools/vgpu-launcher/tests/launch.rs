//! The launcher itself, with a script as QEMU and a test's vgpud.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::thread;

use serde_json::{Value, json};
use vgpu_control::{ClientRequest, Listener, Reply};

struct Dir(PathBuf);

impl Dir {
    /// A directory with a QEMU that prints its pid and arguments.
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("vgpu-launcher-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let qemu = dir.join("qemu");
        std::fs::write(&qemu, "#!/bin/sh\necho $$ \"$@\"\nls /proc/$$/fd\n").unwrap();
        std::fs::set_permissions(&qemu, PermissionsExt::from_mode(0o755)).unwrap();
        Self(dir)
    }

    /// Runs the launcher; its pid and what it printed.
    fn launch(&self, args: &[&str]) -> (u32, Output) {
        let child = Command::new(env!("CARGO_BIN_EXE_vgpu-launcher"))
            .args(args)
            .env("VGPU_SOCKET", self.0.join("sock"))
            .env("VGPU_QEMU", self.0.join("qemu"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        (child.id(), child.wait_with_output().unwrap())
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const GUEST: [&str; 8] = [
    "-xen-domid",
    "7",
    "-chardev",
    "socket,id=libxl-cmd,path=/x/qmp-libxl-7,server=on",
    "-vgpu",
    "slot=9",
    "-m",
    "64",
];

#[test]
fn a_registered_guest_becomes_qemu_in_the_same_process() {
    let dir = Dir::new("becomes");
    let listener = Listener::bind(&dir.0.join("sock")).unwrap();
    let vgpud = thread::spawn(move || {
        let client = listener.accept().unwrap();
        let pid = client.peer().unwrap().pid;
        let mut requests = Vec::new();
        for _ in 0..2 {
            requests.push(client.recv::<ClientRequest>().unwrap().0);
            client.send(&Reply::Ok(json!({})), &[]).unwrap();
        }
        // The connection ends where QEMU begins.
        assert!(client.recv::<ClientRequest>().is_err());
        (pid, requests)
    });
    let (pid, output) = dir.launch(&GUEST);
    let (peer, requests) = vgpud.join().unwrap();
    assert_eq!(peer, pid.cast_signed());
    assert_eq!(requests[0], ClientRequest::Ping);
    let register = serde_json::to_value(&requests[1]).unwrap();
    assert_eq!(register["register"]["domid"], 7);
    assert_eq!(
        register["register"]["vgpu"],
        "slot=9,aperture=256,mode=1024x768,weight=100,cap=0,slice=1,priority=normal"
    );
    assert_eq!(
        register["register"]["qmp"],
        json!({"public": "/x/qmp-libxl-7", "private": "/x/qmp-vgpu-7"})
    );
    let stdout = String::from_utf8(output.stdout).unwrap();
    let mut lines = stdout.lines();
    assert_eq!(
        lines.next().unwrap(),
        format!(
            "{pid} -xen-domid 7 -chardev socket,id=libxl-cmd,path=/x/qmp-vgpu-7,server=on -m 64"
        )
    );
    // QEMU has the descriptors it would have without us.
    let plain = String::from_utf8(dir.launch(&["-xen-domid", "7"]).1.stdout).unwrap();
    assert!(lines.eq(plain.lines().skip(1)), "{stdout}{plain}");
}

#[test]
fn qemu_holds_what_vgpud_gives_it() {
    let dir = Dir::new("holds");
    let listener = Listener::bind(&dir.0.join("sock")).unwrap();
    let path = dir.0.join("held");
    let held = std::fs::File::create(&path).unwrap();
    std::fs::write(
        dir.0.join("qemu"),
        "#!/bin/sh\nfor fd in /proc/$$/fd/*; do readlink $fd; done\n",
    )
    .unwrap();
    let vgpud = thread::spawn(move || {
        let client = listener.accept().unwrap();
        client.recv::<ClientRequest>().unwrap();
        client.send(&Reply::Ok(json!({})), &[]).unwrap();
        client.recv::<ClientRequest>().unwrap();
        let fds = [held.as_fd()];
        client
            .send(&Reply::Ok(json!({"incoming_at": 0})), &fds)
            .unwrap();
    });
    let (_, output) = dir.launch(&GUEST);
    vgpud.join().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    let held = stdout.lines().filter(|l| *l == path.to_str().unwrap());
    assert_eq!(held.count(), 1, "{stdout}");
}

#[test]
fn qemu_reads_a_restored_guest_behind_vgpuds_mark() {
    let dir = Dir::new("incoming");
    let qemu = dir.0.join("qemu");
    std::fs::write(
        &qemu,
        "#!/bin/sh\nfor last; do :; done\ncat <&${last#fd:}\n",
    )
    .unwrap();
    let state = dir.0.join("state");
    std::fs::write(&state, "XVGPUSAVthe state of QEMU").unwrap();
    let listener = Listener::bind(&dir.0.join("sock")).unwrap();
    let vgpud = thread::spawn(move || {
        let client = listener.accept().unwrap();
        client.recv::<ClientRequest>().unwrap();
        client.send(&Reply::Ok(json!({})), &[]).unwrap();
        let (request, fds) = client.recv::<ClientRequest>().unwrap();
        let registered = json!({"incoming_at": 8});
        client.send(&Reply::Ok(registered), &[]).unwrap();
        (request, fds.len())
    });
    let child = Command::new(env!("CARGO_BIN_EXE_vgpu-launcher"))
        .args(GUEST)
        .args(["-incoming", "fd:0"])
        .env("VGPU_SOCKET", dir.0.join("sock"))
        .env("VGPU_QEMU", &qemu)
        .stdin(File::open(&state).unwrap())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let (request, fds) = vgpud.join().unwrap();
    let register = serde_json::to_value(&request).unwrap();
    assert_eq!(register["register"]["incoming"], true);
    assert_eq!(fds, 1);
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "the state of QEMU"
    );
}

#[test]
fn what_vgpud_refuses_is_told_and_qemu_does_not_run() {
    let dir = Dir::new("refused");
    let listener = Listener::bind(&dir.0.join("sock")).unwrap();
    let vgpud = thread::spawn(move || {
        let client = listener.accept().unwrap();
        client.recv::<ClientRequest>().unwrap();
        client.send(&Reply::Ok(json!({})), &[]).unwrap();
        client.recv::<ClientRequest>().unwrap();
        let refusal: Reply<Value> = Reply::Error("the GPU is full".into());
        client.send(&refusal, &[]).unwrap();
    });
    let (_, output) = dir.launch(&GUEST);
    vgpud.join().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(output.stdout, b"");
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "vgpu-launcher: no vGPU: the GPU is full\n"
    );
}

#[test]
fn without_vgpud_it_fails_with_the_reason() {
    let dir = Dir::new("absent");
    let (_, output) = dir.launch(&GUEST);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(output.stdout, b"");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.starts_with("vgpu-launcher: vgpud does not run: cannot connect to "),
        "{stderr}"
    );
    assert_eq!(stderr.lines().count(), 1);
}

#[test]
fn without_a_vgpu_it_just_becomes_qemu() {
    let dir = Dir::new("plain");
    for args in [
        &["-xen-domid", "7"][..],
        &["-xen-attach", "-vgpu", "slot=9"],
    ] {
        let (pid, output) = dir.launch(args);
        let stdout = String::from_utf8(output.stdout).unwrap();
        assert!(
            stdout.starts_with(&format!("{pid} {}", args[0])),
            "{stdout}"
        );
        assert!(!stdout.contains("-vgpu"));
    }
}
