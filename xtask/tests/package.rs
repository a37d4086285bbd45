//! `./x package deb`: the package is clean, is installed, used and removed without a trace.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

mod ran;
use ran::{checked, files, installed, text};

/// dpkg with a system of its own, in which there are no other packages.
fn dpkg(root: &Path, words: &[&str]) -> Output {
    let mut dpkg = Command::new("fakeroot");
    dpkg.arg("dpkg").arg(format!("--root={}", root.display()));
    // The libraries that it depends on are the real system's.
    dpkg.args(["--force-not-root", "--force-depends", "--log=/dev/null"]).args(words);
    checked(&mut dpkg)
}

#[test]
fn the_package_is_clean_and_leaves_nothing() {
    let mut package = Command::new(env!("CARGO_BIN_EXE_xtask"));
    package.args(["package", "deb", "--debug"]);
    package.env("DEBFULLNAME", "A Test").env("DEBEMAIL", "test@lists.debian.org");
    let package = text(&checked(&mut package)).trim().to_owned();
    let fields = text(&checked(Command::new("dpkg-deb").args(["--field", &package])));
    for field in ["Maintainer: A Test <test@lists.debian.org>", "Depends: libc6 (>= 2."] {
        assert!(fields.contains(field), "{fields}");
    }
    let system = tempfile::tempdir().unwrap();
    let root = system.path();
    for folder in ["info", "updates", "triggers"] {
        fs::create_dir_all(root.join("var/lib/dpkg").join(folder)).unwrap();
    }
    for file in ["status", "available"] {
        fs::write(root.join("var/lib/dpkg").join(file), "").unwrap();
    }
    dpkg(root, &["--install", &package]);
    dpkg(root, &["--verify", "tiercel"]);
    let tiercel = || installed(root.join("usr/bin/tiercel"));
    let run = ["run", "--quiet", "--", "sh", "-c", "echo $LD_PRELOAD"];
    let preload = text(&checked(tiercel().args(run)));
    assert!(preload.trim().ends_with("/usr/lib/tiercel/libtiercel.so"), "{preload}");
    checked(tiercel().args(["config", "--check"]).arg(root.join("etc/tiercel.toml")));
    let page = root.join("usr/share/man/man1/tiercel-run.1.gz");
    let page = text(&checked(Command::new("gzip").args(["--decompress", "--stdout"]).arg(page)));
    assert!(page.contains(".TH tiercel-run"), "{page}");
    dpkg(root, &["--purge", "tiercel"]);
    let left = files(root);
    let foreign = left.iter().find(|file| !file.starts_with(root.join("var/lib/dpkg")));
    assert_eq!(foreign, None);
}
