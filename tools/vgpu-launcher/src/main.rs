//! Run by libxl as the device model: registers with vgpud, then becomes QEMU.

fn main() {}
