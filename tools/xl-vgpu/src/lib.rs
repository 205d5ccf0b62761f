//! What the xl front-end is made of; `main.rs` says what it does.
#![forbid(unsafe_code)]

pub mod arguments;
pub mod config;
pub mod real_xl;
pub mod vgpu;
