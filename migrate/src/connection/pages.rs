//! The body of a `pages` section: frame numbers, then bytes of those pages
//! that are not zero.

use guest_memory::{Gfn, PAGE_SIZE};

use crate::detect::Frame;
use crate::page::{Page, is_zero};

/// Pages of one section.
pub const MAX_PAGES: usize = 512;

/// The bit beside a frame number that says that its page is zero.
const ZERO: u64 = 1 << 63;

/// Why a body is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PagesError {
    /// It does not begin with their number.
    #[error("{len} bytes are too few for a number of pages")]
    Short {
        /// Bytes there are.
        len: usize,
    },
    /// They are too many.
    #[error("{found} pages in a section, {MAX_PAGES} allowed")]
    TooMany {
        /// Pages it says.
        found: u64,
    },
    /// It is longer or shorter than its pages are.
    #[error("a section of {pages} pages, of which {zero} are zero, has {len} bytes")]
    Length {
        /// Pages it says.
        pages: usize,
        /// Those said to be zero.
        zero: usize,
        /// Bytes of the body.
        len: usize,
    },
}

/// The body for `frames`, of which there are [`MAX_PAGES`] at most, and how
/// many of them are zero.
pub(super) fn encode(frames: &[Frame<'_>]) -> (Vec<u8>, usize) {
    let mut body = Vec::with_capacity(8 + frames.len() * (8 + PAGE_SIZE));
    let count = u64::try_from(frames.len()).unwrap_or(u64::MAX);
    body.extend_from_slice(&count.to_le_bytes());
    let mut full = Vec::with_capacity(frames.len());
    for frame in frames {
        let zero = if is_zero(frame.page) {
            ZERO
        } else {
            full.push(frame.page);
            0
        };
        body.extend_from_slice(&(frame.gfn.0 | zero).to_le_bytes());
    }
    for page in &full {
        body.extend_from_slice(*page);
    }
    (body, frames.len() - full.len())
}

/// The frames of a body. Of those that are zero, there are no bytes.
pub(super) fn decode(
    body: &[u8],
) -> Result<impl Iterator<Item = (Gfn, Option<&Page>)>, PagesError> {
    let len = body.len();
    let (count, rest) = body.split_first_chunk().ok_or(PagesError::Short { len })?;
    let found = u64::from_le_bytes(*count);
    let pages = usize::try_from(found).ok().filter(|&n| n <= MAX_PAGES);
    let pages = pages.ok_or(PagesError::TooMany { found })?;
    let numbers = rest.get(..pages * 8).ok_or(PagesError::Length {
        pages,
        zero: 0,
        len,
    })?;
    let numbers = numbers.as_chunks().0;
    let is_zero = |number: &[u8; 8]| u64::from_le_bytes(*number) & ZERO != 0;
    let zero = numbers.iter().filter(|number| is_zero(number)).count();
    let (full, odd) = rest
        .get(pages * 8..)
        .unwrap_or_default()
        .as_chunks::<PAGE_SIZE>();
    if full.len() + zero != pages || !odd.is_empty() {
        return Err(PagesError::Length { pages, zero, len });
    }
    let mut full = full.iter();
    Ok(numbers.iter().map(move |number| {
        let gfn = Gfn(u64::from_le_bytes(*number) & !ZERO);
        let page = if is_zero(number) { None } else { full.next() };
        (gfn, page)
    }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pages_come_back(pages in proptest::collection::vec((0..1_u64 << 52, 0..3_u8), 0..40)) {
            let bytes: Vec<Page> = pages.iter().map(|(_, value)| [*value; PAGE_SIZE]).collect();
            let frame = |((gfn, _), page)| Frame { gfn: Gfn(gfn), page };
            let frames: Vec<_> = pages.iter().copied().zip(&bytes).map(frame).collect();
            let (body, zero) = encode(&frames);
            prop_assert_eq!(zero, pages.iter().filter(|(_, value)| *value == 0).count());
            let back: Vec<_> = decode(&body).unwrap().collect();
            prop_assert_eq!(back.len(), pages.len());
            for ((gfn, page), (was, value)) in back.into_iter().zip(pages) {
                prop_assert_eq!(gfn.0, was);
                let full = (value != 0).then_some([value; PAGE_SIZE]);
                prop_assert_eq!(page.copied(), full);
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let page = [7; PAGE_SIZE];
        let frames = [3, 4].map(|gfn| Frame {
            gfn: Gfn(gfn),
            page: &page,
        });
        let (body, _) = encode(&frames);
        let refusal = |body: &[u8]| decode(body).err().map(|error| error.to_string());
        assert_eq!(refusal(&body), None);
        for cut in 0..body.len() {
            assert!(refusal(&body[..cut]).is_some(), "{cut}");
        }
        let longer = [&body[..], &[0]].concat();
        let said = "a section of 2 pages, of which 0 are zero, has 8217 bytes";
        assert_eq!(refusal(&longer).as_deref(), Some(said));
        let many = 513_u64.to_le_bytes();
        assert_eq!(
            refusal(&many).as_deref(),
            Some("513 pages in a section, 512 allowed")
        );
    }
}
