//! The scheduler on the software GPU, driven by tiny guests.

mod ahead;
mod at_once;
mod driver;
mod failures;
mod handover;
mod long;
mod one_guest;
mod saving;
mod scanned;
mod scans;
mod scripted;
mod seen;
mod slots;
mod storm;
mod stuck;
mod switches;
mod tables;
mod two_guests;
mod written;
