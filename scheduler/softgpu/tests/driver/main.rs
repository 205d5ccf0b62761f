//! The GPU as a small driver sees it.

mod blits;
mod bus;
mod commands;
mod errors;
mod execlists;
mod pace;
mod rig;
