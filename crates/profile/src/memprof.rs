//! Profiles of LLVM's memory profiler (MemProf). In: what `llvm-profdata show --memory` prints of
//! them (LLVM 19), what `llvm-dwarfdump` prints of their functions. Out: a [`Profile`]. Knows
//! nothing of processes and files.
//!
//! ```text
//!   Records: AllocSites: Callstack: SymbolName, LineOffset, Inline   a frame, innermost first
//!                        MemInfoBlock: AllocCount, TotalSize, ...    of all objects from there
//! ```
//!
//! It counts all accesses, whether a cache served them or not, and knows neither reads from writes
//! nor when: they are reads of one phase. How much was live at once is an upper bound, by how many
//! lives overlapped. Lines count from the beginning of their function, which debug information has.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use tiercel_machine::Machine;
use tiercel_machine::number::index_u32;

use crate::profile::{
    Access, Coarsening, Frame, Name, Object, Phase, Process, Profile, Run, SLOT_NS_MIN, Site,
};
use crate::tables::{FRAMES_MAX, SITES_MAX};

/// What begins the text.
const HEAD: &str = "MemprofProfile:";
/// Objects below this are slots of blocks, which are objects of this size: `SMALL_LIMIT` of
/// runtime/alloc/heap.h, `BLOCK_BYTES` of runtime/track/birth.c.
const SMALL_BYTES: u64 = 4096;
const BLOCK_BYTES: u64 = 64 << 10;
/// MemProf's clock counts milliseconds.
const NS_PER_MS: u64 = 1_000_000;
/// Latest plausible time, milliseconds: `NS_MAX` of the checks of profiles.
const MS_MAX: u64 = (1 << 53) / NS_PER_MS;

/// A text that is no profile of MemProf.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemprofError {
    /// Its first line is another.
    #[error("this is not what `llvm-profdata show --memory` prints of a memory profile")]
    NotMemprof,
    /// A figure that is none.
    #[error("line {line}: {text:?} is no figure")]
    Figure {
        /// Its line, from 1.
        line: usize,
        /// What stands there.
        text: String,
    },
    /// There is no allocation.
    #[error("the memory profile has no allocation: was the program linked with -fmemory-profile?")]
    Empty,
}

/// Where a function is declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declaration {
    /// Its name in the source.
    pub function: String,
    /// The source file.
    pub file: String,
    /// Its line.
    pub line: u32,
}

/// What is not in the memory profile itself.
#[derive(Clone, Debug, Default)]
pub struct MemprofRun {
    /// The machine that the program ran on.
    pub machine: Machine,
    /// Path of the program.
    pub program: String,
    /// Its build-id, hexadecimal.
    pub build_id: String,
    /// By the symbol of the function.
    pub declarations: HashMap<String, Declaration>,
}

/// A frame as it is printed.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    symbol: String,
    offset: u32,
    is_inlined: bool,
}

/// Figures of all objects that one stack allocated.
#[derive(Clone, Debug, Default)]
struct Figures {
    count: u64,
    accesses: u64,
    bytes: u64,
    bytes_max: u64,
    overlaps: u64,
    lifetime_ms: u64,
    last_ms: u64,
}

/// Symbols of the functions in stacks, each once.
///
/// # Errors
/// As [`MemprofError`] states.
pub fn memprof_symbols(text: &str) -> Result<BTreeSet<String>, MemprofError> {
    let stacks = parse(text)?;
    Ok(stacks.into_keys().flatten().map(|place| place.symbol).collect())
}

/// Where functions are declared, of what `llvm-dwarfdump --name=...` prints, by symbol. A symbol
/// that several functions have is left out.
pub fn memprof_declarations(text: &str) -> HashMap<String, Declaration> {
    let mut found: HashMap<String, Option<Declaration>> = HashMap::new();
    for entry in text.split("DW_TAG_subprogram").skip(1) {
        let value = |name: &str| {
            let at = entry.find(&format!("{name}\t("))? + name.len() + 2;
            let end = entry[at..].find(")\n").map_or(entry.len(), |end| at + end);
            Some(entry[at..end].trim_matches('"').to_owned())
        };
        let Some(function) = value("DW_AT_name") else { continue };
        let line = value("DW_AT_decl_line").and_then(|line| line.parse().ok());
        let (Some(file), Some(line)) = (value("DW_AT_decl_file"), line) else { continue };
        let symbol = value("DW_AT_linkage_name").unwrap_or_else(|| function.clone());
        let declaration = Declaration { function, file, line };
        let known = found.entry(symbol).or_insert_with(|| Some(declaration.clone()));
        if known.as_ref() != Some(&declaration) {
            *known = None;
        }
    }
    found.into_iter().filter_map(|(symbol, one)| Some((symbol, one?))).collect()
}

/// The profile of a run.
///
/// # Errors
/// As [`MemprofError`] states.
pub fn memprof_profile(text: &str, run: MemprofRun) -> Result<Profile, MemprofError> {
    let stacks = parse(text)?;
    if stacks.is_empty() {
        return Err(MemprofError::Empty);
    }
    let end_ms = stacks.values().map(|one| one.last_ms).max().unwrap_or(0).clamp(1, MS_MAX);
    let mut profile = Profile { slot_ns: slot_of(end_ms * NS_PER_MS), ..Profile::default() };
    for (stack, figures) in stacks.iter().take(SITES_MAX) {
        let site = index_u32(profile.sites.len());
        profile.sites.push(site_of(stack, &run));
        let index = index_u32(profile.objects.len());
        profile.objects.push(object_of(figures, site, end_ms));
        let reads = figures.accesses;
        let access =
            Access { reads, samples: reads, ..Access { object: index, ..Access::default() } };
        profile.accesses.extend((reads > 0).then_some(access));
    }
    profile.coarsening =
        Coarsening { objects_merged: total(&stacks, |one| one.count), ..Coarsening::default() };
    profile.runs.push(run_of(&stacks, &run, end_ms));
    profile.processes.push(Process {
        program: Arc::from(run.program.rsplit('/').next().unwrap_or_default()),
        end_ns: end_ms * NS_PER_MS,
        peak_bytes: profile.objects.iter().map(|one| one.peak_bytes).sum(),
        ..Process::default()
    });
    let end_ns = end_ms * NS_PER_MS;
    profile.phases.push(Phase {
        process: Some(0),
        name: "start".into(),
        end_ns,
        ..Phase::default()
    });
    profile.machine = run.machine;
    Ok(profile)
}

fn total(stacks: &BTreeMap<Vec<Place>, Figures>, of: impl Fn(&Figures) -> u64) -> u64 {
    stacks.values().map(of).fold(0, u64::saturating_add)
}

/// The shortest slot of which one is the whole run.
fn slot_of(end_ns: u64) -> u64 {
    SLOT_NS_MIN * end_ns.div_ceil(SLOT_NS_MIN).next_power_of_two()
}

fn run_of(stacks: &BTreeMap<Vec<Place>, Figures>, run: &MemprofRun, end_ms: u64) -> Run {
    Run {
        program: run.program.clone(),
        build_id: run.build_id.clone(),
        arguments: vec![run.program.clone()],
        duration_ns: end_ms * NS_PER_MS,
        ending: "unknown".to_owned(),
        sampler: "memprof".to_owned(),
        sampler_note: "It counts all accesses, also those that caches served, and knows no writes."
            .to_owned(),
        sample_period: 1.0,
        observed: crate::profile::Observed {
            births: total(stacks, |one| one.count),
            born_bytes: total(stacks, |one| one.bytes),
            samples: total(stacks, |one| one.accesses),
            ..Default::default()
        },
        ..Run::default()
    }
}

/// FNV-1a (draft-eastlake-fnv) over the places; never 0, which is the unknown site.
fn hash_of(stack: &[Place]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for place in stack {
        for byte in place.symbol.bytes().chain(place.offset.to_le_bytes()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    hash.max(1)
}

/// Functions that were inlined are names of the frame that they are in.
fn site_of(stack: &[Place], run: &MemprofRun) -> Site {
    let new_frame = || Frame {
        module: run.program.as_str().into(),
        build_id: run.build_id.as_str().into(),
        ..Frame::default()
    };
    let mut frames = vec![new_frame()];
    for (index, place) in stack.iter().enumerate() {
        if let Some(frame) = frames.last_mut() {
            frame.names.push(name_of(place, run));
        }
        if !place.is_inlined && index + 1 < stack.len() {
            frames.push(new_frame());
        }
    }
    frames.truncate(FRAMES_MAX);
    Site { hash: hash_of(stack), frames }
}

fn name_of(place: &Place, run: &MemprofRun) -> Name {
    match run.declarations.get(&place.symbol) {
        Some(one) => Name {
            function: one.function.as_str().into(),
            file: one.file.as_str().into(),
            line: one.line.saturating_add(place.offset),
        },
        None => Name { function: place.symbol.as_str().into(), ..Name::default() },
    }
}

fn object_of(figures: &Figures, site: u32, end_ms: u64) -> Object {
    let mean = figures.bytes / figures.count.max(1);
    let peak = mean.saturating_mul(figures.overlaps.saturating_add(1));
    let peak = peak.clamp(figures.bytes_max.min(figures.bytes), figures.bytes).max(1);
    let is_block = figures.bytes_max < SMALL_BYTES;
    let whole = |bytes: u64| if is_block { bytes.next_multiple_of(BLOCK_BYTES) } else { bytes };
    let (peak_bytes, born_bytes) = (whole(peak), whole(figures.bytes.max(1)));
    let count = if is_block { born_bytes / BLOCK_BYTES } else { figures.count.max(1) };
    Object {
        site,
        count,
        bytes: if is_block { BLOCK_BYTES } else { figures.bytes_max.max(1).min(peak_bytes) },
        peak_bytes,
        born_bytes,
        death_ns: end_ms * NS_PER_MS,
        lifetime_ns: figures.lifetime_ms.saturating_mul(NS_PER_MS),
        is_block,
        ..Object::default()
    }
}

/// Figures by stack; those of a stack that is there twice are added up.
fn parse(text: &str) -> Result<BTreeMap<Vec<Place>, Figures>, MemprofError> {
    if text.lines().find(|line| !line.trim().is_empty()).map(str::trim) != Some(HEAD) {
        return Err(MemprofError::NotMemprof);
    }
    let mut reader = Reader::default();
    for (index, line) in text.lines().enumerate() {
        let Some((key, value)) = line.trim().split_once(':') else { continue };
        reader.take(key, value.trim(), index + 1)?;
    }
    reader.close();
    Ok(reader.stacks)
}

#[derive(Default)]
struct Reader {
    stacks: BTreeMap<Vec<Place>, Figures>,
    stack: Vec<Place>,
    figures: Figures,
    /// Calls that lead to allocations of other records are not read.
    is_in_allocations: bool,
}

impl Reader {
    fn take(&mut self, key: &str, value: &str, line: usize) -> Result<(), MemprofError> {
        let figure = || {
            let wrong = |_| MemprofError::Figure { line, text: value.to_owned() };
            value.parse::<u64>().map_err(wrong)
        };
        match key {
            "AllocSites" => self.is_in_allocations = true,
            "CallSites" | "FunctionGUID" | "Callstack" => {
                self.close();
                self.is_in_allocations &= key == "Callstack";
            }
            _ if !self.is_in_allocations => {}
            "SymbolName" => self.stack.push(Place { symbol: value.to_owned(), ..Place::default() }),
            "LineOffset" | "Inline" => {
                let figure = figure()?;
                if let Some(place) = self.stack.last_mut() {
                    match key {
                        "Inline" => place.is_inlined = figure != 0,
                        _ => place.offset = u32::try_from(figure).unwrap_or(u32::MAX),
                    }
                }
            }
            "AllocCount" => self.figures.count = figure()?,
            "TotalAccessCount" => self.figures.accesses = figure()?,
            "TotalSize" => self.figures.bytes = figure()?,
            "MaxSize" => self.figures.bytes_max = figure()?,
            "NumLifetimeOverlaps" => self.figures.overlaps = figure()?,
            "TotalLifetime" => self.figures.lifetime_ms = figure()?,
            "DeallocTimestamp" => self.figures.last_ms = figure()?,
            _ => {}
        }
        Ok(())
    }

    fn close(&mut self) {
        let (stack, figures) = (std::mem::take(&mut self.stack), std::mem::take(&mut self.figures));
        if figures.count == 0 || stack.is_empty() {
            return;
        }
        let all = self.stacks.entry(stack).or_default();
        all.count = all.count.saturating_add(figures.count);
        all.accesses = all.accesses.saturating_add(figures.accesses);
        all.bytes = all.bytes.saturating_add(figures.bytes).min(u64::from(u32::MAX) << 20);
        all.bytes_max = all.bytes_max.max(figures.bytes_max);
        all.overlaps = all.overlaps.saturating_add(figures.overlaps);
        all.lifetime_ms = all.lifetime_ms.saturating_add(figures.lifetime_ms);
        all.last_ms = all.last_ms.max(figures.last_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check;

    const SHOWN: &str = "MemprofProfile:
  Summary:
    Version: 4
  Records:
  -
    FunctionGUID: 1
    AllocSites:
    -
      Callstack:
      -
        Function: 1
        SymbolName: _ZN2ns4makeEi
        LineOffset: 1
        Column: 12
        Inline: 1
      -
        Function: 2
        SymbolName: main
        LineOffset: 25
        Column: 25
        Inline: 0
      MemInfoBlock:
        AllocCount: 40000
        TotalAccessCount: 900000
        TotalSize: 2560000
        MaxSize: 64
        DeallocTimestamp: 767
        TotalLifetime: 6171569
        NumLifetimeOverlaps: 39999
    -
      Callstack:
      -
        Function: 2
        SymbolName: main
        LineOffset: 3
        Inline: 0
      MemInfoBlock:
        AllocCount: 2
        TotalAccessCount: 0
        TotalSize: 16777216
        MaxSize: 8388608
        DeallocTimestamp: 700
        TotalLifetime: 700
        NumLifetimeOverlaps: 0
  -
    FunctionGUID: 3
    CallSites:
    -
      -
        Function: 3
        SymbolName: caller
        LineOffset: 3
        Inline: 0
";

    const DECLARED: &str = "app:\tfile format elf64-x86-64

0x000000ab: DW_TAG_subprogram
              DW_AT_linkage_name\t(\"_ZN2ns4makeEi\")
              DW_AT_name\t(\"make\")
              DW_AT_decl_file\t(\"/src/a.cc\")
              DW_AT_decl_line\t(26)

0x000001ab: DW_TAG_subprogram
              DW_AT_name\t(\"twice\")
              DW_AT_decl_file\t(\"/src/a.cc\")
              DW_AT_decl_line\t(1)

0x000002ab: DW_TAG_subprogram
              DW_AT_name\t(\"twice\")
              DW_AT_decl_file\t(\"/src/b.cc\")
              DW_AT_decl_line\t(9)
";

    fn run() -> MemprofRun {
        MemprofRun {
            program: "/bin/app".to_owned(),
            declarations: memprof_declarations(DECLARED),
            ..MemprofRun::default()
        }
    }

    #[test]
    fn stacks_are_sites_and_their_figures_objects() {
        let profile = memprof_profile(SHOWN, run()).unwrap();
        check(&profile).unwrap();
        let sites = &profile.sites;
        assert_eq!((sites.len(), sites[0].frames.len(), sites[1].frames.len()), (2, 1, 1));
        let names = &sites[0].frames[0].names;
        assert_eq!(
            (&*names[0].function, &*names[0].file, names[0].line),
            ("make", "/src/a.cc", 27)
        );
        assert_eq!((&*names[1].function, names[1].line), ("main", 0));
        let [blocks, arrays] = &profile.objects[..] else { panic!("{:?}", profile.objects) };
        assert_eq!((blocks.is_block, blocks.count, blocks.bytes), (true, 40, BLOCK_BYTES));
        assert_eq!(blocks.peak_bytes, 40 * BLOCK_BYTES);
        assert_eq!((arrays.is_block, arrays.count, arrays.peak_bytes), (false, 2, 8 << 20));
        assert_eq!((profile.accesses.len(), profile.accesses[0].reads), (1, 900_000));
        assert_eq!(profile.runs[0].duration_ns, 767 * NS_PER_MS);
    }

    #[test]
    fn symbols_are_those_of_allocations() {
        let symbols = memprof_symbols(SHOWN).unwrap();
        assert_eq!(symbols.into_iter().collect::<Vec<_>>(), ["_ZN2ns4makeEi", "main"]);
        assert!(!run().declarations.contains_key("twice"));
    }

    #[test]
    fn other_texts_are_refused() {
        let refused = |text: &str| memprof_profile(text, run()).unwrap_err();
        assert_eq!(refused(""), MemprofError::NotMemprof);
        assert_eq!(refused("Profile:\n"), MemprofError::NotMemprof);
        assert_eq!(refused("MemprofProfile:\n  Records:\n"), MemprofError::Empty);
        let wrong = MemprofError::Figure { line: 23, text: "many".to_owned() };
        assert_eq!(refused(&SHOWN.replace("40000", "many")), wrong);
    }

    #[test]
    fn extreme_figures_make_a_profile() {
        let text = SHOWN.replace("767", &u64::MAX.to_string());
        let text = text.replace("2560000", &u64::MAX.to_string());
        check(&memprof_profile(&text, run()).unwrap()).unwrap();
        let text = SHOWN.replace("16777216", "0").replace("8388608", "0");
        check(&memprof_profile(&text, run()).unwrap()).unwrap();
    }
}
