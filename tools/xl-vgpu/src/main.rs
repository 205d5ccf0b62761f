//! An xl front-end that understands vgpu=.

fn main() {}
