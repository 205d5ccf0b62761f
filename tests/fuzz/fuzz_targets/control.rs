//! Packets of any content on a control socket, at every reader of one: what
//! parses must survive being sent on. And the same bytes as the file of kept
//! shares: what parses could have been set.
#![no_main]

use std::fmt::Debug;

use rustix::net::{SendFlags, send};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use vgpu_config::VgpuSpec;
use vgpu_control::{
    ClientRequest, Connection, Entry, FromDm, Held, Reply, Sample, ToDm, TracePage,
};
use vgpu_sched::kept;

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

/// All changes or none.
fn change(changes: &str) {
    let mut spec = VgpuSpec::default();
    match spec.change(changes) {
        Ok(()) => assert_eq!(spec.to_string().parse(), Ok(spec)),
        Err(e) => {
            assert_eq!(spec, VgpuSpec::default());
            assert_eq!(e.to_string().lines().count(), 1);
        }
    }
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
    hear::<Reply<Held>>(data);
    hear::<Reply<Sample>>(data);
    hear::<Reply<TracePage>>(data);
    hear::<Reply<Value>>(data);
    if let Ok(ClientRequest::Set { changes, .. }) = serde_json::from_slice(data) {
        change(&changes);
    }
    for kept in kept::parse(data).unwrap_or_default() {
        assert!(VgpuSpec::default().change(&kept.changes).is_ok());
    }
});
