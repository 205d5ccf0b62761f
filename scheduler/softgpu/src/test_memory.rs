//! Memory for tests: a few megabytes from bus address 0.

use std::sync::Mutex;

use gpu_bus::{Dma, DmaFault};

pub(crate) struct Ram(Mutex<Vec<u8>>);

impl Ram {
    pub(crate) fn new(bytes: usize) -> Self {
        Self(Mutex::new(vec![0; bytes]))
    }

    pub(crate) fn put64(&self, address: u64, value: u64) {
        self.write(address, &value.to_le_bytes()).unwrap();
    }
}

fn range(address: u64, len: usize, total: usize) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(address).ok()?;
    let end = start.checked_add(len)?;
    (end <= total).then_some(start..end)
}

impl Dma for Ram {
    fn read(&self, address: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        let m = self.0.lock().unwrap();
        let r = range(address, buf.len(), m.len()).ok_or(DmaFault {
            address,
            write: false,
        })?;
        buf.copy_from_slice(&m[r]);
        Ok(())
    }

    fn write(&self, address: u64, data: &[u8]) -> Result<(), DmaFault> {
        let mut m = self.0.lock().unwrap();
        let len = m.len();
        let r = range(address, data.len(), len).ok_or(DmaFault {
            address,
            write: true,
        })?;
        m[r].copy_from_slice(data);
        Ok(())
    }
}
