//! `./x install` and `./x uninstall`: Tiercel in the folders of a system. In: a prefix, a folder in
//! front of it. Out: files, and a list of them, by which they are removed. Knows nothing of
//! packages but that they are made from such folders.
//!
//! ```text
//!   PREFIX/bin/tiercel              the command
//!   PREFIX/lib/tiercel/             the runtime, OpenMP's memkind, the lab's emulator, the list
//!   PREFIX/lib/pkgconfig, cmake     how programs link the runtime
//!   PREFIX/include                  tiercel.h, tiercel.hpp, tiercel.f90
//!   PREFIX/share                    manual pages, completions, module, default configuration
//!   PREFIX/lib/systemd/system       the unit
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::{build, exec};

/// The list of installed files, below the prefix.
const LIST: &str = "lib/tiercel/installed";

/// Headers of programs; the others are between Tiercel's own parts.
const HEADERS: [&str; 3] = ["tiercel.h", "tiercel.hpp", "tiercel.f90"];

/// Shells, and where each looks for the completions of `tiercel`.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/tiercel"),
    ("zsh", "share/zsh/site-functions/_tiercel"),
    ("fish", "share/fish/vendor_completions.d/tiercel.fish"),
];

#[derive(Args)]
pub struct Options {
    /// Where it will be used
    #[arg(long, value_name = "FOLDER", default_value = "/usr/local")]
    prefix: PathBuf,
    /// Write below this folder, as if it were /
    #[arg(long, value_name = "FOLDER", default_value = "")]
    destdir: PathBuf,
    /// Install the debug build
    #[arg(long, hide = true)]
    debug: bool,
}

/// The built parts.
pub struct Parts {
    tiercel: PathBuf,
    emulator: PathBuf,
    runtime: PathBuf,
}

impl Parts {
    /// Builds them: optimised, or as `cargo build` does.
    pub fn build(is_debug: bool) -> Result<Parts> {
        build::runtime(&[])?;
        let folder = exec::target().join(if is_debug { "debug" } else { "release" });
        if !is_debug {
            build::tiercel()?;
        }
        let profile: &[&str] = if is_debug { &[] } else { &["--release"] };
        let mut cargo = exec::cargo();
        cargo.args(["build", "-p", "tiercel", "-p", "tiercel-emulator"]).args(profile);
        if is_debug {
            exec::run(&mut cargo)?;
        } else {
            let mut emulator = exec::cargo();
            exec::run(emulator.args(["build", "--release", "-p", "tiercel-emulator"]))?;
        }
        Ok(Parts {
            tiercel: folder.join("tiercel"),
            emulator: folder.join("libtiercel_emulator.so"),
            runtime: exec::target().join("runtime"),
        })
    }
}

pub fn install(options: &Options) -> Result<()> {
    let parts = Parts::build(options.debug)?;
    let mut tree = Tree::new(&options.prefix, &options.destdir)?;
    tree.fill(&parts)?;
    tree.write_list()?;
    println!("installed below {}", tree.root.display());
    Ok(())
}

/// Removes what [`install`] wrote, and folders that are empty then.
pub fn uninstall(options: &Options) -> Result<()> {
    let root = below(&options.destdir, &options.prefix);
    let list = root.join(LIST);
    let names = fs::read_to_string(&list)
        .with_context(|| format!("nothing is installed below {}: no {LIST}", root.display()))?;
    let mut folders = BTreeSet::new();
    for name in names.lines().chain([LIST]) {
        if Path::new(name).is_absolute() || name.contains("..") {
            bail!("{}: {name} is not below the prefix", list.display());
        }
        let path = root.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", path.display()));
            }
            _ => {}
        }
        folders.extend(Path::new(name).ancestors().skip(1).map(Path::to_path_buf));
    }
    // The innermost first; those with other files stay.
    for folder in folders.iter().rev().filter(|folder| folder.components().count() > 0) {
        let _ = fs::remove_dir(root.join(folder));
    }
    println!("removed from {}", root.display());
    Ok(())
}

/// A prefix that is being filled.
pub struct Tree {
    prefix: PathBuf,
    root: PathBuf,
    files: BTreeSet<String>,
}

impl Tree {
    /// An empty one.
    pub fn new(prefix: &Path, destdir: &Path) -> Result<Tree> {
        if !prefix.is_absolute() {
            bail!("--prefix {} is not an absolute path", prefix.display());
        }
        let root = below(destdir, prefix);
        Ok(Tree { prefix: prefix.to_path_buf(), root, files: BTreeSet::new() })
    }

    /// Writes everything.
    pub fn fill(&mut self, parts: &Parts) -> Result<()> {
        self.programs(parts)?;
        for header in HEADERS {
            let from = exec::root().join("include").join(header);
            self.copy(&from, &format!("include/{header}"), 0o644)?;
        }
        let module = format!("share/modulefiles/tiercel/{}", env!("CARGO_PKG_VERSION"));
        self.copy(&exec::root().join("dist/modulefile"), &module, 0o644)?;
        self.linking()?;
        self.generated()?;
        let unit = fs::read_to_string(exec::root().join("dist/tiercel.service"))?;
        let command = format!("ExecStart={}/bin/tiercel", self.prefix.display());
        let unit = unit.replace("ExecStart=/usr/bin/tiercel", &command);
        let settings = format!("{}/share/tiercel/tiercel.toml", self.prefix.display());
        let unit = unit.replace("/etc/tiercel.toml", &settings);
        self.write("lib/systemd/system/tiercel.service", &unit)
    }

    fn programs(&mut self, parts: &Parts) -> Result<()> {
        let library = |name: &str| format!("lib/tiercel/{name}");
        let mut all = vec![
            (parts.tiercel.clone(), "bin/tiercel".to_owned(), 0o755),
            (parts.emulator.clone(), library("libtiercel_emulator.so"), 0o644),
        ];
        for name in ["libtiercel.so", "memkind/libmemkind.so", "memkind/libmemkind.so.0"] {
            all.push((parts.runtime.join(name), library(name), 0o644));
        }
        for (from, name, mode) in all {
            self.copy(&from, &name, mode)?;
            exec::run(Command::new("strip").arg("--strip-unneeded").arg(self.root.join(name)))?;
        }
        Ok(())
    }

    /// For programs that link the runtime.
    fn linking(&mut self) -> Result<()> {
        let (prefix, version) = (self.prefix.display(), env!("CARGO_PKG_VERSION"));
        let pc = format!(
            "prefix={prefix}\n\nName: tiercel\n\
             Description: Placement of program data in several kinds of memory\n\
             Version: {version}\nCflags: -I${{prefix}}/include -DTIERCEL_LINKED\n\
             Libs: -L${{prefix}}/lib/tiercel -ltiercel -Wl,-rpath,${{prefix}}/lib/tiercel\n"
        );
        let cmake = "# tiercel::tiercel: the runtime, for programs that link it.\n\
             get_filename_component(_tiercel_prefix \"${CMAKE_CURRENT_LIST_DIR}/../../..\" ABSOLUTE)\n\
             add_library(tiercel::tiercel SHARED IMPORTED)\n\
             set_target_properties(tiercel::tiercel PROPERTIES\n\
             \x20 IMPORTED_LOCATION \"${_tiercel_prefix}/lib/tiercel/libtiercel.so\"\n\
             \x20 INTERFACE_COMPILE_DEFINITIONS TIERCEL_LINKED\n\
             \x20 INTERFACE_INCLUDE_DIRECTORIES \"${_tiercel_prefix}/include\")\n";
        let versions = format!(
            "set(PACKAGE_VERSION {version})\n\
             if(PACKAGE_FIND_VERSION VERSION_LESS_EQUAL PACKAGE_VERSION)\n\
             \x20 set(PACKAGE_VERSION_COMPATIBLE TRUE)\nendif()\n"
        );
        self.write("lib/pkgconfig/tiercel.pc", &pc)?;
        self.write("lib/cmake/tiercel/tiercel-config.cmake", cmake)?;
        self.write("lib/cmake/tiercel/tiercel-config-version.cmake", &versions)
    }

    /// What the command itself writes.
    fn generated(&mut self) -> Result<()> {
        let tiercel = self.root.join("bin/tiercel");
        let printed = |words: &[&str]| exec::output(Command::new(&tiercel).args(words));
        for (shell, name) in COMPLETIONS {
            self.write(name, &printed(&["completions", shell])?)?;
        }
        self.write("share/tiercel/tiercel.toml", &printed(&["config"])?)?;
        let pages = tempfile::tempdir()?;
        printed(&["man", "--all", &pages.path().display().to_string()])?;
        for page in fs::read_dir(pages.path())? {
            let page = page?;
            let name = format!("share/man/man1/{}", page.file_name().to_string_lossy());
            self.copy(&page.path(), &name, 0o644)?;
        }
        Ok(())
    }

    fn copy(&mut self, from: &Path, name: &str, mode: u32) -> Result<()> {
        let content = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
        self.put(name, &content, mode)
    }

    fn write(&mut self, name: &str, text: &str) -> Result<()> {
        self.put(name, text.as_bytes(), 0o644)
    }

    /// Writes a file beside the old one and renames it: programs may be running from that one.
    fn put(&mut self, name: &str, content: &[u8], mode: u32) -> Result<()> {
        let path = self.place(name)?;
        let part = path.with_extension("part");
        let write = || {
            fs::write(&part, content)?;
            fs::set_permissions(&part, fs::Permissions::from_mode(mode))?;
            fs::rename(&part, &path)
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }

    /// Where a file goes; its folder is there then.
    fn place(&mut self, name: &str) -> Result<PathBuf> {
        let path = self.root.join(name);
        let folder = path.parent().expect("it is below the root");
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        self.files.insert(name.to_owned());
        Ok(path)
    }

    fn write_list(&self) -> Result<()> {
        let names: String = self.files.iter().map(|name| format!("{name}\n")).collect();
        let path = self.root.join(LIST);
        fs::write(&path, names).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// The prefix below another root.
fn below(destdir: &Path, prefix: &Path) -> PathBuf {
    match destdir.as_os_str().is_empty() {
        true => prefix.to_path_buf(),
        false => destdir.join(prefix.strip_prefix("/").unwrap_or(prefix)),
    }
}
