//! Names for sites: function, file and line of the frame that deserves an object.
//! In: frames as (path, build-id, ELF virtual address), and the user whose process named them. Out:
//! [`Named`], cached. Knows nothing of objects. Runs where names are shown (the command, the end of
//! a run), never in the loop and never in the program: parsing debug information takes time.
//!
//! A hosted process may name any file, and write a hostile one. [`Reader::Child`] is for that: a
//! process of the user who named the file parses it, within limits, and can only lose names.

use crate::child::{Children, StartChild};
use crate::elf::ElfReader;
use crate::frame::{DataSymbol, Named, SiteFrame};
use crate::wrappers::is_wrapper;
use std::collections::HashMap;
use std::sync::Arc;

/// Names kept; when full, the cache begins anew. 100 bytes each.
const NAMES_MAX: usize = 100_000;

/// Which process parses files.
#[derive(Clone, Debug, Default)]
pub enum Reader {
    /// The caller's: for files that it trusts.
    #[default]
    InProcess,
    /// A child for each user.
    Child(Arc<dyn StartChild>),
}

/// Finds names and remembers them.
pub struct Symbols {
    files: Files,
    owner: u32,
    names: HashMap<(u32, SiteFrame), Vec<Named>>,
}

enum Files {
    Here(Box<ElfReader>),
    Children(Children),
}

impl Symbols {
    /// Nothing is read before the first question. Frames are the caller's own until
    /// [`Symbols::owned_by`].
    pub fn new(reader: &Reader) -> Symbols {
        let files = match reader {
            Reader::InProcess => Files::Here(Box::new(ElfReader::new())),
            Reader::Child(starter) => Files::Children(Children::new(Arc::clone(starter))),
        };
        let owner = rustix::process::geteuid().as_raw();
        Symbols { files, owner, names: HashMap::new() }
    }

    /// From here on, frames are of this user's processes: their files are read with that user's
    /// rights.
    pub fn owned_by(&mut self, uid: u32) -> &mut Symbols {
        self.owner = uid;
        self
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

    /// Static data of a frame's module that has names, of at least an OS page each, ascending by
    /// address and without overlaps. Not remembered.
    pub fn data(&mut self, module: &SiteFrame) -> Vec<DataSymbol> {
        match &mut self.files {
            Files::Here(reader) => reader.data(module),
            Files::Children(children) => children.data(self.owner, module),
        }
    }

    /// The innermost function of a frame, inlined or not.
    pub fn innermost(&mut self, frame: &SiteFrame) -> Named {
        self.frame(frame).into_iter().next().unwrap_or_default()
    }

    /// A frame and what was inlined into it, innermost first; never empty.
    fn frame(&mut self, frame: &SiteFrame) -> Vec<Named> {
        let key = (self.owner, frame.clone());
        if let Some(known) = self.names.get(&key) {
            return known.clone();
        }
        let found = match &mut self.files {
            Files::Here(reader) => reader.look_up(frame),
            Files::Children(children) => children.look_up(self.owner, frame),
        };
        let named =
            found.unwrap_or_else(|| vec![Named { place: frame.place(), ..Named::default() }]);
        if self.names.len() >= NAMES_MAX {
            self.names.clear();
        }
        self.names.insert(key, named.clone());
        named
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::{Path, PathBuf};
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
        let mut symbols = Symbols::new(&Reader::InProcess);
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
        let mut symbols = Symbols::new(&Reader::InProcess);
        for path in ["", "/dev/tty", "/nowhere/x", "relative"] {
            let frame = SiteFrame { path: Path::new(path).into(), build_id: [].into(), addr: 0x10 };
            let named = symbols.owning_frame(&[frame]).unwrap();
            assert!(named.function.is_empty() && named.short().ends_with("0x10"), "{named:?}");
        }
        assert_eq!(symbols.owning_frame(&[]), None);
    }
}
