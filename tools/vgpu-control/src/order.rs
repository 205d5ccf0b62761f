//! What becomes of a device model that is to be replaced.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What is done to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Disturb {
    /// It is killed.
    #[default]
    Kill,
    /// It is stopped, and whoever watches it is to find that it hangs.
    Stop,
}

/// To the first process of a device model's domain, by a node in xenstore: which
/// device model, by the serial of its offer, and what. As text, `serial kill`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StubOrder {
    /// One that came later is not meant.
    pub serial: u32,
    /// What becomes of it.
    pub how: Disturb,
}

impl fmt::Display for StubOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = match self.how {
            Disturb::Kill => "kill",
            Disturb::Stop => "stop",
        };
        write!(f, "{} {how}", self.serial)
    }
}

/// Text is no order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("order is {0:?}, allowed: a number of 32 bits and kill or stop")]
pub struct NoOrder(String);

impl FromStr for StubOrder {
    type Err = NoOrder;

    fn from_str(s: &str) -> Result<Self, NoOrder> {
        let order = || {
            let (serial, how) = s.split_once(' ')?;
            let how = match how {
                "kill" => Disturb::Kill,
                "stop" => Disturb::Stop,
                _ => return None,
            };
            let serial = serial.parse().ok()?;
            Some(Self { serial, how })
        };
        order().ok_or_else(|| NoOrder(s.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_read_as_it_was_written() {
        for how in [Disturb::Kill, Disturb::Stop] {
            let order = StubOrder { serial: 7, how };
            assert_eq!(order.to_string().parse(), Ok(order));
        }
        for text in ["", "7", "7 burn", "-1 kill", "kill 7"] {
            let error = text.parse::<StubOrder>().unwrap_err();
            assert!(error.to_string().contains("kill or stop"), "{error}");
        }
    }
}
