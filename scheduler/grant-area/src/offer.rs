//! What a stub domain tells dom0 through xenstore.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use xen_glue::{GrantRef, Port};

/// The most pages that a region may have: 16 MiB.
pub const MAX_PAGES: u32 = 4096;

/// Version of the offer, and of what it leads to up to the area's header.
const VERSION: u32 = 2;

/// Where one region is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionOffer {
    /// Its pages, the link page among them: 2 to [`MAX_PAGES`].
    pub pages: u32,
    /// The reference of the first page of the directory.
    pub directory: GrantRef,
    /// The port to bind to.
    pub port: Port,
}

/// What a device model in a stub domain offers to dom0: one line of text, the
/// value of one node, so that it is there in full or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Which one it is: another each time a device model is started.
    pub serial: u32,
    /// How often dom0 had opened the area when that was. A vgpud waits for a
    /// device model that was started for it.
    pub comings: u32,
    /// The rings, the page table and what is kept.
    pub area: RegionOffer,
    /// The port that signals the end of the device model.
    pub life: Port,
    /// The pipe for control messages.
    pub control: RegionOffer,
}

/// Why a text is no offer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("offer of a stub domain: {field} is {value:?}, allowed: {allowed}")]
pub struct OfferError {
    /// The field.
    pub field: &'static str,
    /// What it is, cut off after 40 characters; empty when it is not there.
    pub value: String,
    /// What it may be.
    pub allowed: &'static str,
}

impl fmt::Display for RegionOffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            pages,
            directory,
            port,
        } = self;
        write!(f, "{pages}/{}/{}", directory.0, port.0)
    }
}

impl fmt::Display for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            serial,
            comings,
            area,
            life,
            control,
        } = self;
        let life = life.0;
        write!(
            f,
            "version={VERSION} serial={serial} comings={comings} area={area} life={life} \
             control={control}"
        )
    }
}

fn error(field: &'static str, value: &str, allowed: &'static str) -> OfferError {
    OfferError {
        field,
        value: value.chars().take(40).collect(),
        allowed,
    }
}

fn number(field: &'static str, value: &str) -> Result<u32, OfferError> {
    value
        .parse()
        .map_err(|_| error(field, value, "a number of 32 bits"))
}

fn region(field: &'static str, value: &str) -> Result<RegionOffer, OfferError> {
    const ALLOWED: &str = "pages/reference/port, with 2 to 4096 pages";
    let parts: Vec<&str> = value.split('/').collect();
    let [pages, directory, port] = parts[..] else {
        return Err(error(field, value, ALLOWED));
    };
    let pages = number(field, pages)?;
    if !(2..=MAX_PAGES).contains(&pages) {
        return Err(error(field, value, ALLOWED));
    }
    Ok(RegionOffer {
        pages,
        directory: GrantRef(number(field, directory)?),
        port: Port(number(field, port)?),
    })
}

impl FromStr for Offer {
    type Err = OfferError;

    fn from_str(text: &str) -> Result<Self, OfferError> {
        let words = text.split(' ').take(8);
        let fields: HashMap<&str, &str> = words.filter_map(|w| w.split_once('=')).collect();
        let field = |name| fields.get(name).copied().unwrap_or("");
        let version = number("version", field("version"))?;
        if version != VERSION {
            return Err(error("version", field("version"), "2"));
        }
        Ok(Self {
            serial: number("serial", field("serial"))?,
            comings: number("comings", field("comings"))?,
            area: region("area", field("area"))?,
            life: Port(number("life", field("life"))?),
            control: region("control", field("control"))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "version=2 serial=3 comings=1 area=2660/9/4 life=5 control=34/8192/6";

    #[test]
    fn an_offer_survives_its_text() {
        let offer: Offer = TEXT.parse().unwrap();
        assert_eq!(offer.area.pages, 2660);
        assert_eq!(offer.control.directory, GrantRef(8192));
        assert_eq!(offer.life, Port(5));
        assert_eq!(offer.to_string(), TEXT);
    }

    #[test]
    fn a_bad_field_is_named() {
        for (from, to, field) in [
            ("version=2", "version=1", "version"),
            ("serial=3", "", "serial"),
            ("comings=1", "comings=x", "comings"),
            ("2660", "1", "area"),
            ("2660", "4097", "area"),
            ("9/4", "9", "area"),
            ("9/4", "9/4/4", "area"),
            ("9/4", "9/-4", "area"),
            ("life=5", "life=5000000000", "life"),
            ("8192", "", "control"),
        ] {
            let bad = TEXT.replace(from, to);
            assert_eq!(bad.parse::<Offer>().unwrap_err().field, field, "{bad}");
        }
        let long = TEXT.replace("2660", &"9".repeat(4000));
        assert!(long.parse::<Offer>().unwrap_err().value.len() <= 40);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_an_offer_or_an_error(text in "[a-z=/ 0-9]{0,80}") {
            if let Ok(offer) = text.parse::<Offer>() {
                proptest::prop_assert_eq!(offer.to_string().parse(), Ok(offer));
            }
        }
    }
}
