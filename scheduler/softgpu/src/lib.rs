//! A software Gen8 GPU behind registers, GTT, DMA and interrupts.

#![forbid(unsafe_code)]
