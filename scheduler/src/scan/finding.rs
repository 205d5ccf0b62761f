//! What has no place in a batch without privilege.

use gen8::Engine;
use gen8::cmd::flags::{batch_start, semaphore};
use gen8::cmd::{Command, Dwords, Flow, Privilege, mi_op};
use gen8::regs::Rules;

/// What is wrong with a command. Of most the hardware itself sees to it that
/// nothing comes of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Fault {
    /// It needs privilege.
    #[error("it needs privilege, so it does nothing")]
    Privileged,
    /// It writes a register that batches without privilege may not.
    #[error("register {offset:#x} is not written without privilege")]
    RegisterWrite {
        /// BAR0 offset.
        offset: u32,
    },
    /// It reads a register that is none of a user's business. Hardware lets
    /// it; i915's parser for the Gen9 blitter does not
    /// (Linux `i915_cmd_parser.c:gen9_blt_regs`).
    #[error("register {offset:#x} is not for batches without privilege")]
    RegisterRead {
        /// BAR0 offset.
        offset: u32,
    },
    /// It asks for the global table.
    #[error("it asks for the global table and gets the context's own")]
    Global,
    /// It sends a signal, or waits for one. They go by context ids, and the
    /// GPU knows the context by another than the guest.
    #[error("signals do not pass between a guest's contexts")]
    Signal,
    /// The engine has no such command and will stop at it.
    #[error("no command of this engine")]
    Unknown,
    /// No length of its.
    #[error("{have} dwords, allowed: {allowed}")]
    Length {
        /// Its dwords.
        have: u32,
        /// The lengths it may have.
        allowed: Lengths,
    },
}

/// [`Dwords`] that can be told apart in a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lengths {
    least: u32,
    most: Option<u32>,
}

impl From<Dwords> for Lengths {
    fn from(d: Dwords) -> Self {
        Self {
            least: d.least(),
            most: d.most(),
        }
    }
}

impl std::fmt::Display for Lengths {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.most {
            Some(most) if most == self.least => write!(f, "{most}"),
            Some(most) => write!(f, "{} to {most}", self.least),
            None => write!(f, "{} or more", self.least),
        }
    }
}

/// Something in a batch that has no place there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{command} ({header:#010x}) at the context's address {address:#x}: {fault}")]
pub struct Finding {
    /// The command's name.
    pub command: &'static str,
    /// Its first dword.
    pub header: u32,
    /// Its graphics address in the context's own tables.
    pub address: u64,
    /// What is wrong with it.
    pub fault: Fault,
}

/// The name of a command that there is not.
pub const NO_COMMAND: &str = "unknown command";

/// What comes behind a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The next command.
    On,
    /// That, or what is at this address, or one after the other.
    Both(u64),
    /// What is at this address.
    There(u64),
    /// Nothing of this batch.
    End,
    /// The next command, unless it depends on what only the GPU knows.
    Perhaps,
    /// What only the GPU knows.
    Anywhere,
}

/// Bits 47:0 of an address count; dwords begin at multiples of four.
const ADDRESS: u64 = (1 << 48) - 4;

/// Bits of MI_SET_PREDICATE that choose when commands do nothing.
const PREDICATE_ENABLE: u32 = 0xf;

/// Flags of MI_BATCH_BUFFER_START: all but opcode and length.
const START_FLAGS: u32 = 0x007f_ff00;

/// The place a batch starts at, if only the command says so.
pub fn target(words: &[u32]) -> Option<u64> {
    let header = words.first().copied()?;
    if header & START_FLAGS & !batch_start::KNOWN != 0 {
        return None;
    }
    let word = |i: usize| words.get(i).copied().map(u64::from);
    Some((word(2)? << 32 | word(1)?) & ADDRESS)
}

/// Looks at one command all of whose dwords are `words`: says what is wrong
/// with it, and what comes behind it. `opened` are registers that the guest
/// opened to its batches.
pub fn judge(
    rules: &Rules,
    engine: Engine,
    opened: &[u32],
    command: &Command,
    words: &[u32],
    mut wrong: impl FnMut(Fault),
) -> Next {
    let header = words.first().copied().unwrap_or(0);
    if command.privilege == Privilege::Privileged {
        wrong(Fault::Privileged);
        return Next::On;
    }
    for (offset, field, _) in command.registers_in(words) {
        let own = rules.user_writable(engine, offset) || opened.contains(&offset);
        if field.write && !own {
            wrong(Fault::RegisterWrite { offset });
        } else if !own && !rules.may_read(engine, offset) {
            wrong(Fault::RegisterRead { offset });
        }
    }
    if command.addresses_in(words).any(|a| a.global) {
        wrong(Fault::Global);
    }
    match command.flow {
        Flow::EndsBatch => return Next::End,
        Flow::StartsBatch => {
            let Some(to) = target(words) else {
                return Next::Anywhere;
            };
            let back = batch_start::SECOND_LEVEL | batch_start::PREDICATE;
            return if header & back == 0 {
                Next::There(to)
            } else {
                Next::Both(to)
            };
        }
        Flow::Waits if header & semaphore::POLL == 0 => wrong(Fault::Signal),
        Flow::Waits | Flow::Next | Flow::MayEndBatch => {}
    }
    match header >> 23 {
        mi_op::SEMAPHORE_SIGNAL => wrong(Fault::Signal),
        mi_op::SET_PREDICATE if header & PREDICATE_ENABLE != 0 => return Next::Perhaps,
        _ => {}
    }
    Next::On
}
