//! `./x package wheel`: the Python package. In: `python/`. Out: a wheel, by the distribution's
//! setuptools without a network. Knows nothing of what the package does.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::container;
use crate::exec;

/// What a wheel is built from. Setuptools writes beside it, so it is built elsewhere.
const SOURCES: [&str; 2] = ["pyproject.toml", "tiercel.py"];

/// The distribution's interpreter, whose setuptools are there; others may come first in PATH.
const PYTHON: &str = "/usr/bin/python3";

pub fn package() -> Result<PathBuf> {
    let sources = tempfile::tempdir()?;
    for name in SOURCES {
        fs::copy(exec::root().join("python").join(name), sources.path().join(name))?;
    }
    let folder = container::folder()?;
    let mut pip = exec::command(PYTHON);
    pip.args(["-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps"]);
    pip.args(["--no-build-isolation", "--wheel-dir"]).arg(&folder).arg(sources.path());
    exec::output(&mut pip).context("no wheel (packages python3-pip and python3-wheel)")?;
    Ok(folder.join(format!("tiercel-{}-py3-none-any.whl", env!("CARGO_PKG_VERSION"))))
}
