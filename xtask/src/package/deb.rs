//! `./x package deb`: a Debian package of what `./x install` installs. In: the built parts. Out:
//! `target/package/tiercel_VERSION_ARCH.deb`. Knows nothing of how the parts are built.
//!
//! The distribution's tools do what they are for: `dpkg-shlibdeps` finds the libraries that it
//! depends on, `dpkg-deb` writes the archive, `lintian` checks it. There is no debian/ folder:
//! nothing is built by a package's rules that `./x install` does not build.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::container;
use crate::exec;
use crate::install::{Parts, Tree};

/// The revision of the package, as Debian counts it.
const REVISION: u32 = 1;

const DESCRIPTION: &str = "\
placement of program data in several kinds of memory
 Tiercel finds the objects of an unmodified program that cost it the most time,
 and keeps them in the memory that serves them best (DRAM, HBM, CXL or
 persistent memory, local or remote) while the program runs. It needs a stock
 kernel, no recompilation, no root for one's own programs and no performance
 counters.";

/// Why a complaint of lintian does not hold (lintian(1), overrides).
const OVERRIDES: &str = "\
# It is a package of one's own: Debian's tracker has no request for it.
tiercel: initial-upload-closes-no-bugs [usr/share/doc/tiercel/changelog.Debian.gz:1]
# It calls what the process has already, the runtime among it, and must bring nothing in.
tiercel: shared-library-lacks-prerequisites [usr/lib/tiercel/memkind/libmemkind.so.0]
tiercel: shared-library-lacks-prerequisites [usr/lib/tiercel/memkind/libmemkind.so]
";

/// Builds the package below `target/package`, and has lintian check it.
pub fn package(parts: &Parts) -> Result<PathBuf> {
    let package = build(parts)?;
    check(&package)?;
    Ok(package)
}

fn build(parts: &Parts) -> Result<PathBuf> {
    let folder = container::folder()?;
    let root = folder.join("root");
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    let mut tree = Tree::new(Path::new("/usr"), &root)?;
    tree.fill(parts)?;
    as_debian_has_it(&root)?;
    let arch = exec::output(Command::new("dpkg").arg("--print-architecture"))?;
    let version = format!("{}-{REVISION}", env!("CARGO_PKG_VERSION"));
    documents(&root, &version)?;
    control(&root, &version, arch.trim())?;
    let package = folder.join(format!("tiercel_{version}_{}.deb", arch.trim()));
    let mut build = Command::new("dpkg-deb");
    build.args(["--root-owner-group", "-Zxz", "--build"]).arg(&root).arg(&package);
    exec::output(&mut build)?;
    Ok(package)
}

/// Configuration in /etc, pkg-config's file by architecture, manual pages compressed; no module,
/// since it is in the system's folders.
fn as_debian_has_it(root: &Path) -> Result<()> {
    let arch = exec::output(Command::new("dpkg-architecture").arg("-qDEB_HOST_MULTIARCH"))?;
    let linking = root.join("usr/lib").join(arch.trim());
    fs::create_dir_all(&linking)?;
    fs::rename(root.join("usr/lib/pkgconfig"), linking.join("pkgconfig"))?;
    fs::remove_dir_all(root.join("usr/share/modulefiles"))?;
    let settings = root.join("usr/share/tiercel/tiercel.toml");
    fs::create_dir_all(root.join("etc"))?;
    fs::rename(&settings, root.join("etc/tiercel.toml"))?;
    fs::remove_dir(root.join("usr/share/tiercel"))?;
    let unit = root.join("usr/lib/systemd/system/tiercel.service");
    let text = fs::read_to_string(&unit)?;
    fs::write(&unit, text.replace("/usr/share/tiercel/tiercel.toml", "/etc/tiercel.toml"))?;
    for page in fs::read_dir(root.join("usr/share/man/man1"))? {
        exec::run(Command::new("gzip").args(["-9", "-n"]).arg(page?.path()))?;
    }
    Ok(())
}

fn documents(root: &Path, version: &str) -> Result<()> {
    let folder = root.join("usr/share/doc/tiercel");
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("copyright"), copyright()?)?;
    let date = exec::output(Command::new("date").arg("-R"))?;
    let change = format!(
        "tiercel ({version}) unstable; urgency=medium\n\n  * Built by `./x package deb`; \
         CHANGELOG.md of the sources has the changes.\n\n -- {}  {}\n",
        maintainer()?,
        date.trim()
    );
    gzip(&folder.join("changelog.Debian.gz"), change.as_bytes())?;
    gzip(&folder.join("changelog.gz"), &fs::read(exec::root().join("CHANGELOG.md"))?)?;
    let overrides = root.join("usr/share/lintian/overrides");
    fs::create_dir_all(&overrides)?;
    fs::write(overrides.join("tiercel"), OVERRIDES)?;
    Ok(())
}

/// The machine-readable form (DEP 5). Apache's text is the system's.
fn copyright() -> Result<String> {
    let mit = fs::read_to_string(exec::root().join("LICENSE-MIT"))?;
    let indented = |line: &str| match line.trim().is_empty() {
        true => " .\n".to_owned(),
        false => format!(" {}\n", line.trim_end()),
    };
    let mit: String = mit.lines().map(indented).collect();
    Ok(format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
         Upstream-Name: tiercel\n\n\
         Files: *\nCopyright: 2026 The Tiercel developers\nLicense: Apache-2.0 or Expat\n\n\
         Files: usr/lib/tiercel/libtiercel_emulator.so\nCopyright: 2026 The Tiercel developers\n\
         License: GPL-2+\n\n\
         License: Apache-2.0\n On Debian systems, the text is in /usr/share/common-licenses/Apache-2.0.\n\n\
         License: GPL-2+\n On Debian systems, the text is in /usr/share/common-licenses/GPL-2.\n\n\
         License: Expat\n{mit}"
    ))
}

fn control(root: &Path, version: &str, arch: &str) -> Result<()> {
    let folder = root.join("DEBIAN");
    fs::create_dir_all(&folder)?;
    let kib = exec::output(Command::new("du").args(["-sk", "--exclude=DEBIAN"]).arg(root))?;
    let kib = kib.split_whitespace().next().context("du printed nothing")?;
    let text = format!(
        "Package: tiercel\nVersion: {version}\nArchitecture: {arch}\nMaintainer: {}\n\
         Installed-Size: {kib}\nDepends: {}\nSection: utils\nPriority: optional\n\
         Description: {DESCRIPTION}\n",
        maintainer()?,
        libraries(root)?
    );
    fs::write(folder.join("control"), text)?;
    fs::write(folder.join("conffiles"), "/etc/tiercel.toml\n")?;
    fs::write(folder.join("md5sums"), sums(root)?)?;
    Ok(())
}

/// Who is asked about the package, as Debian's tools find it: `NAME <ADDRESS>`.
fn maintainer() -> Result<String> {
    let of = |variable: &str, key: &str| {
        let set = std::env::var(variable).ok().filter(|value| !value.is_empty());
        let git = || exec::output(exec::command("git").args(["config", key])).ok();
        set.or_else(git).map(|value| value.trim().to_owned())
    };
    let address =
        of("DEBEMAIL", "user.email").context("who maintains the package? set DEBEMAIL")?;
    let name = of("DEBFULLNAME", "user.name").unwrap_or_else(|| "Tiercel".to_owned());
    Ok(format!("{name} <{address}>"))
}

/// `libc6 (>= 2.36), ...`. The tool wants the control file of a source package in its folder.
fn libraries(root: &Path) -> Result<String> {
    let source = tempfile::tempdir()?;
    fs::create_dir(source.path().join("debian"))?;
    fs::write(
        source.path().join("debian/control"),
        "Source: tiercel\n\nPackage: tiercel\nArchitecture: any\n",
    )?;
    let mut command = Command::new("dpkg-shlibdeps");
    command.current_dir(source.path()).args(["-O", "--ignore-missing-info"]);
    for name in ["bin/tiercel", "lib/tiercel/libtiercel.so", "lib/tiercel/libtiercel_emulator.so"] {
        command.arg(format!("-e{}", root.join("usr").join(name).display()));
    }
    let printed = exec::output(&mut command)?;
    let found = printed.lines().find_map(|line| line.strip_prefix("shlibs:Depends="));
    found.map(str::to_owned).context("dpkg-shlibdeps found no libraries")
}

/// What `dpkg --verify` compares files with.
fn sums(root: &Path) -> Result<String> {
    let find = "find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum";
    exec::output(Command::new("sh").current_dir(root).args(["-c", find]))
}

fn gzip(file: &Path, content: &[u8]) -> Result<()> {
    let mut command = Command::new("gzip");
    command.args(["-9", "-n", "-c"]).stdin(Stdio::piped()).stdout(fs::File::create(file)?);
    let mut child = command.spawn().context("cannot run gzip")?;
    child.stdin.take().context("gzip has no input")?.write_all(content)?;
    if !child.wait()?.success() {
        bail!("gzip could not write {}", file.display());
    }
    Ok(())
}

/// Fails at what lintian calls an error or a warning.
fn check(package: &Path) -> Result<()> {
    let mut lintian = Command::new("lintian");
    lintian.args(["--fail-on", "error,warning", "--allow-root"]).arg(package);
    let output = lintian.output().context("cannot run lintian (package lintian)")?;
    if !output.status.success() {
        let said = [output.stdout, output.stderr].concat();
        bail!("lintian complains of {}:\n{}", package.display(), String::from_utf8_lossy(&said));
    }
    Ok(())
}
