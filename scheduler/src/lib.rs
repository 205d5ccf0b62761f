//! Owns the GPU: audit, remap, shadow tables, scheduling; the vgpud daemon.
