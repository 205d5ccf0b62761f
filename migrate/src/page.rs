//! Pages.

use guest_memory::PAGE_SIZE;

/// The bytes of a guest page: always a private copy, which nobody changes
/// while it is looked at.
pub type Page = [u8; PAGE_SIZE];

/// Whether every byte is zero. Other pages are told by their first bytes,
/// most of the time.
#[must_use]
pub fn is_zero(page: &Page) -> bool {
    let (lines, _) = page.as_chunks::<64>();
    lines.iter().all(|line| *line == [0; 64])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bit_anywhere_is_not_zero() {
        let mut page = [0; PAGE_SIZE];
        assert!(is_zero(&page));
        for at in 0..PAGE_SIZE {
            page[at] = 1 << (at % 8);
            assert!(!is_zero(&page), "byte {at}");
            page[at] = 0;
        }
    }
}
