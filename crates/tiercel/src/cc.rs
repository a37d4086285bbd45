//! `tiercel cc`, `tiercel c++` and `tiercel fc`: clang and flang 19 with the plug-in and the
//! library that check memory accesses, or apply a plan. In: a compiler's command line. Out: this
//! process becomes the compiler, whose exit status is its own. Knows nothing of what a check is.

use crate::cc_words::{Parts, Request};
use crate::exit;
use crate::library;
use crate::program::find;
use crate::terminal::{note, reason};
use anyhow::{Context, Result, bail};
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use tiercel_plan::read_plan;

/// What is done, a [`Mode`] by its name. The plug-in reads it as well.
const MODE_VARIABLE: &str = "TIERCEL_CC";
/// The plan that is applied. The plug-in reads it as well.
const PLAN_VARIABLE: &str = "TIERCEL_PLAN";
/// Lines of source, by which plans find code; an option of the user's that follows overrides it.
const LINES: &str = "-gline-tables-only";
const PASS: &str = "libtiercel_pass.so";
const PROBE: &str = "libtiercel_probe.a";
const BUILT_BY: &str = "cargo xtask compiler";

/// A compiler's command line.
#[derive(clap::Args, Debug)]
pub struct CompileArgs {
    /// Options and files, as clang takes them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "WORD")]
    pub words: Vec<OsString>,
}

/// A language that is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// `tiercel cc`, or a link to the command named `tiercel-cc`.
    C,
    /// `tiercel c++`, `tiercel-c++`.
    Cxx,
    /// `tiercel fc`, `tiercel-fc`.
    Fortran,
}

impl Language {
    /// Of the version that the plug-in is for, as Debian names it.
    fn compiler(self) -> &'static str {
        match self {
            Language::C => "clang-19",
            Language::Cxx => "clang++-19",
            Language::Fortran => "flang-new-19",
        }
    }

    /// Debian's package of it.
    fn package(self) -> &'static str {
        match self {
            Language::C | Language::Cxx => "clang-19",
            Language::Fortran => "flang-19",
        }
    }
}

/// The compiler's words, where a command line asks for one. They are taken as they are: no option
/// is ours.
pub fn asked(words: &[OsString]) -> Option<(Language, &[OsString])> {
    let called = Path::new(words.first()?).file_name()?;
    match called.to_str() {
        Some("tiercel-cc") => return Some((Language::C, &words[1..])),
        Some("tiercel-c++") => return Some((Language::Cxx, &words[1..])),
        Some("tiercel-fc") => return Some((Language::Fortran, &words[1..])),
        _ => {}
    }
    let language = match words.get(1)?.to_str()? {
        "cc" => Language::C,
        "c++" => Language::Cxx,
        "fc" => Language::Fortran,
        _ => return None,
    };
    // Help on our verb, not the compiler's 900 options.
    (words[2..] != ["--help"]).then_some((language, &words[2..]))
}

/// Becomes the compiler; returns only if that fails.
pub fn compile(language: Language, words: &[OsString]) -> ExitCode {
    let failed = match command(language, words) {
        Ok(mut command) => anyhow::Error::from(command.exec()),
        Err(error) => error,
    };
    note(format_args!("tiercel: {}; nothing was compiled", reason(&failed)));
    ExitCode::from(exit::REFUSED)
}

fn command(language: Language, words: &[OsString]) -> Result<Command> {
    let mut command = Command::new(compiler(language)?);
    let mode = Mode::of(&std::env::var(MODE_VARIABLE).unwrap_or_default())?;
    if mode == Mode::Off {
        command.args(words);
        return Ok(command);
    }
    let [pass, probe] = [part(PASS)?, part(PROBE)?];
    let parts = Parts { pass: &pass, probe: &probe };
    let request = Request::read(words);
    if mode == Mode::Apply {
        command.env(PLAN_VARIABLE, plan()?);
    }
    if mode != Mode::Profile && !request.is_foreign() {
        command.arg(LINES);
    }
    command.args(request.served(words, &parts)?);
    Ok(command)
}

/// The path of a plan that is one.
fn plan() -> Result<PathBuf> {
    let Some(path) = std::env::var_os(PLAN_VARIABLE).filter(|path| !path.is_empty()) else {
        bail!("{MODE_VARIABLE}=apply needs the plan: {PLAN_VARIABLE}=app.plan");
    };
    read_plan(Path::new(&path))?;
    let whole = Path::new(&path).canonicalize();
    whole.with_context(|| format!("cannot find {}", path.to_string_lossy()))
}

fn compiler(language: Language) -> Result<PathBuf> {
    let name = language.compiler();
    let found = find(OsStr::new(name), std::env::var_os("PATH").as_deref());
    let package = language.package();
    found.with_context(|| format!("{name} is not in PATH; on Debian 12: apt install {package}"))
}

fn part(name: &'static str) -> Result<PathBuf> {
    Ok(library::find_part(name, BUILT_BY)?)
}

/// What becomes of a program beside what the compiler does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Its accesses are checked.
    Profile,
    /// Also, its loops are marked.
    Marks,
    /// What a plan states about it is compiled in.
    Apply,
    /// Nothing.
    Off,
}

impl Mode {
    fn of(name: &str) -> Result<Mode> {
        match name {
            "" | "profile" => Ok(Mode::Profile),
            "marks" => Ok(Mode::Marks),
            "apply" => Ok(Mode::Apply),
            "off" => Ok(Mode::Off),
            other => bail!("{MODE_VARIABLE}={other}: must be profile, marks, apply or off"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Option<(Language, usize)> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        asked(&words).map(|(language, rest)| (language, rest.len()))
    }

    #[test]
    fn modes_have_names() {
        let modes = [Mode::Profile, Mode::Profile, Mode::Marks, Mode::Apply, Mode::Off];
        for (name, mode) in ["", "profile", "marks", "apply", "off"].into_iter().zip(modes) {
            assert_eq!(Mode::of(name).unwrap(), mode, "{name}");
        }
        let refused = Mode::of("replace").unwrap_err().to_string();
        assert!(refused.contains("must be profile, marks, apply or off"), "{refused}");
    }

    #[test]
    fn compilers_are_asked_for_by_verb_or_by_link() {
        assert_eq!(of("tiercel cc -c a.c"), Some((Language::C, 2)));
        assert_eq!(of("/usr/bin/tiercel c++ --version"), Some((Language::Cxx, 1)));
        assert_eq!(of("/x/tiercel-cc a.c"), Some((Language::C, 1)));
        assert_eq!(of("tiercel-c++ --help"), Some((Language::Cxx, 1)));
        assert_eq!(of("tiercel fc a.f90"), Some((Language::Fortran, 1)));
        assert_eq!(of("./tiercel-fc a.f90"), Some((Language::Fortran, 1)));
        assert_eq!(of("tiercel cc"), Some((Language::C, 0)));
        assert_eq!(of("tiercel cc --help"), None);
        assert_eq!(of("tiercel run cc"), None);
        assert_eq!(of("tiercel"), None);
    }
}
