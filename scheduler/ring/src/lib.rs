//! Shared rings between device models and vgpud, and their messages.
