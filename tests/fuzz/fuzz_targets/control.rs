//! Packets of any content on a control socket, at every reader of one: what
//! parses must survive being sent on.
#![no_main]

use std::fmt::Debug;

use rustix::net::{SendFlags, send};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use vgpu_control::{ClientRequest, Connection, Entry, FromDm, Reply, ToDm};

fn hear<T: Serialize + DeserializeOwned + PartialEq + Debug>(data: &[u8]) {
    let (ours, theirs) = Connection::pair().expect("a socket pair");
    send(&theirs, data, SendFlags::NOSIGNAL).expect("room for a packet");
    let Ok((message, fds)) = ours.recv::<T>() else {
        return;
    };
    assert!(fds.is_empty());
    ours.send(&message, &[]).expect("what fits one packet");
    let (again, _) = theirs.recv::<T>().expect("our own message");
    assert_eq!(again, message);
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    // An empty packet is the end.
    if data.is_empty() || data.len() > 4096 {
        return;
    }
    hear::<ClientRequest>(data);
    hear::<ToDm>(data);
    hear::<FromDm>(data);
    hear::<Reply<Vec<Entry>>>(data);
    hear::<Reply<Value>>(data);
});
