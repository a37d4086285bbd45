//! Names for sites: function, file and line of the frame that deserves an object.
//! In: frames as (path, build-id, ELF virtual address). Out: [`Named`], cached by (module,
//! address). Knows nothing of objects. Runs where names are shown (the command, the end of a run),
//! never in the loop and never in the program: parsing debug information takes time, and a file may
//! be hostile.
//!
//! Debug files are found by build-id below `/usr/lib/debug` and `/lib/debug`.

use crate::wrappers::is_wrapper;
use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Sym, Symbolized, Symbolizer};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Names kept; when full, the cache begins anew. 100 bytes each.
const NAMES_MAX: usize = 100_000;

/// Largest file that is parsed, bytes: debug files of browsers have 4 GiB.
const FILE_BYTES_MAX: u64 = 8 << 30;

/// One return address, innermost first in a stack, in a form that outlives its process.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SiteFrame {
    /// File of the module; empty for generated code.
    pub path: Arc<Path>,
    /// GNU build-id, empty when there is none.
    #[serde(with = "hex")]
    pub build_id: Arc<[u8]>,
    /// ELF virtual address of the return address; absolute where there is no module.
    pub addr: u64,
}

/// A frame with its name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// Demangled; empty when no symbol covers the address.
    pub function: String,
    /// Source file and line, where debug information has them.
    pub line: Option<(PathBuf, u32)>,
    /// `module+0xaddress`, always.
    pub place: String,
}

impl Named {
    /// `function file.c:12`, `function (module+0x12)` or `module+0x12`.
    pub fn short(&self) -> String {
        match (&self.line, self.function.is_empty()) {
            (Some((file, line)), false) => {
                let file = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy();
                format!("{} {file}:{line}", self.function)
            }
            (None, false) => format!("{} ({})", self.function, self.place),
            (_, true) => self.place.clone(),
        }
    }
}

/// Finds names and remembers them.
pub struct Symbols {
    symbolizer: Symbolizer,
    usable: HashMap<(Arc<Path>, Arc<[u8]>), bool>,
    names: HashMap<SiteFrame, Vec<Named>>,
}

impl Default for Symbols {
    fn default() -> Symbols {
        Symbols::new()
    }
}

impl Symbols {
    /// Nothing is read before the first question.
    pub fn new() -> Symbols {
        let symbolizer = Symbolizer::builder().enable_auto_reload(false).build();
        Symbols { symbolizer, usable: HashMap::new(), names: HashMap::new() }
    }

    /// The stack with inlined functions as frames of their own, innermost first.
    pub fn stack(&mut self, frames: &[SiteFrame]) -> Vec<Named> {
        frames.iter().flat_map(|frame| self.frame(frame)).collect()
    }

    /// A frame and what was inlined into it, innermost first; never empty.
    pub fn names(&mut self, frame: &SiteFrame) -> Vec<Named> {
        self.frame(frame)
    }

    /// The innermost frame that is no allocation wrapper; the outermost when all are.
    pub fn owning_frame(&mut self, frames: &[SiteFrame]) -> Option<Named> {
        for frame in frames {
            let named = self.frame(frame);
            if let Some(found) = named.into_iter().find(|n| !is_wrapper(&n.function)) {
                return Some(found);
            }
        }
        frames.last().and_then(|frame| self.frame(frame).pop())
    }

    /// The innermost function of a frame, inlined or not.
    pub fn innermost(&mut self, frame: &SiteFrame) -> Named {
        self.frame(frame).into_iter().next().unwrap_or_default()
    }

    /// A frame and what was inlined into it, innermost first; never empty.
    fn frame(&mut self, frame: &SiteFrame) -> Vec<Named> {
        if let Some(known) = self.names.get(frame) {
            return known.clone();
        }
        let named = self
            .look_up(frame)
            .unwrap_or_else(|| vec![Named { place: place(frame), ..Named::default() }]);
        if self.names.len() >= NAMES_MAX {
            self.names.clear();
        }
        self.names.insert(frame.clone(), named.clone());
        named
    }

    fn look_up(&mut self, frame: &SiteFrame) -> Option<Vec<Named>> {
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
        place: place(frame),
    });
    for inlined in &sym.inlined {
        named.push(Named {
            function: inlined.name.to_string(),
            line: line(inlined.code_info.as_ref()),
            place: place(frame),
        });
    }
    named.reverse();
    named
}

/// `libfoo.so+0x1234`.
fn place(frame: &SiteFrame) -> String {
    match frame.path.file_name() {
        Some(name) => format!("{}+{:#x}", name.to_string_lossy(), frame.addr),
        None => format!("{:#x}", frame.addr),
    }
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

/// Bytes as hexadecimal text.
pub mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de};
    use std::sync::Arc;

    /// For serde's `with`.
    pub fn serialize<S: Serializer>(bytes: &[u8], out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&text(bytes))
    }

    /// For serde's `with`.
    ///
    /// # Errors
    /// What is not pairs of hexadecimal digits.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<[u8]>, D::Error> {
        let text = String::deserialize(from)?;
        bytes(&text).ok_or_else(|| de::Error::custom("hexadecimal digits in pairs expected"))
    }

    /// Two digits a byte.
    pub fn text(bytes: &[u8]) -> String {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let digit = |value: u8| char::from(DIGITS[usize::from(value)]);
        bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
    }

    /// The other way; `None` for what is not pairs of hexadecimal digits.
    pub fn bytes(text: &str) -> Option<Arc<[u8]>> {
        if !text.is_ascii() || !text.len().is_multiple_of(2) {
            return None;
        }
        let pair = |i: usize| u8::from_str_radix(&text[i * 2..i * 2 + 2], 16).ok();
        (0..text.len() / 2).map(pair).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Compiles a program with known lines; returns its path and the address just behind the call
    /// of `malloc` in `deep`, found by `nm` as an offset into the function.
    fn program(dir: &Path) -> (PathBuf, u64) {
        let source = dir.join("p.c");
        let text = "#include <stdlib.h>\nvoid *volatile keep;\n\
                    __attribute__((noinline)) void deep(void)\n{\n    keep = malloc(9);\n}\n\
                    int main(void) { deep(); return 0; }\n";
        std::fs::write(&source, text).unwrap();
        let out = dir.join("p");
        let mut cc = Command::new("cc");
        cc.args(["-g", "-O1", "-Wl,--build-id", "-o"]).arg(&out).arg(&source);
        assert!(cc.status().unwrap().success());
        let nm = Command::new("nm").arg(&out).output().unwrap();
        let table = String::from_utf8(nm.stdout).unwrap();
        let row = table.lines().find(|line| line.ends_with(" T deep")).unwrap();
        (out, u64::from_str_radix(&row[..16], 16).unwrap())
    }

    #[test]
    fn function_and_line_and_stale_files() {
        let dir = tempfile::tempdir().unwrap();
        let (path, deep) = program(dir.path());
        let build_id = blazesym::helper::read_elf_build_id(&path).unwrap().unwrap().to_vec();
        let mut symbols = Symbols::new();
        let frame = SiteFrame { path: path.into(), build_id: build_id.into(), addr: deep + 8 };
        let named = symbols.owning_frame(std::slice::from_ref(&frame)).unwrap();
        assert_eq!(named.function, "deep");
        let (file, line) = named.line.unwrap();
        assert!(file.ends_with("p.c") && (4..=6).contains(&line), "{file:?}:{line}");

        let stale = SiteFrame { build_id: vec![1; 20].into(), ..frame };
        let named = symbols.owning_frame(&[stale]).unwrap();
        assert_eq!(named.short(), format!("p+{:#x}", deep + 8));
    }

    #[test]
    fn what_cannot_be_read_is_a_place() {
        let mut symbols = Symbols::new();
        for path in ["", "/dev/tty", "/nowhere/x", "relative"] {
            let frame = SiteFrame { path: Path::new(path).into(), build_id: [].into(), addr: 0x10 };
            let named = symbols.owning_frame(&[frame]).unwrap();
            assert!(named.function.is_empty() && named.short().ends_with("0x10"), "{named:?}");
        }
        assert_eq!(symbols.owning_frame(&[]), None);
    }
}
