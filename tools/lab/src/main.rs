//! Builds and runs real Xen under QEMU, and scenarios in it.

fn main() {}
