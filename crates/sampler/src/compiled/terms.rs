//! Which lines are sampled, and through which caches, as the user says it. In: text, the kernel's
//! description of caches. Out: [`Rate`], [`Caches`]. Knows nothing of programs.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use tiercel_machine::{parse_bytes, short_bytes};
use tiercel_wire::{CacheShape, ProbeTerms, RATE_SHIFT_MAX, WAYS_MAX};

/// Bytes of a line.
const LINE_BYTES: u64 = 64;
/// What stands for a cache that there is not: the line that was just used.
const NONE: CacheShape = CacheShape { sets: 1, ways: 1 };
/// OAM's filter, 3.2: one 16-way cache with pseudo-LRU replacement of 16 MB.
const OAM: &str = "16M/16";

/// The share of lines that are sampled: `1`, `1/2`, ... `1/64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rate(u32);

/// Caches from the first level to the last, `BYTES/WAYS` each, apart by commas; one to three.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Caches(pub [CacheShape; 3]);

/// What the user said is no rate, or no caches.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TermsError {
    /// No rate.
    #[error("{0}: must be 1, 1/2, 1/4, ... or 1/64")]
    Rate(String),
    /// No cache.
    #[error("{0}: must be BYTES/WAYS, as 32K/8: 1 to 32 ways, whole sets of lines of 64 bytes")]
    Cache(String),
    /// None or too many.
    #[error("{0}: must be one to three caches, or oam")]
    Count(String),
}

impl Rate {
    /// Binary logarithm of how many lines one stands for.
    pub fn shift(self) -> u32 {
        self.0
    }
}

impl Default for Rate {
    /// 1/32: sites above 1% of the misses are within 10% of their exact share then.
    fn default() -> Rate {
        Rate(5)
    }
}

impl FromStr for Rate {
    type Err = TermsError;

    fn from_str(text: &str) -> Result<Rate, TermsError> {
        let of = match text {
            "1" => Some(1),
            _ => text.strip_prefix("1/").and_then(|of| of.parse::<u32>().ok()),
        };
        let is_one = |of: &u32| of.is_power_of_two() && of.ilog2() <= RATE_SHIFT_MAX;
        let of = of.filter(is_one).ok_or_else(|| TermsError::Rate(text.to_owned()))?;
        Ok(Rate(of.ilog2()))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("1"),
            shift => write!(f, "1/{}", 1u64 << shift),
        }
    }
}

impl TryFrom<String> for Rate {
    type Error = TermsError;

    fn try_from(text: String) -> Result<Rate, TermsError> {
        text.parse()
    }
}

impl From<Rate> for String {
    fn from(rate: Rate) -> String {
        rate.to_string()
    }
}

impl FromStr for Caches {
    type Err = TermsError;

    fn from_str(text: &str) -> Result<Caches, TermsError> {
        let text = if text == "oam" { OAM } else { text };
        let shapes: Vec<CacheShape> = text.split(',').map(cache).collect::<Result<_, _>>()?;
        match shapes[..] {
            [last] => Ok(Caches([NONE, NONE, last])),
            [first, last] => Ok(Caches([first, NONE, last])),
            [first, second, last] => Ok(Caches([first, second, last])),
            _ => Err(TermsError::Count(text.to_owned())),
        }
    }
}

impl fmt::Display for Caches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let there = self.0.iter().filter(|cache| **cache != NONE).map(|cache| {
            let bytes = LINE_BYTES * u64::from(cache.sets) * u64::from(cache.ways);
            format!("{}/{}", short_bytes(bytes).replace("iB", ""), cache.ways)
        });
        f.write_str(&there.collect::<Vec<_>>().join(","))
    }
}

impl TryFrom<String> for Caches {
    type Error = TermsError;

    fn try_from(text: String) -> Result<Caches, TermsError> {
        text.parse()
    }
}

impl From<Caches> for String {
    fn from(caches: Caches) -> String {
        caches.to_string()
    }
}

/// For the user.
pub(super) fn shown(terms: &ProbeTerms) -> String {
    format!("{} of all lines, through caches {}", Rate(terms.shift), Caches(terms.caches))
}

fn cache(text: &str) -> Result<CacheShape, TermsError> {
    let refused = || TermsError::Cache(text.to_owned());
    let (bytes, ways) = text.split_once('/').ok_or_else(refused)?;
    let ways: u32 = ways.trim().parse().map_err(|_| refused())?;
    shape(parse_bytes(bytes.trim()).map_err(|_| refused())?, ways).ok_or_else(refused)
}

fn shape(bytes: u64, ways: u32) -> Option<CacheShape> {
    let set_bytes = LINE_BYTES * u64::from(ways);
    let is_whole = (1..=WAYS_MAX).contains(&ways) && bytes > 0 && bytes.is_multiple_of(set_bytes);
    let sets = is_whole.then(|| bytes / set_bytes)?;
    Some(CacheShape { sets: u32::try_from(sets).ok()?, ways })
}

/// The data caches of the first CPU, as the kernel describes them.
pub(super) fn of_machine(sys: &Path) -> Option<[CacheShape; 3]> {
    let folder = sys.join("devices/system/cpu/cpu0/cache");
    let mut found: Vec<(u32, CacheShape)> =
        std::fs::read_dir(folder).ok()?.filter_map(|entry| level(&entry.ok()?.path())).collect();
    found.sort_by_key(|(level, _)| *level);
    let shapes: Vec<CacheShape> = found.into_iter().map(|(_, shape)| shape).collect();
    match shapes[..] {
        [first, last] => Some([first, NONE, last]),
        [first, second, .., last] => Some([first, second, last]),
        _ => None,
    }
}

fn level(folder: &Path) -> Option<(u32, CacheShape)> {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
    if read("type")?.trim() == "Instruction" {
        return None;
    }
    let ways = read("ways_of_associativity")?.trim().parse().ok()?;
    let bytes = parse_bytes(read("size")?.trim()).ok()?;
    Some((read("level")?.trim().parse().ok()?, shape(bytes, ways)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_powers_of_two() {
        for (text, shift) in [("1", 0), ("1/1", 0), ("1/8", 3), ("1/32", 5), ("1/64", 6)] {
            assert_eq!(text.parse::<Rate>().map(Rate::shift), Ok(shift));
        }
        for text in ["", "0", "2", "1/3", "1/128", "1/0", "1/-2", "0.5", "1/32x"] {
            let refused = text.parse::<Rate>().unwrap_err().to_string();
            assert!(refused.contains("must be 1, 1/2"), "{refused}");
        }
        assert_eq!(Rate::default().to_string(), "1/32");
    }

    #[test]
    fn caches_are_read_and_shown() {
        let shapes = |text: &str| text.parse::<Caches>().map(|caches| caches.0);
        let shape = |sets, ways| CacheShape { sets, ways };
        assert_eq!(
            shapes("32K/8,1M/16,4M/16"),
            Ok([shape(64, 8), shape(1024, 16), shape(4096, 16)])
        );
        assert_eq!(shapes("oam"), Ok([NONE, NONE, shape(16384, 16)]));
        assert_eq!("32K/8,4M/16".parse::<Caches>().unwrap().to_string(), "32K/8,4M/16");
        for text in ["", "32K", "32K/0", "32K/33", "1000/8", "0/8", "1K/1,1K/1,1K/1,1K/1", "x/8"] {
            assert!(shapes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn caches_of_a_machine_are_those_with_data() {
        let sys = tempfile::tempdir().unwrap();
        let caches = [
            ("Data", 1, "48K", 12),
            ("Instruction", 1, "32K", 8),
            ("Unified", 2, "2048K", 16),
            ("Unified", 3, "320M", 20),
        ];
        for (at, (kind, level, size, ways)) in caches.into_iter().enumerate() {
            let folder = sys.path().join(format!("devices/system/cpu/cpu0/cache/index{at}"));
            std::fs::create_dir_all(&folder).unwrap();
            let write = |name: &str, text: String| std::fs::write(folder.join(name), text).unwrap();
            write("type", format!("{kind}\n"));
            write("level", format!("{level}\n"));
            write("size", format!("{size}\n"));
            write("ways_of_associativity", format!("{ways}\n"));
        }
        let found = Caches(of_machine(sys.path()).unwrap());
        assert_eq!(found.to_string(), "48K/12,2M/16,320M/20");
        assert_eq!(of_machine(Path::new("/nowhere")), None);
    }
}
