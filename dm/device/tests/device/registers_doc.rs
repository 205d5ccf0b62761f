//! docs/registers.md is made from the register table.
//!
//! `UPDATE_DOCS=1 cargo test -p vgpu-device registers_doc` writes it anew.

use std::fmt::Write as _;

use gen8::platform::PLATFORMS;
use gen8::vreg::{Access, Place, Reset, Saved};

fn place(p: Place) -> String {
    match p {
        Place::At(offset) => format!("`{offset:#x}`"),
        Place::Row {
            first,
            count,
            stride,
        } => format!("`{first:#x}` + {stride:#x}·n, n < {count}"),
        Place::Engines(rel) => format!("engine + `{rel:#x}`"),
        Place::EngineRow { first, count } => {
            format!("engine + `{first:#x}` + 4·n, n < {count}")
        }
    }
}

fn access(a: Access) -> String {
    match a {
        Access::Storage => "storage".to_owned(),
        Access::Masked => "masked".to_owned(),
        Access::WriteOneToClear => "write 1 to clear".to_owned(),
        Access::ReadOnly => "read-only".to_owned(),
        Access::Handled(handler) => format!("code: {handler:?}"),
    }
}

fn reset(r: Reset) -> String {
    match r {
        Reset::Value(value) => format!("{value:#x}"),
        Reset::EngineBase(rel) => format!("engine + {rel:#x}"),
    }
}

fn saved(s: Saved) -> &'static str {
    match s {
        Saved::Image => "by value",
        Saved::Part => "with its part",
        Saved::Derived => "derived",
    }
}

/// Whether vgpud learns of changes of any of these registers, and where.
fn sent(offsets: impl Iterator<Item = u32>) -> String {
    let offsets: Vec<u32> = offsets.collect();
    let on = PLATFORMS.map(|p| {
        let carried = offsets.iter().any(|o| p.switched.is_carried(*o));
        carried.then_some(p.name)
    });
    match on {
        [Some(_), Some(_)] => ", sent".to_owned(),
        [None, None] => String::new(),
        [bdw, kbl] => format!(", sent ({})", bdw.or(kbl).unwrap_or_default()),
    }
}

fn document() -> String {
    let mut doc = String::from(
        "# Registers\n\n\
         Made from the table in `dm/gen8/src/vreg/`; do not edit. To make it anew:\n\
         `UPDATE_DOCS=1 cargo test -p vgpu-device registers_doc`.\n\n\
         BAR0 offsets that are not listed are plain storage starting at 0 below 2 MiB,\n\
         and read 0 from there to the page table at 8 MiB. *masked*: bits 31:16 of a\n\
         write select which of bits 15:0 change. *code*: see `Handler` in\n\
         `dm/gen8/src/vreg.rs`. Engines are at 0x2000 (RCS), 0x22000 (BCS), 0x12000\n\
         (VCS) and 0x1a000 (VECS). *sent*: vgpud learns each change, since a switch\n\
         between guests carries the register over; of some that is so on one kind of\n\
         device alone.\n",
    );
    let mut done = Vec::new();
    let areas = PLATFORMS.iter().flat_map(|p| p.registers.areas);
    for area in areas {
        if done.contains(&area.title) {
            continue;
        }
        done.push(area.title);
        let _ = write!(
            doc,
            "\n## {}\n\n\
             | register | where | access | reset | saved | source |\n\
             |---|---|---|---|---|---|\n",
            area.title
        );
        for r in area.rows {
            let sent = sent(r.offsets());
            let _ = writeln!(
                doc,
                "| {} | {} | {}{} | {} | {} | {} |",
                r.name,
                place(r.place),
                access(r.access),
                sent,
                reset(r.reset),
                saved(r.saved),
                r.source
            );
        }
    }
    doc
}

#[test]
fn the_document_is_current() {
    generated_docs::check(
        "registers.md",
        &document(),
        "cargo test -p vgpu-device registers_doc",
    );
}
