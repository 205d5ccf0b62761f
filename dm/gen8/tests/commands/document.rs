//! docs/commands.md is made from the command table.
//!
//! `UPDATE_DOCS=1 cargo test -p gen8 --test commands` writes it anew.

use std::fmt::Write as _;

use gen8::cmd::{
    AddressField, Bits, Bytes, CLIENTS, Command, Flow, GEN9_ONLY, Guests, Length, Privilege,
    RegisterField, Space, Touch, Width,
};

const HEAD: &str = "# Commands

Made from the table in `dm/gen8/src/cmd/`; do not edit. To make it anew:
`UPDATE_DOCS=1 cargo test -p gen8 --test commands`.

*match*: the value of the first dword under a mask. *dwords*: the lengths a
command may have, with the bits of its length field, which holds two less;
*probably* where the length follows from Gen7's form, *any* where no source
tells it. *addresses*: r read, w written, by dword; those named with *global*
may be in the global table, the others go through the context's own tables;
then how many bytes, if the command tells. *if 1:0x100*: when a bit of that
mask is set in dword 1. *memory through state*: it, or what it starts, reaches
memory by what was set up before. *unprivileged*: what the hardware
does with it outside rings and privileged batches. *guests*: whether vgpud lets
one with privilege pass at all. *status page*: the dword may be an offset into
the context's status page instead of an address.
";

fn bits(b: Bits) -> String {
    let mut s = String::new();
    if b.any != 0 {
        let _ = write!(s, " if {}:{:#x}", b.dword, b.any);
    }
    if b.none != 0 {
        let _ = write!(s, " unless {}:{:#x}", b.dword, b.none);
    }
    s
}

fn repeat(dword: u8, stride: u8, count: u8) -> String {
    match (stride, count) {
        (_, 1) => format!("{dword}"),
        (n, 0) => format!("{dword}, +{n}, …"),
        (n, c) => format!("{dword}, +{n}, {c} times"),
    }
}

fn address(a: &AddressField) -> String {
    let touch = match a.touch {
        Touch::Read => "r",
        Touch::Write => "w",
        Touch::Both => "rw",
    };
    let place = repeat(a.dword, a.each.stride, a.each.count);
    let mut s = format!("{touch} {place}");
    match a.space {
        Space::Ppgtt => {}
        Space::GgttIf { dword, bit } => {
            let _ = write!(s, " global if {dword}:bit {bit}");
        }
        Space::GgttUnless { bit } => {
            let _ = write!(s, " global unless 0:bit {bit}");
        }
        Space::Ggtt => s.push_str(" global"),
    }
    if a.width == Width::Low {
        s.push_str(" 32-bit");
    }
    match a.bytes {
        Bytes::Known(n) => {
            let _ = write!(s, ", {n} bytes");
        }
        Bytes::If { bit, set, clear } => {
            let _ = write!(s, ", {clear} bytes, {set} with bit {bit}");
        }
        Bytes::AtMost(n) => {
            let _ = write!(s, ", up to {n} bytes");
        }
        Bytes::Atomic => s.push_str(", 4 to 16 bytes"),
        Bytes::Shape | Bytes::State => {}
    }
    s + &bits(a.when)
}

fn register(r: &RegisterField) -> String {
    let verb = if r.write { "writes" } else { "reads" };
    let place = repeat(r.dword, r.each.stride, r.each.count);
    format!("{verb} the register in {place}{}", bits(r.when))
}

fn effects(c: &Command) -> String {
    let mut all: Vec<String> = c.registers.iter().map(register).collect();
    if let Some(s) = c.status {
        all.push(format!("status page by {}{}", s.dword, bits(s.when)));
    }
    for e in c.sets {
        all.push(format!("writes {}{}", e.register, bits(e.when)));
    }
    match c.flow {
        Flow::Next => {}
        Flow::StartsBatch => all.push("starts a batch".to_owned()),
        Flow::EndsBatch => all.push("ends the batch".to_owned()),
        Flow::MayEndBatch => all.push("may end the batch".to_owned()),
        Flow::Waits => all.push("waits".to_owned()),
    }
    if let Some(when) = c.interrupt {
        all.push(format!("interrupts{}", bits(when)));
    }
    if let Some(bit) = c.predicate {
        all.push(format!("predicated by bit {bit}"));
    }
    if c.through_state {
        all.push("memory through state".to_owned());
    }
    all.join("; ")
}

fn length(c: &Command) -> String {
    match c.length {
        Length::Fixed(n) => n.to_string(),
        Length::Field { mask, bias } => {
            assert_eq!(bias, 2, "the head of the document says so");
            format!("{} ({}:0)", c.lengths, mask.ilog2())
        }
    }
}

fn engines(c: &Command) -> String {
    let names: Vec<_> = c.engines.iter().map(|e| format!("{e:?}")).collect();
    if names.len() == 4 {
        "all".to_owned()
    } else {
        names.join(" ").to_uppercase()
    }
}

fn row(c: &Command) -> String {
    let addresses: Vec<_> = c.addresses.iter().map(address).collect();
    let unprivileged = match c.privilege {
        Privilege::Any => "runs",
        Privilege::Privileged => "no-op",
    };
    let guests = match c.guests {
        Guests::Allowed => "yes",
        Guests::Nothing => "as no-ops",
        Guests::Refused => "no",
    };
    format!(
        "| {} | `{:08x}`/`{:08x}` | {} | {} | {} | {} | {unprivileged} | {guests} |\n",
        c.name,
        c.value,
        c.mask,
        engines(c),
        length(c),
        addresses.join("; "),
        effects(c),
    )
}

fn document() -> String {
    let mut doc = HEAD.to_owned();
    let gen9 = ("Gen9 instead, or besides", GEN9_ONLY);
    for (client, rows) in CLIENTS.into_iter().chain([gen9]) {
        let _ = write!(
            doc,
            "\n## {client}\n\n\
             | command | match | engines | dwords | addresses | effects | unprivileged | guests |\n\
             |---|---|---|---|---|---|---|---|\n"
        );
        doc.extend(rows.iter().map(row));
    }
    doc
}

#[test]
fn the_document_is_current() {
    generated_docs::check(
        "commands.md",
        &document(),
        "cargo test -p gen8 --test commands",
    );
}
