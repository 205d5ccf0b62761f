//! The system calls a device model's threads make, as a table.

use nix::libc;

use crate::Role;

/// What an argument must be.
pub enum Only {
    /// Whatever it is.
    Any,
    /// Memory that holds no instructions: `PROT_EXEC` (third argument) is off.
    NotExecutable,
    /// One of the given ioctl requests (second argument).
    Requests,
    /// One of these (second argument).
    Commands(&'static [i32]),
}

/// One system call.
pub struct Call {
    pub number: i64,
    /// Who makes it.
    pub by: &'static [Role],
    pub only: Only,
}

const ALL: &[Role] = &[Role::Vcpu, Role::Events, Role::Control];
const CONTROL: &[Role] = &[Role::Control];

/// Looks and copies; F_SETOWN and the like would send signals.
const FCNTL: &[i32] = &[
    libc::F_GETFD,
    libc::F_GETFL,
    libc::F_DUPFD_CLOEXEC,
    libc::F_ADD_SEALS,
    libc::F_GET_SEALS,
];

const fn call(number: i64, by: &'static [Role], only: Only) -> Call {
    Call { number, by, only }
}

/// Every call that is allowed.
pub const CALLS: &[Call] = &[
    // Rings, doorbells, the log.
    call(libc::SYS_read, ALL, Only::Any),
    call(libc::SYS_write, ALL, Only::Any),
    call(libc::SYS_writev, ALL, Only::Any),
    call(libc::SYS_poll, ALL, Only::Any),
    call(libc::SYS_ppoll, ALL, Only::Any),
    call(libc::SYS_epoll_create1, ALL, Only::Any),
    call(libc::SYS_epoll_ctl, ALL, Only::Any),
    call(libc::SYS_epoll_wait, ALL, Only::Any),
    call(libc::SYS_epoll_pwait, ALL, Only::Any),
    call(libc::SYS_close, ALL, Only::Any),
    // Rust's library checks a descriptor before it closes it.
    call(libc::SYS_fcntl, ALL, Only::Commands(FCNTL)),
    // Device model operations, and the guest's memory.
    call(libc::SYS_ioctl, ALL, Only::Requests),
    call(libc::SYS_mmap, ALL, Only::NotExecutable),
    call(libc::SYS_mprotect, ALL, Only::NotExecutable),
    call(libc::SYS_munmap, ALL, Only::Any),
    // The allocator.
    call(libc::SYS_brk, ALL, Only::Any),
    call(libc::SYS_mremap, ALL, Only::Any),
    call(libc::SYS_madvise, ALL, Only::Any),
    call(libc::SYS_sched_getaffinity, ALL, Only::Any),
    call(libc::SYS_getrandom, ALL, Only::Any),
    // Locks, time, the end.
    call(libc::SYS_futex, ALL, Only::Any),
    call(libc::SYS_sched_yield, ALL, Only::Any),
    call(libc::SYS_clock_gettime, ALL, Only::Any),
    call(libc::SYS_clock_nanosleep, ALL, Only::Any),
    call(libc::SYS_nanosleep, ALL, Only::Any),
    call(libc::SYS_restart_syscall, ALL, Only::Any),
    call(libc::SYS_rt_sigprocmask, ALL, Only::Any),
    call(libc::SYS_rt_sigaction, ALL, Only::Any),
    call(libc::SYS_rt_sigreturn, ALL, Only::Any),
    call(libc::SYS_sigaltstack, ALL, Only::Any),
    call(libc::SYS_exit, ALL, Only::Any),
    call(libc::SYS_exit_group, ALL, Only::Any),
    // abort() is the process's word to itself.
    call(libc::SYS_gettid, ALL, Only::Any),
    call(libc::SYS_getpid, ALL, Only::Any),
    call(libc::SYS_tgkill, ALL, Only::Any),
    // vgpud's messages and the descriptors beside them.
    call(libc::SYS_recvmsg, CONTROL, Only::Any),
    call(libc::SYS_sendmsg, CONTROL, Only::Any),
    call(libc::SYS_setsockopt, CONTROL, Only::Any),
    call(libc::SYS_memfd_create, CONTROL, Only::Any),
    call(libc::SYS_ftruncate, CONTROL, Only::Any),
    call(libc::SYS_pwrite64, CONTROL, Only::Any),
    call(libc::SYS_pread64, CONTROL, Only::Any),
    call(libc::SYS_lseek, CONTROL, Only::Any),
    call(libc::SYS_fstat, CONTROL, Only::Any),
    call(libc::SYS_newfstatat, CONTROL, Only::Any),
    call(libc::SYS_statx, CONTROL, Only::Any),
];
