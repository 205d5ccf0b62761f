//! The per-guest device model: serves Xen ioreqs with a virtual GPU.
