//! Spans of time as people write them, and sizes as tables show them: `2s`, `1.5GiB`.
//! In: text, numbers. Out: [`Span`], text. Knows nothing of what the figures are used for.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// What could not be read as a figure with a unit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// No leading number.
    #[error("`{0}` does not begin with a number")]
    NoNumber(String),
    /// A unit of time nobody knows.
    #[error("`{0}` is no time; write for example \"2s\" (us, ms, s, min)")]
    Span(String),
    /// A number that is too large, negative or not finite.
    #[error("`{0}` is out of range")]
    OutOfRange(String),
}

/// A span of time. Reads `250us`, `100ms`, `2s`, `1min`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span(pub Duration);

const SPAN_UNITS_NS: &[(&str, f64)] = &[("us", 1e3), ("ms", 1e6), ("s", 1e9), ("min", 60e9)];

/// Longest span: a hundred days; far beyond any use, far below any overflow.
const SPAN_NS_MAX: f64 = 100.0 * 86_400e9;

/// About three significant digits and a binary unit, for tables: `1.5GiB`.
pub fn short_bytes(bytes: u64) -> String {
    const NAMES: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < NAMES.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if value.fract() == 0.0 || value >= 100.0 { 0 } else { 1 };
    format!("{value:.digits$}{}", NAMES[unit])
}

/// Splits `12.5MiB` into 12.5 and `MiB`.
fn split(text: &str) -> Result<(f64, &str), UnitError> {
    let trimmed = text.trim();
    let end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let number = trimmed[..end].parse::<f64>().map_err(|_| UnitError::NoNumber(text.to_owned()))?;
    Ok((number, trimmed[end..].trim_start()))
}

impl FromStr for Span {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Span, UnitError> {
        let (number, unit) = split(text)?;
        let factor = SPAN_UNITS_NS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| factor);
        let factor = factor.ok_or_else(|| UnitError::Span(text.to_owned()))?;
        let ns = number * factor;
        if ns > SPAN_NS_MAX {
            return Err(UnitError::OutOfRange(text.to_owned()));
        }
        Ok(Span(Duration::from_nanos(ns as u64)))
    }
}

impl fmt::Display for Span {
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

impl Serialize for Span {
    fn serialize<S: serde::Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Span, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans() {
        let good = [("2s", 2_000_000_000), ("0.5s", 500_000_000), (" 100 ms ", 100_000_000)];
        for (text, ns) in good {
            assert_eq!(text.parse::<Span>().unwrap().0.as_nanos(), ns, "{text}");
        }
        for text in ["", "s", "2", "-1s", "1h", "1.2.3s", "9999999min", "1e9s", "\u{663}s"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_shown_is_read_back() {
        for text in ["90us", "100ms", "2s", "3min", "90s"] {
            assert_eq!(text.parse::<Span>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn tables_round() {
        let shown = [0, 1023, 1536, 10_000_000, 3 << 40].map(short_bytes);
        assert_eq!(shown, ["0B", "1023B", "1.5KiB", "9.5MiB", "3TiB"]);
    }
}
