//! glibc's own tests, compiled against the installed C library: building all of glibc takes an
//! hour. In: fixtures/conformance/glibc.toml and glibc's sources. Out: a [`Suite`]. Knows nothing
//! of what the tests test.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::compile::{self, Compile};
use super::list::{self, Reasoned, Skipped, Suite, Test, word};
use crate::exec;

/// The folders of headers that tests and their support library look into after the installed ones,
/// from glibc's top.
const AFTER: &[&str] = &[
    "include",
    "sysdeps/unix/sysv/linux/x86_64/64",
    "sysdeps/unix/sysv/linux/x86_64",
    "sysdeps/unix/sysv/linux/x86",
    "sysdeps/x86_64/nptl",
    "sysdeps/x86_64",
    "sysdeps/x86/nptl",
    "sysdeps/x86",
    "sysdeps/unix/sysv/linux",
    "sysdeps/nptl",
    "sysdeps/pthread",
    "sysdeps/generic",
    "",
];
/// Files of the support library that need more of glibc, and that none of the tests uses.
const NOT_OF_THE_SUPPORT: &[&str] = &["support_path_support_time64"];
/// What the support library wants to know about where things are.
const PLACES: &[(&str, &str)] = &[
    ("OBJDIR_ELF_LDSO_PATH", "/lib64/ld-linux-x86-64.so.2"),
    ("INSTDIR_PATH", "/usr"),
    ("LIBDIR_PATH", "/usr/lib/x86_64-linux-gnu"),
    ("BINDIR_PATH", "/usr/bin"),
    ("SBINDIR_PATH", "/usr/sbin"),
    ("SLIBDIR_PATH", "/lib/x86_64-linux-gnu"),
    ("ROOTSBINDIR_PATH", "/sbin"),
    ("COMPLOCALEDIR_PATH", "/usr/lib/locale"),
];

/// glibc.toml.
#[derive(Deserialize)]
struct Listing {
    release: String,
    group: Vec<Group>,
    all: Vec<Flagged>,
    skip: Vec<Reasoned>,
    test: BTreeMap<String, Needs>,
    module: BTreeMap<String, Needs>,
}

#[derive(Deserialize)]
struct Group {
    name: String,
    folders: Vec<String>,
    tests: Vec<String>,
}

/// Flags of many tests.
#[derive(Deserialize)]
struct Flagged {
    flags: Vec<String>,
    tests: Vec<String>,
}

/// What a test or a module needs.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Needs {
    args: Vec<String>,
    env: BTreeMap<String, String>,
    flags: Vec<String>,
    /// Further sources.
    sources: Vec<String>,
    /// Modules that it opens.
    modules: Vec<String>,
    /// Modules that it is linked with.
    linked: Vec<String>,
}

/// Where the sources are and where the programs go.
struct Places {
    source: PathBuf,
    build: PathBuf,
}

/// The suite, with its support library built.
pub fn suite() -> Result<Suite> {
    let listing: Listing = list::read("glibc.toml")?;
    let source = super::sources().of_installed("glibc", "libc6")?;
    let name = source.file_name().context("sources are in a folder")?.to_string_lossy();
    let build = super::folder().join(format!("built-{name}"));
    std::fs::create_dir_all(&build)?;
    let places = Places { source, build };
    support(&places)?;
    let mut suite = Suite::default();
    for group in &listing.group {
        for name in &group.tests {
            match places.test(&listing, group, name) {
                Ok(test) => suite.tests.push(test),
                Err(why) => suite.skipped.push(Skipped { name: in_group(group, name), why }),
            }
        }
    }
    Ok(suite)
}

fn in_group(group: &Group, name: &str) -> String {
    format!("{}/{name}", group.name)
}

/// Builds the support library.
fn support(places: &Places) -> Result<()> {
    let makefile = std::fs::read_to_string(places.source.join("support/Makefile"))?;
    let objects = places.build.join("support");
    std::fs::create_dir_all(&objects)?;
    let builds: Vec<Compile> = routines(&makefile)
        .filter(|name| !NOT_OF_THE_SUPPORT.contains(name))
        .map(|name| places.support(name, &objects))
        .collect();
    if let Some((out, why)) = compile::all(&builds).into_iter().next() {
        bail!("glibc's support library: {}: {why}", out.display());
    }
    if compile::is_newer(&places.library(), builds.iter().map(|build| build.out.clone())) {
        return Ok(());
    }
    let mut archive = exec::command("ar");
    archive.arg("crs").arg(places.library());
    exec::run(archive.args(builds.iter().map(|build| &build.out)))
}

/// The files that the support library's Makefile names.
fn routines(makefile: &str) -> impl Iterator<Item = &str> {
    let lines = makefile.lines().skip_while(|line| !line.starts_with("libsupport-routines"));
    lines.skip(1).take_while(|line| !line.is_empty()).map(|line| line.trim_end_matches('\\').trim())
}

impl Places {
    fn library(&self) -> PathBuf {
        self.build.join("libsupport.a")
    }

    fn support(&self, name: &str, objects: &Path) -> Compile {
        let mut words = self.compiler("c");
        words.push(define("SRCDIR_PATH", &word(&self.source)));
        words.push(define("OBJDIR_PATH", &word(&self.build)));
        words.extend(PLACES.iter().map(|(name, path)| define(name, path)));
        words.extend(["-c".into(), word(&self.source.join(format!("support/{name}.c")))]);
        Compile { out: objects.join(format!("{name}.o")), words }
    }

    /// A compiler as glibc's build calls it, but with the installed headers first.
    fn compiler(&self, extension: &str) -> Vec<String> {
        let shim = list::folder().join("shim");
        let language: &[&str] = match extension {
            "cc" => &["g++", "-std=gnu++17"],
            _ => &["gcc", "-std=gnu11"],
        };
        let mut words: Vec<String> = language.iter().map(|word| word.to_string()).collect();
        words.extend(["-O2", "-w", "-fno-stack-protector", "-U_FORTIFY_SOURCE"].map(String::from));
        words.extend(["-include".into(), word(&shim.join("first.h"))]);
        words.extend([format!("-I{}", word(&shim))]);
        words.push(format!("-I{}", word(&self.source.join("support"))));
        for folder in AFTER {
            words.extend(["-idirafter".into(), word(&self.source.join(folder))]);
        }
        words
    }

    /// The test, or why it is skipped.
    fn test(&self, listing: &Listing, group: &Group, name: &str) -> Result<Test, String> {
        if let Some(skip) = listing.skip.iter().find(|skip| skip.tests.iter().any(|n| n == name)) {
            return Err(skip.why.clone());
        }
        let source = self.source_of(group, name).ok_or_else(|| self.absent(listing))?;
        let nothing = Needs::default();
        let needs = listing.test.get(name).unwrap_or(&nothing);
        let out = self.build.join(name);
        let mut builds = Vec::new();
        for module in needs.linked.iter().chain(&needs.modules) {
            self.module(listing, group, module, &mut builds)?;
        }
        let mut words = self.compiler(&extension(&source));
        words.push(format!("-I{}", word(&self.source.join(&group.folders[0]))));
        words.extend(
            flags_of(listing, name).chain(&needs.flags).map(|flag| self.filled(flag, &out)),
        );
        words.push(word(&source));
        words.extend(needs.sources.iter().map(|name| word(&self.source.join(name))));
        words.push(word(&self.library()));
        words.extend(self.linking(needs));
        builds.push(Compile { out: out.clone(), words });
        let mut command = vec![word(&out)];
        command.extend(needs.args.iter().map(|argument| self.filled(argument, &out)));
        let mut variables: BTreeMap<String, String> =
            needs.env.iter().map(|(name, v)| (name.clone(), self.filled(v, &out))).collect();
        variables.insert("LD_LIBRARY_PATH".into(), word(&self.build));
        Ok(Test { name: in_group(group, name), builds, words: command, variables })
    }

    /// Adds the module and those that it is linked with.
    fn module(
        &self,
        listing: &Listing,
        group: &Group,
        name: &str,
        builds: &mut Vec<Compile>,
    ) -> Result<(), String> {
        let nothing = Needs::default();
        let needs = listing.module.get(name).unwrap_or(&nothing);
        for linked in &needs.linked {
            self.module(listing, group, linked, builds)?;
        }
        let source = self.source_of(group, name).ok_or_else(|| self.absent(listing))?;
        let file = format!("{name}.so");
        let mut words = self.compiler(&extension(&source));
        words.extend(["-shared".into(), "-fPIC".into(), format!("-Wl,-soname,{file}")]);
        words.extend(flags_of(listing, name).chain(&needs.flags).cloned());
        words.push(word(&source));
        words.extend(self.linking(needs));
        builds.push(Compile { out: self.build.join(file), words });
        Ok(())
    }

    /// The modules that it is linked with, and the libraries.
    fn linking(&self, needs: &Needs) -> Vec<String> {
        let mut words = vec![format!("-L{}", word(&self.build)), "-Wl,--no-as-needed".into()];
        words.extend(needs.linked.iter().map(|name| format!("-l:{name}.so")));
        words.extend(["-Wl,--as-needed", "-lpthread", "-lm", "-lresolv"].map(String::from));
        words
    }

    fn source_of(&self, group: &Group, name: &str) -> Option<PathBuf> {
        let mut candidates = group.folders.iter().flat_map(|folder| {
            [".c", ".cc"].map(|end| self.source.join(folder).join(format!("{name}{end}")))
        });
        candidates.find(|path| path.exists())
    }

    fn absent(&self, listing: &Listing) -> String {
        format!("is not in these sources; listed for glibc {}", listing.release)
    }

    fn filled(&self, text: &str, this: &Path) -> String {
        text.replace("{self}", &word(this))
            .replace("{build}", &word(&self.build))
            .replace("{source}", &word(&self.source))
    }
}

fn flags_of<'a>(listing: &'a Listing, name: &str) -> impl Iterator<Item = &'a String> {
    let all = listing.all.iter();
    all.filter(move |all| all.tests.iter().any(|n| n == name)).flat_map(|all| &all.flags)
}

fn extension(path: &Path) -> String {
    path.extension().unwrap_or_default().to_string_lossy().into_owned()
}

fn define(name: &str, value: &str) -> String {
    format!("-D{name}=\"{value}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routines_are_read_from_the_makefile() {
        let makefile = "extra := a\nlibsupport-routines = \\\n  blob \\\n  check \\\n\nother = x\n";
        assert_eq!(routines(makefile).collect::<Vec<_>>(), ["blob", "check"]);
    }

    #[test]
    fn what_is_skipped_or_needs_something_is_listed() {
        let listing: Listing = list::read("glibc.toml").expect("the committed list");
        let listed = |name: &String| listing.group.iter().any(|group| group.tests.contains(name));
        let named = listing.skip.iter().flat_map(|skip| &skip.tests);
        let named = named.chain(listing.all.iter().flat_map(|all| &all.tests));
        for name in named.chain(listing.test.keys()) {
            assert!(listed(name), "{name} is no test");
        }
    }
}
