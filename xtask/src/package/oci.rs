//! `./x package oci`: an image for containers. In: the Debian package. Out: an archive of an OCI
//! image (`podman load`, `skopeo copy`). Knows nothing of registries.
//!
//! One layer: a bare Debian with the package in it, made by mmdebstrap; umoci writes the image.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::container;
use crate::exec;

/// How the image is called within its archive.
const TAG: &str = "tiercel:latest";

/// Installs the package; dpkg wants a log that no image needs.
const INSTALL: &str = "dpkg --log=/dev/null --install /given/*.deb >&2";

/// Builds the image of this Debian package.
pub fn package(deb: &Path) -> Result<PathBuf> {
    let folder = container::folder()?;
    let layout = tempfile::tempdir_in(&folder)?;
    let layer = layout.path().join("layer.tar");
    container::change(&container::bare(&[])?, INSTALL, &[deb], &layer)?;
    let image = layout.path().join("tiercel");
    umoci(&["init", "--layout"], &image, &[])?;
    let tagged = layout.path().join(TAG);
    umoci(&["new", "--image"], &tagged, &[])?;
    umoci(&["raw", "add-layer", "--image"], &tagged, &[&layer.display().to_string()])?;
    let words = ["--config.entrypoint=/usr/bin/tiercel", "--config.cmd=--help"];
    umoci(&["config", "--image"], &tagged, &words)?;
    let version = env!("CARGO_PKG_VERSION");
    let arch = exec::output(exec::command("dpkg").arg("--print-architecture"))?;
    let archive = folder.join(format!("tiercel_{version}_{}.oci.tar", arch.trim()));
    if archive.exists() {
        fs::remove_file(&archive)?;
    }
    let mut copy = exec::command("skopeo");
    copy.args(["copy", "--quiet"]).arg(format!("oci:{}", tagged.display()));
    exec::output(copy.arg(format!("oci-archive:{}:{TAG}", archive.display())))
        .context("no archive of the image (package skopeo)")?;
    Ok(archive)
}

fn umoci(verb: &[&str], image: &Path, words: &[&str]) -> Result<()> {
    let mut umoci = exec::command("umoci");
    exec::output(umoci.args(verb).arg(image).args(words)).context("no image (package umoci)")?;
    Ok(())
}
