//! Reads names from ELF files and their debug information. In: a frame. Out: its names. Knows
//! nothing of whose file it is: what a hostile file does to this process, it does to all of it, so
//! the caller chooses the process ([`crate::child`]).
//!
//! Debug files are found by build-id below `/usr/lib/debug` and `/lib/debug`.

use crate::frame::{DataSymbol, Named, SiteFrame};
use blazesym::inspect::{self, Inspector, SymInfo};
use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Sym, Symbolized, Symbolizer};
use std::collections::HashMap;
use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;

/// Largest file that is parsed, bytes: debug files of browsers have 4 GiB.
const FILE_BYTES_MAX: u64 = 8 << 30;
/// Bytes that one compressed byte can stand for: 1032 in deflate (RFC 1951: 258 for two bits).
const COMPRESSION_MAX: u64 = 1032;
/// Smallest data that has a row of its own: an OS page.
const DATA_BYTES_MIN: u64 = 4096;
/// Symbols of one module that are kept, the largest. Chosen, not measured: large programs have some
/// hundreds.
pub(crate) const DATA_SYMBOLS_MAX: usize = 1024;
/// Of a 64-bit ELF file in little endian: sizes of its headers, and where fields are in them
/// (ELF-64 Object File Format, figures 2 and 8; gABI, Elf64_Chdr).
const EHDR_BYTES: usize = 64;
const SHDR_BYTES: usize = 64;
const CHDR_BYTES: usize = 24;
const EHDR_SHOFF: usize = 40;
const SHDR_FLAGS: usize = 8;
const SHDR_OFFSET: usize = 24;
const SHDR_SIZE: usize = 32;
const CHDR_SIZE: usize = 8;
const SHF_COMPRESSED: u64 = 1 << 11;

/// A parser with the files it has open.
pub(crate) struct ElfReader {
    symbolizer: Symbolizer,
    usable: HashMap<(Arc<Path>, Arc<[u8]>), bool>,
}

impl ElfReader {
    /// Nothing is read before the first question.
    pub(crate) fn new() -> ElfReader {
        let symbolizer = Symbolizer::builder().enable_auto_reload(false).build();
        ElfReader { symbolizer, usable: HashMap::new() }
    }

    /// A frame and what was inlined into it, innermost first; `None` when nothing is known of it.
    pub(crate) fn look_up(&mut self, frame: &SiteFrame) -> Option<Vec<Named>> {
        if !self.is_usable(frame) {
            return None;
        }
        // A return address lies behind its call; the byte before it belongs to the call.
        let source = Source::Elf(Elf::new(&*frame.path));
        let input = Input::VirtOffset(frame.addr.saturating_sub(1));
        let symbolizer = &self.symbolizer;
        // The parser is well tested, the file may be anything: one bad module costs its names only.
        let found = std::panic::catch_unwind(AssertUnwindSafe(|| {
            match symbolizer.symbolize_single(&source, input) {
                Ok(Symbolized::Sym(sym)) => Some(names(&sym, frame)),
                _ => None,
            }
        }));
        found.unwrap_or(None)
    }

    /// Data of a module of at least an OS page, ascending by address and without overlaps; of two
    /// names for one range the first. Empty also where the file cannot be read.
    pub(crate) fn data(&mut self, module: &SiteFrame) -> Vec<DataSymbol> {
        if !self.is_usable(module) {
            return Vec::new();
        }
        let path = Arc::clone(&module.path);
        let read = std::panic::catch_unwind(move || read_data(&path));
        distinct(read.unwrap_or_default())
    }

    fn is_usable(&mut self, frame: &SiteFrame) -> bool {
        let key = (frame.path.clone(), frame.build_id.clone());
        *self.usable.entry(key).or_insert_with(|| is_usable(frame))
    }
}

fn read_data(path: &Path) -> Vec<DataSymbol> {
    let mut elf = inspect::source::Elf::new(path);
    elf.debug_syms = false; // which have no variables
    let mut symbols = Vec::new();
    let mut add = |symbol: &SymInfo<'_>| {
        let bytes = symbol.size.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0);
        let is_data = symbol.sym_type == blazesym::SymType::Variable && bytes >= DATA_BYTES_MIN;
        if is_data && symbol.addr.checked_add(bytes).is_some() {
            symbols.push(DataSymbol {
                addr: symbol.addr,
                bytes,
                name: symbol.name.as_ref().into(),
            });
        }
        ControlFlow::Continue(())
    };
    // What was read before an error is kept.
    let _ = Inspector::new().for_each(&inspect::source::Source::Elf(elf), &mut add);
    symbols
}

/// Symbols that may overlap, as they should be shown.
fn distinct(mut symbols: Vec<DataSymbol>) -> Vec<DataSymbol> {
    symbols.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    symbols.truncate(DATA_SYMBOLS_MAX);
    // The larger of two that begin together comes first, and hides what it covers.
    symbols.sort_by_key(|symbol| symbol.addr);
    let mut end = 0;
    symbols.retain(|symbol| {
        let is_apart = symbol.addr >= end;
        end = if is_apart { symbol.addr + symbol.bytes } else { end };
        is_apart
    });
    for symbol in &mut symbols {
        symbol.name = demangled(&symbol.name).into();
    }
    symbols
}

fn demangled(name: &str) -> String {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return format!("{rust:#}");
    }
    let cpp = cpp_demangle::Symbol::new(name).ok().filter(|_| name.starts_with("_Z"));
    cpp.and_then(|symbol| symbol.demangle().ok()).unwrap_or_else(|| name.to_owned())
}

/// The symbol's inlined functions, innermost first, then the symbol itself.
fn names(sym: &Sym<'_>, frame: &SiteFrame) -> Vec<Named> {
    let line = |info: Option<&blazesym::symbolize::CodeInfo<'_>>| {
        info.and_then(|info| Some((info.to_path().into_owned(), info.line?)))
    };
    let mut named = Vec::with_capacity(sym.inlined.len() + 1);
    named.push(Named {
        function: sym.name.to_string(),
        line: line(sym.code_info.as_deref()),
        place: frame.place(),
    });
    for inlined in &sym.inlined {
        named.push(Named {
            function: inlined.name.to_string(),
            line: line(inlined.code_info.as_ref()),
            place: frame.place(),
        });
    }
    named.reverse();
    named
}

/// Whether the file at the path is still the one that was loaded.
fn is_usable(frame: &SiteFrame) -> bool {
    // A regular file: opening a FIFO or a device that a client named must not block us.
    let regular = std::fs::metadata(&*frame.path)
        .is_ok_and(|meta| meta.is_file() && meta.len() <= FILE_BYTES_MAX);
    regular
        && frame.path.is_absolute()
        && has_plausible_sizes(&frame.path).unwrap_or(false)
        && (frame.build_id.is_empty() || same_build(frame))
}

/// False when a compressed section claims to be larger than any compression makes it: the parser
/// takes memory for what is claimed, and a process without it ends. `None` when the file ends too
/// early.
fn has_plausible_sizes(path: &Path) -> Option<bool> {
    let file = File::open(path).ok()?;
    let head: [u8; EHDR_BYTES] = read(&file, 0)?;
    let (at, count) = (word(&head, EHDR_SHOFF), u16::from_le_bytes([head[60], head[61]]));
    for number in 0..u64::from(count) {
        let section: [u8; SHDR_BYTES] = read(&file, at.checked_add(number * SHDR_BYTES as u64)?)?;
        if word(&section, SHDR_FLAGS) & SHF_COMPRESSED == 0 {
            continue;
        }
        let packed: [u8; CHDR_BYTES] = read(&file, word(&section, SHDR_OFFSET))?;
        let most = word(&section, SHDR_SIZE).min(FILE_BYTES_MAX) * COMPRESSION_MAX;
        if word(&packed, CHDR_SIZE) > most {
            return Some(false);
        }
    }
    Some(true)
}

fn read<const N: usize>(file: &File, at: u64) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    file.read_exact_at(&mut bytes, at).ok()?;
    Some(bytes)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

fn same_build(frame: &SiteFrame) -> bool {
    build_id(&frame.path).is_some_and(|id| *id == *frame.build_id)
}

/// The GNU build-id of an ELF file; `None` when there is none.
pub fn build_id(path: &Path) -> Option<Vec<u8>> {
    let read = std::panic::catch_unwind(|| blazesym::helper::read_elf_build_id(path));
    Some(read.ok()?.ok()??.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(addr: u64, bytes: u64, name: &str) -> DataSymbol {
        DataSymbol { addr, bytes, name: name.into() }
    }

    #[test]
    fn of_symbols_that_overlap_the_first_and_largest_is_shown() {
        let all = vec![
            symbol(0x9000, 0x1000, "inside"),
            symbol(0x8000, 0x4000, "whole"),
            symbol(0x8000, 0x4000, "also"),
            symbol(0xc000, 0x1000, "_ZN3foo5tableE"),
            symbol(0xb000, 0x8000, "across"),
        ];
        let shown = [symbol(0x8000, 0x4000, "also"), symbol(0xc000, 0x1000, "foo::table")];
        assert_eq!(distinct(all), shown);
    }

    #[test]
    fn data_of_a_program_and_of_what_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let (source, path) = (dir.path().join("p.c"), dir.path().join("p"));
        let text = "char zeros[1 << 20]; static int values[5000] = {1}; char small[4095];\n\
                    int main(int c, char **v) { return values[c] + zeros[c] + small[c] + !v; }\n";
        std::fs::write(&source, text).unwrap();
        let mut cc = std::process::Command::new("cc");
        cc.args(["-O0", "-Wl,--build-id", "-o"]).arg(&path).arg(&source);
        assert!(cc.status().unwrap().success());
        let build_id: Arc<[u8]> = build_id(&path).unwrap().into();
        let module =
            |path: &Path| SiteFrame { path: path.into(), build_id: Arc::clone(&build_id), addr: 0 };
        let mut reader = ElfReader::new();
        let found = reader.data(&module(&path));
        let found: Vec<_> = found.iter().map(|one| (&*one.name, one.bytes)).collect();
        assert_eq!(found, [("values", 20_000), ("zeros", 1 << 20)]);
        assert!(reader.data(&module(&source)).is_empty(), "no ELF file");
        let strip = std::process::Command::new("strip").arg(&path).status().unwrap();
        assert!(strip.success());
        assert!(ElfReader::new().data(&module(&path)).is_empty(), "a stripped file");
    }

    #[test]
    fn a_section_that_claims_too_much_costs_the_names_of_its_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let write = |bytes: &[u8], at: u64| file.as_file().write_all_at(bytes, at).unwrap();
        let plausible = || has_plausible_sizes(file.path());
        assert_eq!(plausible(), None, "an empty file");
        write(&[0; EHDR_BYTES + SHDR_BYTES + CHDR_BYTES], 0);
        write(&(EHDR_BYTES as u64).to_le_bytes(), EHDR_SHOFF as u64);
        write(&[1, 0], 60);
        assert_eq!(plausible(), Some(true), "a section that is not compressed");
        let section = EHDR_BYTES as u64;
        write(&SHF_COMPRESSED.to_le_bytes(), section + SHDR_FLAGS as u64);
        write(&(section + SHDR_BYTES as u64).to_le_bytes(), section + SHDR_OFFSET as u64);
        write(&100u64.to_le_bytes(), section + SHDR_SIZE as u64);
        let claim = section + SHDR_BYTES as u64 + CHDR_SIZE as u64;
        for (claimed, expect) in [(103_200u64, true), (103_201, false), (1 << 45, false)] {
            write(&claimed.to_le_bytes(), claim);
            assert_eq!(plausible(), Some(expect), "{claimed}");
        }
        write(&u64::MAX.to_le_bytes(), EHDR_SHOFF as u64);
        assert_eq!(plausible(), None, "sections behind the end");
    }
}
