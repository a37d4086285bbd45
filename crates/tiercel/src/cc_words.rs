//! What a command line asks of a C or C++ compiler, and what must be added so that each memory
//! access is checked. In: words, as clang takes them. Out: words. Knows nothing of processes; of
//! files only those that `@FILE` names.

use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Files within files that `@FILE` names; clang itself only refuses circles. Chosen, not measured:
/// build systems write one.
const NESTED_MAX: usize = 8;

/// Options whose value is the next word, if it is not in the same one (clang 19, Options.td).
const WITH_VALUE: &[&str] = &[
    "-o",
    "-x",
    "-I",
    "-D",
    "-U",
    "-L",
    "-B",
    "-F",
    "-T",
    "-u",
    "-z",
    "-e",
    "-A",
    "-G",
    "-MF",
    "-MT",
    "-MQ",
    "-MJ",
    "-include",
    "-imacros",
    "-include-pch",
    "-isystem",
    "-idirafter",
    "-iquote",
    "-iprefix",
    "-iwithprefix",
    "-iwithprefixbefore",
    "-isysroot",
    "-ivfsoverlay",
    "-cxx-isystem",
    "-Xclang",
    "-Xlinker",
    "-Xassembler",
    "-Xpreprocessor",
    "-mllvm",
    "-target",
    "-arch",
    "-rpath",
    "-working-directory",
    "--param",
    "--sysroot",
    "--serialize-diagnostics",
    "-serialize-diagnostics",
    "-framework",
];

/// Options after which nothing is linked.
const ENDS_BEFORE_LINK: &[&str] = &[
    "-c",
    "-S",
    "-E",
    "-M",
    "-MM",
    "-fsyntax-only",
    "-emit-ast",
    "--analyze",
    "--precompile",
    "--compile",
    "--assemble",
    "--preprocess",
    "--version",
    "--help",
    "-dumpversion",
    "-dumpmachine",
];

/// What a command line asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    has_inputs: bool,
    ends_before_link: bool,
    /// Link-time optimisation.
    is_lto: bool,
    /// `-O` and what follows it.
    level: Option<String>,
    linker: Option<String>,
    /// Code of another architecture, for which there is no probe.
    is_foreign: bool,
}

/// A command line that cannot be served.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Only lld runs plug-ins of the pass manager.
    #[error(
        "-flto with -fuse-ld={0}: only lld can add the checks; use -fuse-ld=lld, or leave it out"
    )]
    Linker(String),
}

/// The plug-in and the library.
#[derive(Clone, Debug)]
pub struct Parts<'a> {
    /// `libtiercel_pass.so`.
    pub pass: &'a Path,
    /// `libtiercel_probe.a`.
    pub probe: &'a Path,
}

impl Request {
    /// Reads a command line; files that `@FILE` names are read as well.
    pub fn read(words: &[OsString]) -> Request {
        let mut request = Request::default();
        let mut words = expanded(words, NESTED_MAX).into_iter();
        while let Some(word) = words.next() {
            request.take(&word, &mut words);
        }
        request
    }

    /// All words for the compiler.
    ///
    /// # Errors
    /// [`Refused`] where the checks cannot be added.
    pub fn served(&self, words: &[OsString], parts: &Parts<'_>) -> Result<Vec<OsString>, Refused> {
        let mut all = words.to_vec();
        if self.is_foreign {
            return Ok(all);
        }
        if !self.is_lto || !self.is_optimised() {
            all.push(joined("-fpass-plugin=", parts.pass));
        }
        if self.links() {
            self.add_link_words(&mut all, parts)?;
        }
        Ok(all)
    }

    /// True for code of another architecture, to which nothing is added.
    pub fn is_foreign(&self) -> bool {
        self.is_foreign
    }

    fn add_link_words(&self, all: &mut Vec<OsString>, parts: &Parts<'_>) -> Result<(), Refused> {
        let is_lld = self.linker.as_ref().is_none_or(|linker| linker.ends_with("lld"));
        if self.is_lto && !is_lld {
            return Err(Refused::Linker(self.linker.clone().unwrap_or_default()));
        }
        if self.is_lto && self.linker.is_none() {
            all.push("-fuse-ld=lld".into());
        }
        if self.is_lto || self.linker.is_some() && is_lld {
            all.push(joined("-Wl,--load-pass-plugin=", parts.pass));
        }
        // What follows is a library, whatever language was set before.
        all.extend(["-x".into(), "none".into(), parts.probe.into()]);
        Ok(())
    }

    /// Without inputs the compiler only answers questions, or complains.
    fn links(&self) -> bool {
        self.has_inputs && !self.ends_before_link
    }

    /// Without optimisation lld's pipelines may call no plug-in: then clang's own does.
    fn is_optimised(&self) -> bool {
        self.level.as_ref().is_some_and(|level| level != "0")
    }

    fn take(&mut self, word: &str, rest: &mut impl Iterator<Item = String>) {
        if WITH_VALUE.contains(&word) {
            let value = rest.next().unwrap_or_default();
            self.is_foreign |= word == "-target" && is_foreign_target(&value);
        } else if word == "-" || !word.starts_with('-') || word.starts_with("-l") {
            self.has_inputs = true;
        } else {
            self.take_option(word);
        }
    }

    fn take_option(&mut self, word: &str) {
        self.ends_before_link |= ENDS_BEFORE_LINK.contains(&word)
            || word.starts_with("-print-")
            || word.starts_with("--print-");
        if word == "-flto" || word.starts_with("-flto=") {
            self.is_lto = true;
        } else if word == "-fno-lto" {
            self.is_lto = false;
        } else if let Some(level) = word.strip_prefix("-O") {
            self.level = Some(level.into());
        } else if let Some(linker) = word.strip_prefix("-fuse-ld=") {
            self.linker = Some(linker.into());
        } else if matches!(word, "-m32" | "-mx32" | "-m16") {
            self.is_foreign = true;
        } else if let Some(target) = word.strip_prefix("--target=") {
            self.is_foreign |= is_foreign_target(target);
        }
    }
}

fn is_foreign_target(target: &str) -> bool {
    !target.starts_with(std::env::consts::ARCH)
}

fn joined(option: &str, file: &Path) -> OsString {
    let mut word = OsString::from(option);
    word.push(file);
    word
}

/// The words, with those of files in place of `@FILE`. A file that cannot be read stays a word, as
/// clang has it.
fn expanded(words: &[OsString], nested: usize) -> Vec<String> {
    let mut all = Vec::new();
    for word in words {
        let text = word.to_string_lossy();
        match text.strip_prefix('@').filter(|_| nested > 0).and_then(read) {
            Some(inner) => all.extend(expanded(&inner, nested - 1)),
            None => all.push(text.into_owned()),
        }
    }
    all
}

fn read(file: &str) -> Option<Vec<OsString>> {
    let text = std::fs::read(OsStr::new(file)).ok()?;
    Some(split(&String::from_utf8_lossy(&text)).into_iter().map(OsString::from).collect())
}

/// Words of a response file: apart by white space, with quotes and backslashes, as GNU's tools
/// write them.
fn split(text: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match (letter, quote) {
            ('\\', _) => word.get_or_insert_default().extend(letters.next()),
            (end, Some(begin)) if end == begin => quote = None,
            (inner, Some(_)) => word.get_or_insert_default().push(inner),
            ('\'' | '"', None) => {
                word.get_or_insert_default();
                quote = Some(letter);
            }
            (space, None) if space.is_whitespace() => words.extend(word.take()),
            (other, None) => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(line: &str) -> Result<String, Refused> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let parts = Parts { pass: Path::new("P.so"), probe: Path::new("L.a") };
        let all = Request::read(&words).served(&words, &parts)?;
        Ok(all[words.len()..].join(OsStr::new(" ")).to_string_lossy().into_owned())
    }

    #[test]
    fn what_is_added_depends_on_what_is_done() {
        let compiles = "-fpass-plugin=P.so";
        let links = "-fpass-plugin=P.so -x none L.a";
        for (line, want) in [
            ("-c a.c -o a.o", compiles),
            ("-E a.c", compiles),
            ("-O2 a.c b.o -o a", links),
            ("-shared -fPIC a.c -o liba.so", links),
            ("-xc -", links),
            ("--version", compiles),
            ("-v", compiles),
            ("-print-prog-name=ld", compiles),
            ("-dumpmachine", compiles),
            ("-o a -I include", compiles),
            ("-m32 a.c", ""),
            ("--target=riscv64-linux-gnu a.c", ""),
            ("-target riscv64-linux-gnu a.c", ""),
        ] {
            assert_eq!(served(line).as_deref(), Ok(want), "{line}");
        }
    }

    #[test]
    fn under_link_time_optimisation_the_linker_adds_the_checks() {
        let links = "-fuse-ld=lld -Wl,--load-pass-plugin=P.so -x none L.a";
        for (line, want) in [
            ("-O2 -flto -c a.c", ""),
            ("-O2 -flto=thin a.c", links),
            ("-O0 -flto a.c", &format!("-fpass-plugin=P.so {links}")),
            ("-O2 -flto -fno-lto -c a.c", "-fpass-plugin=P.so"),
            ("-fuse-ld=lld a.o", "-fpass-plugin=P.so -Wl,--load-pass-plugin=P.so -x none L.a"),
        ] {
            assert_eq!(served(line).as_deref(), Ok(want), "{line}");
        }
        assert_eq!(served("-O2 -flto -fuse-ld=bfd a.c"), Err(Refused::Linker("bfd".into())));
    }

    #[test]
    fn response_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let [outer, inner] = ["outer", "inner"].map(|name| folder.path().join(name));
        std::fs::write(&inner, "-c 'a b.c'").unwrap();
        std::fs::write(&outer, format!("-O2 \"-DX=\\\"1 2\\\"\"\n@{}", inner.display())).unwrap();
        let words = [OsString::from(format!("@{}", outer.display()))];
        let request = Request::read(&words);
        assert!(request.has_inputs && request.ends_before_link && request.is_optimised());
        assert_eq!(split("a 'b c' \"d\\\"\" '' e\\ f"), ["a", "b c", "d\"", "", "e f"]);
        // A file that names itself ends.
        std::fs::write(&inner, format!("-c @{}", inner.display())).unwrap();
        assert!(Request::read(&words).ends_before_link);
        assert!(Request::read(&["@/nowhere".into()]).has_inputs);
    }
}
