//! What has to be gone, and what not, when a scenario's guests are.

use crate::facts::Report;

/// One line for each thing that is not as it has to be.
pub fn wrong(dom0: &Report, guests: &[&str]) -> Vec<String> {
    let mut wrong = Vec::new();
    for name in guests {
        if dom0.get(&format!("guest-gone/{name}")) != Some("yes") {
            wrong.push(format!("teardown: {name} left a domain behind"));
        }
    }
    if dom0.get("vgpud-alive") != Some("yes") {
        wrong.push("teardown: vgpud did not live to the end".into());
    }
    match dom0.get("vgpu-dm-left") {
        Some("0") => {}
        Some(n) => wrong.push(format!("teardown: {n} vgpu-dm processes left")),
        None => wrong.push("teardown: vgpu-dm processes were not counted".into()),
    }
    wrong
}

/// The same for device models' domains.
pub fn stubs(dom0: &Report) -> Vec<String> {
    let keys = [
        ("stubs-left", "stub domains or zombies are left"),
        (
            "stub-nodes-left",
            "nodes of stub domains in xenstore are left",
        ),
    ];
    keys.into_iter()
        .filter_map(|(key, what)| match dom0.get(key) {
            Some("0") => None,
            Some(n) => Some(format!("teardown: {n} {what}")),
            None => Some(format!("teardown: {key} was not told")),
        })
        .collect()
}
