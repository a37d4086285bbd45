//! The exact accesses of a program by allocation site: every miss belongs to the object that had
//! its address at its time. In: a trace of all misses by the timing plugin, lives of objects by the
//! runtime's records. Out: counts by site. Knows nothing of profiles.
//!
//! Both are in the order of time and of one clock, so that one pass joins them: memory holds the
//! lives, and the trace is never held. Times of lives are right to 20 us, a quantum of the plugin:
//! what a program accesses so soon after a birth may be counted for what had the address before.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result, bail};

/// An object's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Life {
    /// Its process.
    pub process: u32,
    /// Its first byte.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// When it was born, nanoseconds on the sampler's clock.
    pub birth_ns: u64,
    /// When it died.
    pub death_ns: u64,
    /// Index of its site.
    pub site: usize,
}

/// What memory did for a site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Loads that missed all caches.
    pub reads: u64,
    /// Stores that did.
    pub writes: u64,
    /// Lines that became dirty.
    pub dirtied: u64,
    /// How long the processor waited at these accesses, picoseconds. Where misses overlap, the one
    /// that could not begin has the wait.
    pub stall_ps: u64,
}

/// A program's misses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Truth {
    /// By site.
    pub sites: Vec<Counts>,
    /// Of the program's processes where no object lived: stacks, data of modules, the runtime.
    pub outside: Counts,
    /// Of other processes.
    pub others: Counts,
}

impl Counts {
    /// Loads and stores that missed.
    pub fn misses(&self) -> u64 {
        self.reads + self.writes
    }
}

impl Truth {
    /// The program's own.
    pub fn of_program(&self) -> Counts {
        let sum = |a: Counts, b: &Counts| Counts {
            reads: a.reads + b.reads,
            writes: a.writes + b.writes,
            dirtied: a.dirtied + b.dirtied,
            stall_ps: a.stall_ps + b.stall_ps,
        };
        self.sites.iter().fold(self.outside, sum)
    }
}

/// Joins a trace with `lives`, whose sites are below `sites`. `processes` are the program's;
/// `origin_ns` is the trace's clock when that of the lives was 0.
///
/// # Errors
/// If the trace cannot be read, or is none.
pub fn truth(
    trace: &Path,
    origin_ns: u64,
    lives: &[Life],
    processes: &[u32],
    sites: usize,
) -> Result<Truth> {
    let shown = || format!("the trace {}", trace.display());
    let mut records = BufReader::with_capacity(1 << 20, File::open(trace).with_context(shown)?);
    let mut found = Truth { sites: vec![Counts::default(); sites], ..Truth::default() };
    let mut living = Living::new(lives, origin_ns);
    let (mut now_ns, mut process, mut record) = (0, 0, [0; RECORD_BYTES]);
    while fill(&mut records, &mut record).with_context(shown)? {
        let (kind, value, since_ns, stall_ps) = parts(&record);
        now_ns += u64::from(since_ns);
        match kind {
            TIME => now_ns = value,
            PROCESS => process = u32::try_from(value).with_context(shown)?,
            READ | WRITE | DIRTIED => {
                living.advance(now_ns);
                let counts = match living.site(process, value) {
                    _ if !processes.contains(&process) => &mut found.others,
                    Some(site) => &mut found.sites[site],
                    None => &mut found.outside,
                };
                counts.reads += u64::from(kind == READ);
                counts.writes += u64::from(kind == WRITE);
                counts.dirtied += u64::from(kind == DIRTIED);
                counts.stall_ps += u64::from(stall_ps);
            }
            _ => bail!("{}: a record of kind {kind}", shown()),
        }
    }
    Ok(found)
}

// As crates/emulator writes them.
const RECORD_BYTES: usize = 16;
const TIME: u64 = 0;
const PROCESS: u64 = 1;
const READ: u64 = 2;
const WRITE: u64 = 3;
const DIRTIED: u64 = 4;

/// False at the end; an incomplete record is an error.
fn fill(from: &mut impl Read, record: &mut [u8; RECORD_BYTES]) -> std::io::Result<bool> {
    let first = from.read(record)?;
    if first > 0 {
        from.read_exact(&mut record[first..])?;
    }
    Ok(first > 0)
}

/// Kind, value, nanoseconds since the record before, stall.
fn parts(record: &[u8; RECORD_BYTES]) -> (u64, u64, u32, u32) {
    let number = u128::from_le_bytes(*record);
    let bits = |at: u32, count: u32| {
        u64::try_from(number >> at & ((1 << count) - 1)).expect("at most 48 bits")
    };
    let half = |at| u32::try_from(bits(at, 32)).expect("32 bits");
    (bits(48, 16), bits(0, 48), half(64), half(96))
}

/// The objects that live at a time.
struct Living<'a> {
    lives: &'a [Life],
    /// Births and deaths still to come, the last first: when, whether a birth, which life. What
    /// dies at a time is gone before what is born then.
    changes: Vec<(u64, bool, usize)>,
    /// By process, by first byte.
    at: HashMap<u32, BTreeMap<u64, usize>>,
}

impl<'a> Living<'a> {
    fn new(lives: &'a [Life], origin_ns: u64) -> Living<'a> {
        let both = |(index, life): (usize, &Life)| {
            let (birth_ns, death_ns) = (origin_ns + life.birth_ns, origin_ns + life.death_ns);
            [(birth_ns, true, index), (death_ns, false, index)]
        };
        let mut changes: Vec<_> = lives.iter().enumerate().flat_map(both).collect();
        changes.sort_unstable_by(|a, b| b.cmp(a));
        Living { lives, changes, at: HashMap::new() }
    }

    fn advance(&mut self, now_ns: u64) {
        while let Some((_, is_birth, index)) = self.changes.pop_if(|(at_ns, ..)| *at_ns <= now_ns) {
            let life = &self.lives[index];
            let objects = self.at.entry(life.process).or_default();
            if is_birth {
                objects.insert(life.address, index);
            } else if objects.get(&life.address) == Some(&index) {
                objects.remove(&life.address);
            }
        }
    }

    /// The site of what lives at an address.
    fn site(&self, process: u32, address: u64) -> Option<usize> {
        let (_, index) = self.at.get(&process)?.range(..=address).next_back()?;
        let life = &self.lives[*index];
        (address - life.address < life.bytes).then_some(life.site)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A trace of (kind, value, nanoseconds since the record before); each stalls for 10 ps.
    fn counted(records: &[(u64, u64, u32)], lives: &[Life], origin_ns: u64) -> Result<Truth> {
        let file = tempfile::NamedTempFile::new()?;
        let bytes = |(kind, value, since_ns): &(u64, u64, u32)| {
            let first = (kind << 48 | value).to_le_bytes();
            [&first[..], &since_ns.to_le_bytes(), &10u32.to_le_bytes()].concat()
        };
        std::fs::write(file.path(), records.iter().flat_map(bytes).collect::<Vec<u8>>())?;
        truth(file.path(), origin_ns, lives, &[7, 8], 2)
    }

    fn life(process: u32, address: u64, (birth_ns, death_ns): (u64, u64), site: usize) -> Life {
        Life { process, address, bytes: 4096, birth_ns, death_ns, site }
    }

    #[test]
    fn an_access_belongs_to_the_life_that_had_its_address_then() {
        let lives =
            [life(7, 4096, (10, 20), 0), life(7, 4096, (20, 30), 1), life(8, 4096, (0, 99), 1)];
        let records = [
            (TIME, 1000, 0),
            (PROCESS, 7, 0),
            (READ, 4096, 9), // before the first
            (READ, 4100, 1),
            (WRITE, 8191, 9),
            (DIRTIED, 4200, 1), // of the second, which took the address over
            (READ, 8192, 0),    // behind it
            (PROCESS, 8, 0),
            (READ, 4096, 0),
            (PROCESS, 9, 0),
            (READ, 4096, 0),
            (PROCESS, 7, 0),
            (READ, 4096, 10), // after the second
        ];
        let found = counted(&records, &lives, 1000).expect("a trace");
        let counts = |reads, writes, dirtied| Counts {
            reads,
            writes,
            dirtied,
            stall_ps: 10 * (reads + writes + dirtied),
        };
        assert_eq!(found.sites, [counts(1, 1, 0), counts(1, 0, 1)]);
        assert_eq!((found.outside, found.others), (counts(3, 0, 0), counts(1, 0, 0)));
        assert_eq!(found.of_program(), counts(5, 1, 1));
    }

    #[test]
    fn what_is_no_trace_is_refused() {
        assert!(counted(&[(9, 0, 0)], &[], 0).is_err());
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), [0; 17]).expect("written");
        assert!(truth(file.path(), 0, &[], &[], 0).is_err(), "half a record");
        assert!(truth(Path::new("/nowhere"), 0, &[], &[], 0).is_err());
    }
}
