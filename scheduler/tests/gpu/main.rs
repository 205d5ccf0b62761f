//! The scheduler on the software GPU, driven by tiny guests.

mod driver;
mod failures;
mod one_guest;
mod scripted;
mod slots;
mod storm;
mod stuck;
mod two_guests;
