//! The whole device among in-memory surroundings.

mod accesses;
mod aperture;
mod display;
mod engines;
mod registers_doc;
mod rig;
