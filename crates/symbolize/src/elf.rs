//! Reads names from ELF files and their debug information. In: a frame. Out: its names. Knows
//! nothing of whose file it is: what a hostile file does to this process, it does to all of it, so
//! the caller chooses the process ([`crate::child`]).
//!
//! Debug files are found by build-id below `/usr/lib/debug` and `/lib/debug`.

use crate::frame::{Named, SiteFrame};
use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Sym, Symbolized, Symbolizer};
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;

/// Largest file that is parsed, bytes: debug files of browsers have 4 GiB.
const FILE_BYTES_MAX: u64 = 8 << 30;

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
        let key = (frame.path.clone(), frame.build_id.clone());
        let usable = *self.usable.entry(key).or_insert_with(|| is_usable(frame));
        if !usable {
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
    regular && frame.path.is_absolute() && (frame.build_id.is_empty() || same_build(frame))
}

fn same_build(frame: &SiteFrame) -> bool {
    build_id(&frame.path).is_some_and(|id| *id == *frame.build_id)
}

/// The GNU build-id of an ELF file; `None` when there is none.
pub fn build_id(path: &Path) -> Option<Vec<u8>> {
    let read = std::panic::catch_unwind(|| blazesym::helper::read_elf_build_id(path));
    Some(read.ok()?.ok()??.to_vec())
}
