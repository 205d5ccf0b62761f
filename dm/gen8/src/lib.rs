//! Register, command, context and page-table layouts of Gen8 graphics, as data.

#![no_std]
#![forbid(unsafe_code)]
