//! Sizes in bytes and lists of CPU numbers, as people and the kernel write them.
//! In: `"16 GiB"`, `"0-3,8"`. Out: `u64`, [`CpuList`], and the same text back.
//! Knows nothing of nodes.

use crate::number::saturating_u64;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Longest range that is expanded. Linux's largest NR_CPUS is 8192, MAX_NUMNODES 1024; eight times
/// that leaves room and keeps garbage like `0-4294967295` from eating memory.
pub const MAX_LIST_ENTRIES: usize = 65536;

const SUFFIXES: [(&str, u32); 6] =
    [("PiB", 50), ("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];

/// Why a size or a list could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// Not a number with a known unit, or beyond 2^64 bytes.
    #[error("{0:?} is not a size; write for example \"64 MiB\", \"16 GiB\" or a number of bytes")]
    Size(String),
    /// Not a list like `0-3,8`.
    #[error("{0:?} is not a list of numbers; write for example \"0-3,8\"")]
    List(String),
    /// A list with more than [`MAX_LIST_ENTRIES`] numbers.
    #[error("{0:?} names more than {MAX_LIST_ENTRIES} numbers")]
    Long(String),
}

/// Reads `"16 GiB"`, `"64MiB"`, `"1.5 TiB"`, `"4096"`, `"4096 B"`. The single letters `K M G T P`
/// mean the same binary units. Bytes.
pub fn parse_bytes(text: &str) -> Result<u64, UnitError> {
    let bad = || UnitError::Size(text.to_owned());
    let text_trimmed = text.trim();
    let split =
        text_trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text_trimmed.len());
    let (number, unit) = text_trimmed.split_at(split);
    let unit = unit.trim();
    let shift = if unit.is_empty() {
        0
    } else {
        SUFFIXES
            .iter()
            .find(|(name, _)| unit.eq_ignore_ascii_case(name) || is_letter_of(unit, name))
            .map(|(_, shift)| *shift)
            .ok_or_else(bad)?
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << shift).ok_or_else(bad);
    }
    let value = number.parse::<f64>().map_err(|_| bad())? * (1u64 << shift) as f64;
    // 2^63 rather than 2^64: the largest f64 below 2^64 is exact, and nothing has 8 EiB.
    if value.is_finite() && (0.0..9.2e18).contains(&value) {
        Ok(saturating_u64(value))
    } else {
        Err(bad())
    }
}

/// The shortest exact form: `16 GiB`, `1000 B`.
pub fn format_bytes(bytes: u64) -> String {
    let (name, shift) = SUFFIXES
        .into_iter()
        .find(|(_, shift)| bytes >> shift != 0 && bytes.trailing_zeros() >= *shift)
        .unwrap_or(("B", 0));
    format!("{} {name}", bytes >> shift)
}

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

/// A set of CPU numbers, sorted and without doubles; text form `0-3,8`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuList(Vec<u32>);

impl CpuList {
    /// Any numbers, in any order.
    pub fn new(mut cpus: Vec<u32>) -> CpuList {
        cpus.sort_unstable();
        cpus.dedup();
        CpuList(cpus)
    }

    /// Reads the kernel's list form; empty text is the empty list.
    pub fn parse(text: &str) -> Result<CpuList, UnitError> {
        let bad = || UnitError::List(text.to_owned());
        let mut cpus = Vec::new();
        for part in text.trim().split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let first: u32 = first.trim().parse().map_err(|_| bad())?;
            let last: u32 = last.trim().parse().map_err(|_| bad())?;
            if last < first {
                return Err(bad());
            }
            if cpus.len() + (last - first) as usize >= MAX_LIST_ENTRIES {
                return Err(UnitError::Long(text.to_owned()));
            }
            cpus.extend(first..=last);
        }
        Ok(CpuList::new(cpus))
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// Whether `cpu` is one of them.
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.binary_search(&cpu).is_ok()
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for run in self.0.chunk_by(|a, b| a + 1 == *b) {
            match run {
                [one] => write!(f, "{separator}{one}")?,
                run => write!(f, "{separator}{}-{}", run[0], run[run.len() - 1])?,
            }
            separator = ",";
        }
        Ok(())
    }
}

impl Serialize for CpuList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CpuList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        CpuList::parse(&text).map_err(de::Error::custom)
    }
}

/// `#[serde(with = ...)]` for sizes: written as text, read from text or a number of bytes.
pub mod bytes {
    use super::*;

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        Bytes(u64),
        Text(String),
    }

    /// As text with a unit, exact.
    pub fn serialize<S: Serializer>(bytes: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format_bytes(*bytes))
    }

    /// From text with a unit, or a number of bytes.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        match Form::deserialize(deserializer)? {
            Form::Bytes(bytes) => Ok(bytes),
            Form::Text(text) => parse_bytes(&text).map_err(de::Error::custom),
        }
    }
}

/// The same for sizes that may be missing.
pub mod option_bytes {
    use super::*;

    pub fn serialize<S: Serializer>(bytes: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
        match bytes {
            Some(bytes) => super::bytes::serialize(bytes, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u64>, D::Error> {
        super::bytes::deserialize(d).map(Some)
    }
}

fn is_letter_of(unit: &str, name: &str) -> bool {
    name.len() == 3 && unit.len() == 1 && unit.eq_ignore_ascii_case(&name[..1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes() {
        let good = [
            ("4096", 4096),
            ("0", 0),
            (" 16 GiB ", 16 << 30),
            ("16g", 16 << 30),
            ("1.5MiB", 3 << 19),
            ("7 b", 7),
            ("16383PiB", 16383 << 50),
        ];
        for (text, bytes) in good {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["", "GiB", "16 GB", "-1", "16384PiB", "1e9", "1..5K", "9999999 PiB"] {
            assert_eq!(parse_bytes(text), Err(UnitError::Size(text.to_owned())), "{text}");
        }
    }

    #[test]
    fn short_bytes_has_about_three_digits() {
        let shown = [0, 1023, 1536, 10_000_000, 3 << 40].map(short_bytes);
        assert_eq!(shown, ["0B", "1023B", "1.5KiB", "9.5MiB", "3TiB"]);
    }

    #[test]
    fn lists() {
        assert_eq!(CpuList::parse("8,0-3,\n").unwrap().to_string(), "0-3,8");
        assert_eq!(CpuList::parse("\n").unwrap(), CpuList::default());
        for text in ["x", "3-1", "1-", "-", "1;2", "4294967296"] {
            assert_eq!(CpuList::parse(text), Err(UnitError::List(text.to_owned())), "{text}");
        }
        assert!(matches!(CpuList::parse("0-4294967295"), Err(UnitError::Long(_))));
    }

    proptest! {
        #[test]
        fn size_text_is_exact(bytes in any::<u64>()) {
            prop_assert_eq!(parse_bytes(&format_bytes(bytes)), Ok(bytes));
        }

        #[test]
        fn list_text_is_exact(cpus in proptest::collection::vec(0u32..9000, 0..200)) {
            let list = CpuList::new(cpus);
            prop_assert_eq!(CpuList::parse(&list.to_string()), Ok(list));
        }
    }
}
