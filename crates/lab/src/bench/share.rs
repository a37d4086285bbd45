//! Shares of a workload's peak, as experiments write them. In: text. Out: bytes. Knows nothing of
//! workloads.

use serde::{Deserialize, Serialize};
use tiercel_machine::number;

/// A share of a workload's peak, written `"12.5%"`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Share {
    /// Thousandths of a percent: exact, so that shares can be compared and hashed.
    millis: u32,
}

impl Share {
    /// Of one, 0 to 1.
    pub fn of_one(self) -> f64 {
        f64::from(self.millis) / 1e5
    }

    /// This share of `bytes`, in whole OS pages of 4 KiB.
    pub fn of(self, bytes: u64) -> u64 {
        number::saturating_u64(bytes as f64 * self.of_one()) & !0xfff
    }
}

impl TryFrom<String> for Share {
    type Error = String;

    fn try_from(text: String) -> Result<Share, String> {
        let wrong = || format!("capacity {text:?}: write a share of the peak as \"25%\"");
        let number = text.trim().strip_suffix('%').ok_or_else(wrong)?;
        let percent: f64 = number.trim().parse().map_err(|_| wrong())?;
        if !(0.1..=100.0).contains(&percent) {
            return Err(format!("capacity {text:?}: must be from 0.1% to 100%"));
        }
        Ok(Share { millis: number::saturating_u32((percent * 1000.0).round()) })
    }
}

impl From<Share> for String {
    fn from(share: Share) -> String {
        share.to_string()
    }
}

impl std::fmt::Display for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}%", f64::from(self.millis) / 1000.0)
    }
}
