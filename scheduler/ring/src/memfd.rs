//! A shared area of one host: made by vgpud, opened by the device model.

use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::area::{checked_layout, expect_field, system};
use crate::layout::PAGE_WORDS;
use crate::mapping;
use crate::{Area, AreaConfig, AreaError, AreaWords};

/// One vGPU's shared memory on one host: a memfd and its mapping.
pub struct SharedArea {
    fd: OwnedFd,
    area: Area,
}

impl SharedArea {
    /// A new area with empty rings and an empty page table.
    ///
    /// # Errors
    /// [`AreaError::Field`] for a bad number of slots, [`AreaError::System`].
    pub fn create(config: AreaConfig) -> Result<Self, AreaError> {
        let count = Area::size(config)?;
        let bytes = count.saturating_mul(8);
        let fd = mapping::create(bytes).map_err(system("create a memfd"))?;
        let words = AreaWords::map(&fd, count).map_err(system("map a memfd"))?;
        let area = Area::format(words, config)?;
        Ok(Self { fd, area })
    }

    /// The area behind a descriptor that [`SharedArea::create`] made in
    /// another process.
    ///
    /// # Errors
    /// [`AreaError`] when its size is not sealed, its header is not one of
    /// this version, or it cannot be mapped.
    pub fn open(fd: OwnedFd) -> Result<Self, AreaError> {
        let size = mapping::sealed_size(&fd)
            .map_err(system("read the size of a memfd"))?
            .ok_or(AreaError::NotSealed)?;
        if size < 4096 {
            return Err(AreaError::Field {
                field: "size in bytes",
                value: size,
                allowed: "at least 0x1000".into(),
            });
        }
        let page = AreaWords::map(&fd, PAGE_WORDS).map_err(system("map a memfd"))?;
        let layout = checked_layout(&page)?;
        expect_field("size in bytes", size, layout.bytes())?;
        let words = AreaWords::map(&fd, layout.words).map_err(system("map a memfd"))?;
        Ok(Self {
            fd,
            area: Area { words, layout },
        })
    }

    /// Another descriptor of the same area, for the other end.
    ///
    /// # Errors
    /// When the process has no more descriptors.
    pub fn share(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }
}

impl Deref for SharedArea {
    type Target = Area;

    fn deref(&self) -> &Area {
        &self.area
    }
}

impl AsFd for SharedArea {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
