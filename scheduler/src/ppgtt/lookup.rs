//! Where an address of a context is, as the GPU would find it.

use gen8::pte::Level;
use guest_memory::Gfn;

use super::RootPin;
use super::entry::Entry;

impl RootPin {
    /// The frame that the shadow has at `address` of the context: the guest's
    /// entries as they were when they were last compared. `None`: no memory.
    #[must_use]
    pub fn frame(&self, address: u64) -> Option<Gfn> {
        let inner = self.tables.inner.lock();
        let mut id = inner.roots.get(&self.root)?.id;
        let mut level = Level::Pml4;
        loop {
            let table = inner.table(id)?;
            let index = level.index(address);
            match Entry::read(*table.copy.get(index)?, level) {
                Entry::Nothing => return None,
                Entry::Page { gfn, .. } => return Some(gfn),
                Entry::Large { gfn, .. } => {
                    let page = (address >> 12) & 0x1ff;
                    return gfn.0.checked_add(page).map(Gfn);
                }
                Entry::Table { below, .. } => {
                    id = (*table.children.get(index)?)?;
                    level = below;
                }
            }
        }
    }
}
