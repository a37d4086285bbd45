//! `./x package`: packages of what `./x install` installs. In: the built parts. Out: files below
//! `target/package`, and whether they work in a bare Debian. Knows nothing of how parts are built.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::exec;
use crate::install::Parts;

mod container;
mod deb;
mod oci;
mod wheel;

/// Installs, uses and purges the package of Debian.
const CHECK: &str = include_str!("check.sh");

/// Uses an image, as root and as a user that it does not know.
const CHECK_IMAGE: &str = r#"
/usr/bin/tiercel --help | grep -q '^Usage: tiercel'
echo "ok: the image's command"
user='setpriv --reuid=1000 --regid=1000 --clear-groups'
[ "$($user /usr/bin/tiercel run -- perl -e 'print "x" x 9')" = xxxxxxxxx ]
status=0
$user /usr/bin/tiercel run -- sh -c 'exit 7' || status=$?
[ $status = 7 ]
echo "ok: tiercel run in the image"
"#;

#[derive(Args)]
pub struct Options {
    #[command(subcommand)]
    kind: Kind,
    /// Of the debug build
    #[arg(long, hide = true, global = true)]
    debug: bool,
}

#[derive(Subcommand)]
enum Kind {
    /// A package for Debian, checked by lintian
    Deb,
    /// A wheel of the Python package
    Wheel,
    /// An OCI image: a bare Debian with the Debian package
    Oci,
    /// Install, use and purge the Debian package in a bare Debian; unpack and use the image
    Check,
}

pub fn main(options: &Options) -> Result<()> {
    let parts = || Parts::build(options.debug);
    match options.kind {
        Kind::Deb => println!("{}", deb::package(&parts()?)?.display()),
        Kind::Wheel => println!("{}", wheel::package()?.display()),
        Kind::Oci => println!("{}", oci::package(&deb::package(&parts()?)?)?.display()),
        Kind::Check => check(&deb::package(&parts()?)?)?,
    }
    Ok(())
}

fn check(package: &Path) -> Result<()> {
    // Readers of manuals are no part of a bare system.
    let system = container::bare(&["man-db"])?;
    print!("{}", container::run(&system, CHECK, &[package])?);
    check_image(&oci::package(package)?)
}

/// Another program than the one that wrote it reads the archive.
fn check_image(archive: &Path) -> Result<()> {
    let folder = tempfile::tempdir_in(container::folder()?)?;
    let path = |name: &str| folder.path().join(name).display().to_string();
    let to = format!("oci:{}:t", path("image"));
    let from = format!("oci-archive:{}", archive.display());
    exec::output(exec::command("skopeo").args(["copy", "--quiet", &from, &to]))?;
    let image = format!("{}:t", path("image"));
    exec::output(container::as_root("umoci").args(["unpack", "--image", &image, &path("bundle")]))?;
    let config: Value = serde_json::from_slice(&fs::read(path("bundle/config.json"))?)?;
    let args = &config["process"]["args"];
    ensure!(*args == json!(["/usr/bin/tiercel", "--help"]), "the image's command is {args}");
    let mut pack = container::as_root("tar");
    pack.args(["--numeric-owner", "-cf", &path("system.tar"), "-C", &path("bundle/rootfs"), "."]);
    exec::output(&mut pack)?;
    print!("{}", container::run(path("system.tar").as_ref(), CHECK_IMAGE, &[])?);
    exec::output(container::as_root("rm").args(["-r", &path("bundle")]))
        .context("cannot clean up")?;
    Ok(())
}
