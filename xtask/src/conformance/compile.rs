//! Compiles tests, several at a time. In: commands and what they make. Out: those that failed, with
//! the compiler's first complaint. Knows nothing of what is compiled.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::SystemTime;

use anyhow::Result;

use crate::exec;

/// One call of a compiler.
#[derive(Clone, Debug, PartialEq)]
pub struct Compile {
    pub out: PathBuf,
    /// The compiler and its arguments, without `-o`.
    pub words: Vec<String>,
}

impl Compile {
    /// Runs it, unless the same command has made the file before, of the same sources.
    fn run(&self) -> Result<(), String> {
        let note = self.out.with_extension("made-by");
        let text = self.words.join("\n");
        if self.is_current() && std::fs::read_to_string(&note).is_ok_and(|known| known == text) {
            return Ok(());
        }
        let mut compiler = exec::command(&self.words[0]);
        compiler.args(&self.words[1..]).arg("-o").arg(&self.out);
        exec::output(&mut compiler).map_err(|error| complaint(&format!("{error:#}")))?;
        std::fs::write(note, text).map_err(|error| error.to_string())
    }

    /// Whether the file is newer than all files that the command names.
    fn is_current(&self) -> bool {
        is_newer(&self.out, self.words[1..].iter().map(|word| exec::root().join(word)))
    }
}

/// Whether the file is there and newer than those of the sources that are files.
pub fn is_newer(file: &Path, sources: impl Iterator<Item = PathBuf>) -> bool {
    let newest = sources.filter_map(|source| changed(&source)).max();
    changed(file).is_some_and(|made| newest.is_none_or(|newest| newest <= made))
}

fn changed(file: &Path) -> Option<SystemTime> {
    let found = file.metadata().ok()?;
    found.is_file().then(|| found.modified().ok())?
}

/// The first line that is an error.
fn complaint(printed: &str) -> String {
    let is_error = |line: &&str| line.contains("error") || line.contains("undefined");
    let mut lines = printed.lines().skip(1);
    lines.find(is_error).or(printed.lines().next_back()).unwrap_or("").trim().into()
}

/// Runs all of them; what failed, by the file that was to be made.
pub fn all(compiles: &[Compile]) -> BTreeMap<PathBuf, String> {
    let failed = Mutex::new(BTreeMap::new());
    in_parallel(compiles, threads(), |compile| {
        if let Err(why) = compile.run() {
            failed.lock().expect("no thread panics").insert(compile.out.clone(), why);
        }
    });
    failed.into_inner().expect("no thread panics")
}

/// One for each CPU.
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// Calls `work` for each item, on `threads` threads.
pub fn in_parallel<T: Sync>(items: &[T], threads: usize, work: impl Fn(&T) + Sync) {
    let rest = Mutex::new(items.iter());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let next = rest.lock().expect("no thread panics").next();
                    let Some(item) = next else { return };
                    work(item);
                }
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn the_first_error_is_the_complaint() {
        assert_eq!(
            complaint("gcc ended: x\nnote\na.c:1: error: no\nerror two"),
            "a.c:1: error: no"
        );
        assert_eq!(complaint("gcc ended: x\nnothing"), "nothing");
    }

    #[test]
    fn a_changed_source_is_compiled_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let (source, out) = (folder.path().join("source"), folder.path().join("out"));
        std::fs::write(&source, "one").expect("a source");
        // A compiler: its arguments are the source, -o, and what it makes.
        let source_word = source.display().to_string();
        let words = ["sh", "-c", "cp \"$1\" \"$3\"", "cc", &source_word].map(String::from);
        let words = words.to_vec();
        let compile = Compile { out: out.clone(), words };
        assert_eq!(compile.run(), Ok(()));
        assert!(compile.is_current());
        let later = SystemTime::now() + std::time::Duration::from_secs(5);
        let file = std::fs::File::options().write(true).open(&source).expect("the source");
        file.set_modified(later).expect("a later time");
        assert!(!compile.is_current());
    }

    #[test]
    fn every_item_is_worked_on_once() {
        let sum = AtomicUsize::new(0);
        let items: Vec<usize> = (1..=100).collect();
        in_parallel(&items, 3, |n| {
            sum.fetch_add(*n, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 5050);
    }
}
