//! docs/switched-registers.md is made from the tables.
//!
//! `UPDATE_DOCS=1 cargo test -p gen8 --test switched_doc` writes it anew.

use std::fmt::Write as _;

use gen8::switched::{Change, GEN8, GEN9, Kept, Row, Table};

fn offsets(row: &Row) -> String {
    match row.count {
        1 => format!("`{:#x}`", row.first),
        count => format!("`{:#x}` + 4·n, n < {count}", row.first),
    }
}

fn class(row: &Row) -> String {
    let change = match row.change {
        Change::Static => "static".to_owned(),
        Change::Hardware { bits, carried } => {
            let what = if carried { "read" } else { "left alone" };
            format!("hardware changes {bits:#x}: {what}")
        }
        Change::Volatile => "volatile".to_owned(),
    };
    let mut parts = vec![change];
    if row.kept == Kept::InContext {
        parts.push("in context".into());
    }
    if row.masked {
        parts.push("masked".into());
    }
    if row.order != 0 {
        parts.push(format!("order {}", row.order));
    }
    parts.join(", ")
}

fn section(doc: &mut String, title: &str, table: &Table) {
    let _ = write!(
        doc,
        "\n## {title}\n\n\
         | engine | register | where | class | reset | group | source |\n\
         |---|---|---|---|---|---|---|\n"
    );
    for row in table.rows {
        let _ = writeln!(
            doc,
            "| {} | {} | {} | {} | {:#x} | {:?} | {} |",
            row.engine.sysfs_name(),
            row.name,
            offsets(row),
            class(row),
            row.reset,
            row.group,
            row.source
        );
    }
}

fn document() -> String {
    let mut doc = String::from(
        "# Registers that a switch between guests carries over\n\n\
         Made from the tables in `dm/gen8/src/switched/`; do not edit. To make it anew:\n\
         `UPDATE_DOCS=1 cargo test -p gen8 --test switched_doc`.\n\n\
         - *static*: only software changes it, so vgpud knows what it holds and never\n\
         \u{20} reads it, unless a command loaded it with what only the GPU knows.\n\
         - *hardware changes* some bits: *read* at a switch when they belong to the\n\
         \u{20} guest, *left alone* when they tell of the moment or clear themselves.\n\
         - *volatile*: batches that vgpud does not look at write it, and it holds nothing\n\
         \u{20} worth keeping. A switch puts the reset value back.\n\
         - *in context*: the hardware saves and restores it with each context; only a\n\
         \u{20} context that is loaded without its state gets the guest's value from vgpud.\n\
         - *masked*: bits 31:16 of a write select which of bits 15:0 change.\n\
         - *order*: registers of a group with an order are written by ascending order.\n\n\
         Registers of a group share a digest: a group in which two guests agree is\n\
         skipped as a whole.\n",
    );
    section(&mut doc, "Gen8 (Broadwell)", &GEN8);
    section(&mut doc, "Gen9 (Skylake, Kaby Lake)", &GEN9);
    doc
}

#[test]
fn the_document_is_current() {
    generated_docs::check(
        "switched-registers.md",
        &document(),
        "cargo test -p gen8 --test switched_doc",
    );
}
