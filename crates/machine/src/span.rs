//! Durations as people write them: `250us`, `2s`.
//! In: text. Out: [`TimeSpan`], and the same text back. Knows nothing of clocks.

use crate::number::saturating_u64;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Why a duration could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpanError {
    /// No leading number.
    #[error("`{0}` does not begin with a number")]
    NoNumber(String),
    /// No unit, or an unknown one.
    #[error("`{0}` is not a duration; write for example \"2s\" (us, ms, s, min)")]
    Unit(String),
    /// Longer than a hundred days.
    #[error("`{0}` is out of range")]
    OutOfRange(String),
}

/// A duration. Reads `250us`, `100ms`, `2s`, `1min`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TimeSpan(pub Duration);

const SPAN_UNITS_NS: &[(&str, f64)] = &[("us", 1e3), ("ms", 1e6), ("s", 1e9), ("min", 60e9)];

/// Longest duration, a hundred days: far beyond any use, and far below an overflow of nanoseconds
/// in 64 bits (584 years).
const SPAN_NS_MAX: f64 = 100.0 * 86_400e9;

/// Splits `12.5ms` into 12.5 and `ms`.
fn split(text: &str) -> Result<(f64, &str), SpanError> {
    let trimmed = text.trim();
    let end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let number = trimmed[..end].parse::<f64>().map_err(|_| SpanError::NoNumber(text.to_owned()))?;
    Ok((number, trimmed[end..].trim_start()))
}

impl FromStr for TimeSpan {
    type Err = SpanError;

    fn from_str(text: &str) -> Result<TimeSpan, SpanError> {
        let (number, unit) = split(text)?;
        let factor = SPAN_UNITS_NS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| factor);
        let factor = factor.ok_or_else(|| SpanError::Unit(text.to_owned()))?;
        let ns = number * factor;
        if ns > SPAN_NS_MAX {
            return Err(SpanError::OutOfRange(text.to_owned()));
        }
        Ok(TimeSpan(Duration::from_nanos(saturating_u64(ns))))
    }
}

impl fmt::Display for TimeSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = self.0.as_micros();
        let text = match us {
            _ if us != 0 && us.is_multiple_of(60_000_000) => format!("{}min", us / 60_000_000),
            _ if us.is_multiple_of(1_000_000) => format!("{}s", us / 1_000_000),
            _ if us.is_multiple_of(1_000) => format!("{}ms", us / 1_000),
            _ => format!("{us}us"),
        };
        f.pad(&text)
    }
}

impl Serialize for TimeSpan {
    fn serialize<S: serde::Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TimeSpan {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<TimeSpan, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_with_units_are_read_and_others_are_refused() {
        let good = [("2s", 2_000_000_000), ("0.5s", 500_000_000), (" 100 ms ", 100_000_000)];
        for (text, ns) in good {
            assert_eq!(text.parse::<TimeSpan>().unwrap().0.as_nanos(), ns, "{text}");
        }
        for text in ["", "s", "2", "-1s", "1h", "1.2.3s", "9999999min", "1e9s", "\u{663}s"] {
            assert!(text.parse::<TimeSpan>().is_err(), "{text}");
        }
    }

    #[test]
    fn displayed_durations_parse_to_themselves() {
        for text in ["90us", "100ms", "2s", "3min", "90s"] {
            assert_eq!(text.parse::<TimeSpan>().unwrap().to_string(), text);
        }
    }
}
