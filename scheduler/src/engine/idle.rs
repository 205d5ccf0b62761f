//! A context of vgpud's own that does nothing. To load it is the way to take a
//! guest's off the engine with its place kept: a reset would lose it.

use std::sync::Arc;

use gen8::csb::Descriptor;
use gen8::{Engine, Platform};

use super::BringUpError;
use crate::dma::{HostPage, HostPages, OutOfPages};
use crate::windows::{Pin, Windows};
use crate::workload::idle_page;

/// The context, its image and its ring.
pub struct IdleContext {
    gpu: &'static Platform,
    engine: Engine,
    // Windows go before the pages they show.
    image_pin: Pin,
    ring_pin: Pin,
    image: Vec<HostPage>,
    _ring: HostPage,
}

impl IdleContext {
    /// Makes one for `engine` of `gpu`.
    ///
    /// # Errors
    /// No pages or no room for their windows.
    pub fn new(
        gpu: &'static Platform,
        engine: Engine,
        pages: &Arc<HostPages>,
        windows: &Arc<Windows>,
    ) -> Result<Self, IdleError> {
        let image = (0..gpu.image(engine).pages)
            .map(|_| pages.allocate())
            .collect::<Result<Vec<_>, _>>()?;
        let ring = pages.allocate()?;
        ring.write(0, &[0; guest_memory::PAGE_SIZE]);
        let pin = |pages| windows.pin_own(0, pages).map_err(BringUpError::from);
        Ok(Self {
            gpu,
            engine,
            image_pin: pin(&image)?,
            ring_pin: pin(std::slice::from_ref(&ring))?,
            image,
            _ring: ring,
        })
    }

    /// The descriptor to load it once more, with the id `tag`. It is not at
    /// the engine.
    pub fn descriptor(&self, tag: u32) -> Descriptor {
        const VALID: u64 = 1;
        const PRIVILEGE: u64 = 1 << 8;
        let register_page = usize::try_from(gen8::lrc::REGISTER_PAGE).unwrap_or(usize::MAX);
        if let Some(page) = self.image.get(register_page) {
            page.write(
                0,
                &idle_page(self.gpu, self.engine, self.ring_pin.address()),
            );
        }
        Descriptor(
            u64::from(tag) << 32
                | u64::from(self.image_pin.address())
                | u64::from(Descriptor::MODE_PPGTT48) << 3
                | PRIVILEGE
                | VALID,
        )
    }
}

/// There is no such context.
#[derive(Debug, thiserror::Error)]
pub enum IdleError {
    /// No own page.
    #[error(transparent)]
    OutOfPages(#[from] OutOfPages),
    /// No window.
    #[error(transparent)]
    BringUp(#[from] BringUpError),
}
