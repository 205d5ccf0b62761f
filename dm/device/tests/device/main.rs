//! The whole device among in-memory surroundings.

mod accesses;
mod aperture;
mod display;
mod engines;
mod golden;
mod kaby_lake;
mod kept;
mod registers_doc;
mod rig;
