//! The workspace as cargo describes it. In: nothing. Out: packages with their folders, licences and
//! dependencies. Knows nothing of what the answers are used for.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::exec;

/// One package of the workspace or below it.
#[derive(Deserialize, Clone, Debug)]
pub struct Package {
    pub name: String,
    pub version: String,
    pub license: Option<String>,
    /// `None` for packages of this workspace.
    pub source: Option<String>,
    pub manifest_path: PathBuf,
    pub dependencies: Vec<Dependency>,
}

/// One line of a package's `[dependencies]`.
#[derive(Deserialize, Clone, Debug)]
pub struct Dependency {
    pub name: String,
    /// `None` for a normal dependency, else `dev` or `build`.
    pub kind: Option<String>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

impl Package {
    /// The package's folder.
    pub fn dir(&self) -> &Path {
        self.manifest_path.parent().expect("a manifest is in a folder")
    }
}

/// All packages that take part in a build of any member, on any platform.
pub fn packages() -> Result<Vec<Package>> {
    let text = exec::output(exec::cargo().args(["metadata", "--format-version=1", "--locked"]))?;
    let metadata: Metadata = serde_json::from_str(&text).context("cargo metadata")?;
    Ok(metadata.packages)
}

/// The sources of mimalloc v3, which `libmimalloc-sys` carries.
pub fn mimalloc_sources() -> Result<PathBuf> {
    let packages = packages()?;
    let carrier = packages
        .iter()
        .find(|package| package.name == "libmimalloc-sys")
        .context("libmimalloc-sys is no longer among xtask's dependencies")?;
    let sources = carrier.dir().join("c_src/mimalloc/v3");
    anyhow::ensure!(
        sources.join("src/static.c").is_file(),
        "{} has no mimalloc v3 sources",
        sources.display()
    );
    Ok(sources)
}
