//! A virtual Gen8 GPU: PCI, registers, execlists, interrupts, display.

#![forbid(unsafe_code)]
