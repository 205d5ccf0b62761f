//! The proxy between a client and a fake QEMU, over real sockets.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use serde_json::{Value, json};

use super::frame::Framer;
use super::hooks::{Hooks, Verdict};
use super::{Proxy, stream};

const GREETING: &str = "{\"QMP\": {\"version\": {\"qemu\": {\"major\": 7}}}}\r\n";

/// Acts at no moment.
struct PassAll;

impl Hooks for PassAll {}

/// A directory of this test's own.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("vgpud-qmp-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }
    fn public(&self) -> PathBuf {
        self.0.join("public")
    }
    fn private(&self) -> PathBuf {
        self.0.join("private")
    }
    fn proxy(&self, hooks: impl Hooks + 'static) -> Proxy {
        Proxy::start(&self.public(), &self.private(), Box::new(hooks)).unwrap()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What the fake QEMU got: a command and its descriptors.
type Got = (Value, Vec<OwnedFd>);

/// Serves `clients` clients: greets, announces an event before each reply,
/// and hangs up on `quit` without one. The reply's "return" is the length of
/// the command, or as many x as its argument "long" asks for.
fn fake_qemu(path: &Path, clients: usize) -> (Receiver<Got>, JoinHandle<()>) {
    let listener = UnixListener::bind(path).unwrap();
    let (got, gets) = channel();
    let thread = thread::spawn(move || {
        for _ in 0..clients {
            serve(&listener.accept().unwrap().0, &got);
        }
    });
    (gets, thread)
}

fn serve(client: &UnixStream, got: &Sender<Got>) {
    stream::send(client, GREETING.as_bytes(), &[]).unwrap();
    let mut framer = Framer::default();
    let mut buf = [0; 1000];
    loop {
        let (n, fds) = stream::receive(client, &mut buf).unwrap();
        if n == 0 {
            return;
        }
        for frame in framer.push(&buf[..n], fds).unwrap() {
            let command: Value = serde_json::from_slice(&frame.bytes).unwrap();
            let quit = command["execute"] == "quit";
            let long = command.pointer("/arguments/long").and_then(Value::as_u64);
            let value = long.map_or(json!(frame.bytes.len()), |n| {
                json!("x".repeat(n.try_into().unwrap()))
            });
            let reply = json!({"id": command["id"], "return": value});
            got.send((command, frame.fds)).unwrap();
            if quit {
                return;
            }
            let text = format!("{{\"event\": \"STOP\"}}\r\n{reply}\r\n");
            stream::send(client, text.as_bytes(), &[]).unwrap();
        }
    }
}

struct Client(BufReader<UnixStream>);

impl Client {
    fn connect(dir: &Dir) -> Self {
        Self(BufReader::new(UnixStream::connect(dir.public()).unwrap()))
    }
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line
    }
    fn send(&self, bytes: &[u8]) {
        self.0.get_ref().write_all(bytes).unwrap();
    }
    /// The next reply; an event before it is expected if `event`.
    fn reply(&mut self, event: bool) -> Value {
        if event {
            assert_eq!(self.line(), "{\"event\": \"STOP\"}\r\n");
        }
        let line = self.line();
        assert!(line.ends_with("\r\n"), "{line:?}");
        serde_json::from_str(&line).unwrap()
    }
}

#[test]
fn greeting_events_ids_and_split_writes_pass() {
    let dir = Dir::new("pass");
    let proxy = dir.proxy(PassAll);
    // libxl may connect before QEMU listens.
    let mut client = Client::connect(&dir);
    let (gets, qemu) = fake_qemu(&dir.private(), 1);
    assert_eq!(client.line(), GREETING);
    let one = b"{\"execute\":\"qmp_capabilities\",\"id\":1}\r\n";
    let two = b"{\"execute\":\"cont\",\"id\":\"two\"}\r\n";
    client.send(&[&one[..], &two[..]].concat());
    assert_eq!(client.reply(true), json!({"id": 1, "return": one.len()}));
    assert_eq!(
        client.reply(true),
        json!({"id": "two", "return": two.len()})
    );
    for byte in one {
        client.send(&[*byte]);
    }
    // The last line end may come apart from its message.
    assert_eq!(client.reply(true)["id"], json!(1));
    assert_eq!(gets.iter().take(3).count(), 3);
    drop(client);
    qemu.join().unwrap();
    drop(proxy);
    assert!(!dir.public().exists());
    assert!(!dir.private().exists());
}

#[test]
fn descriptors_arrive_with_their_command() {
    let dir = Dir::new("fds");
    let _proxy = dir.proxy(PassAll);
    let (gets, _qemu) = fake_qemu(&dir.private(), 1);
    let mut client = Client::connect(&dir);
    client.line();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let command = b"{\"execute\":\"add-fd\",\"id\":7}\r\n";
    stream::send(client.0.get_ref(), command, &[writer.into()]).unwrap();
    assert_eq!(client.reply(true)["id"], json!(7));
    let (_, mut fds) = gets.recv().unwrap();
    assert_eq!(fds.len(), 1);
    File::from(fds.remove(0)).write_all(b"state").unwrap();
    let mut text = String::new();
    // Ends only when no copy of the descriptor is left in the proxy.
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "state");
}

#[test]
fn a_mebibyte_passes_both_ways() {
    let dir = Dir::new("long");
    let _proxy = dir.proxy(PassAll);
    let (gets, _qemu) = fake_qemu(&dir.private(), 1);
    let mut client = Client::connect(&dir);
    client.line();
    let fill = "y".repeat(1 << 20);
    let command = json!({"execute": "stop", "id": 1, "arguments": {"long": 1 << 20, "fill": fill}});
    client.send(format!("{command}\r\n").as_bytes());
    let reply = client.reply(true);
    assert_eq!(reply["return"].as_str().map(str::len), Some(1 << 20));
    assert_eq!(gets.recv().unwrap().0, command);
}

#[test]
fn clients_come_and_go_one_at_a_time() {
    let dir = Dir::new("clients");
    let _proxy = dir.proxy(PassAll);
    let (_gets, qemu) = fake_qemu(&dir.private(), 3);
    for id in 0..3 {
        let mut client = Client::connect(&dir);
        assert_eq!(client.line(), GREETING);
        client.send(format!("{{\"execute\":\"x\",\"id\":{id}}}").as_bytes());
        assert_eq!(client.reply(true)["id"], json!(id));
        // Gone in the middle of a command.
        client.send(b"{\"execute\":");
    }
    qemu.join().unwrap();
}

#[test]
fn a_qemu_that_hangs_up_is_passed_on() {
    let dir = Dir::new("quit");
    let _proxy = dir.proxy(PassAll);
    let (_gets, qemu) = fake_qemu(&dir.private(), 1);
    let mut client = Client::connect(&dir);
    client.line();
    client.send(b"{\"execute\":\"quit\"}");
    assert_eq!(client.line(), "");
    qemu.join().unwrap();
}

/// Notes its moments; refuses descriptors and a second stop.
struct Notes(Sender<&'static str>, bool);

impl Hooks for Notes {
    fn dirty_log(&mut self, enable: bool) -> Verdict {
        self.0
            .send(if enable { "log on" } else { "log off" })
            .unwrap();
        Verdict::Pass
    }
    fn stopped(&mut self) -> Verdict {
        self.0.send("stopped").unwrap();
        if std::mem::replace(&mut self.1, true) {
            return Verdict::Fail("the vGPU does not drain".into());
        }
        Verdict::Pass
    }
    fn add_fd(&mut self, fd: Option<BorrowedFd<'_>>) -> Verdict {
        self.0
            .send(if fd.is_some() { "fd" } else { "no fd" })
            .unwrap();
        Verdict::Fail("not now".into())
    }
    fn device_state_saved(&mut self) -> Verdict {
        self.0.send("saved").unwrap();
        Verdict::Pass
    }
    fn resuming(&mut self) -> Verdict {
        self.0.send("resuming").unwrap();
        Verdict::Pass
    }
}

#[test]
fn hooks_see_their_moments_and_can_refuse() {
    let dir = Dir::new("hooks");
    let (notes, noted) = channel();
    let _proxy = dir.proxy(Notes(notes, false));
    let (gets, _qemu) = fake_qemu(&dir.private(), 1);
    let mut client = Client::connect(&dir);
    client.line();
    let mut say = |text: &str, fds: &[OwnedFd], event| {
        stream::send(client.0.get_ref(), text.as_bytes(), fds).unwrap();
        client.reply(event)
    };
    say(
        r#"{"execute":"xen-set-global-dirty-log","arguments":{"enable":true}}"#,
        &[],
        true,
    );
    say(r#"{"execute":"query-status"}"#, &[], true);
    say(r#"{"execute":"stop","id":1}"#, &[], true);
    let (reader, _writer) = std::io::pipe().unwrap();
    let refused = say(r#"{"execute":"add-fd","id":"f"}"#, &[reader.into()], false);
    assert_eq!(
        refused,
        json!({"error": {"class": "GenericError", "desc": "not now"}, "id": "f"})
    );
    say(r#"{"execute":"xen-save-devices-state","id":3}"#, &[], true);
    let refused = say(r#"{"execute":"stop","id":4}"#, &[], true);
    assert_eq!(refused["error"]["desc"], "the vGPU does not drain");
    assert_eq!(refused["id"], 4);
    say(r#"{"execute":"cont"}"#, &[], true);
    let noted: Vec<_> = noted.try_iter().collect();
    assert_eq!(
        noted,
        ["log on", "stopped", "fd", "saved", "stopped", "resuming"]
    );
    let heard: Vec<_> = gets.try_iter().map(|(c, _)| c["execute"].clone()).collect();
    assert_eq!(
        heard,
        [
            "xen-set-global-dirty-log",
            "query-status",
            "stop",
            "xen-save-devices-state",
            "stop",
            "cont"
        ]
    );
}

#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    let dir = Dir::new("file");
    std::fs::write(dir.public(), "precious").unwrap();
    let started = Proxy::start(&dir.public(), &dir.private(), Box::new(PassAll));
    let error = started.err().unwrap();
    assert!(error.to_string().contains(dir.public().to_str().unwrap()));
    assert_eq!(std::fs::read(dir.public()).unwrap(), b"precious");
    // A socket left by a guest before is not in the way.
    drop(UnixListener::bind(dir.private()).unwrap());
    std::fs::remove_file(dir.public()).unwrap();
    drop(UnixListener::bind(dir.public()).unwrap());
    let proxy = dir.proxy(PassAll);
    assert!(dir.public().exists());
    assert!(!dir.private().exists());
    // Nobody is connected: dropping must not wait for anybody.
    drop(proxy);
}

#[test]
fn a_qemu_that_accepts_nobody_holds_nobody() {
    let dir = Dir::new("deaf");
    let proxy = dir.proxy(PassAll);
    let _listener = UnixListener::bind(dir.private()).unwrap();
    // It fills its own queue; the last of these waits for ever.
    let full = || {
        let socket = rustix::net::socket_with(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::STREAM,
            rustix::net::SocketFlags::NONBLOCK,
            None,
        )
        .unwrap();
        let address = rustix::net::SocketAddrUnix::new(dir.private()).unwrap();
        rustix::net::connect(&socket, &address).map(|()| socket)
    };
    let mut queue = Vec::new();
    while let Ok(socket) = full() {
        queue.push(socket);
    }
    let mut client = UnixStream::connect(dir.public()).unwrap();
    client.write_all(b"{\"execute\":\"query-status\"}").unwrap();
    // The guest goes: this must not wait for its QEMU.
    drop(proxy);
    assert_eq!(client.read(&mut [0; 16]).unwrap_or(0), 0);
}
