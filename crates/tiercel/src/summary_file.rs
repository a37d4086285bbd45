//! The file that a run's summary goes to.
//! In: a path, text. Out: the written file. Knows nothing of what a summary has.

use anyhow::{Context, Result};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Where the summary is written. It is opened before the program starts: a run of hours must not
/// end with a path that was misspelt.
pub struct SummaryFile {
    path: PathBuf,
    file: File,
}

impl SummaryFile {
    /// Opens it; what is there is kept until there is a summary.
    pub fn open(path: &Path) -> Result<SummaryFile> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = file.with_context(|| format!("cannot write the summary {}", path.display()))?;
        Ok(SummaryFile { path: path.to_owned(), file })
    }

    /// Replaces what is there.
    pub fn write(mut self, text: &str) -> Result<()> {
        let cannot = || format!("cannot write the summary {}", self.path.display());
        if self.file.metadata().is_ok_and(|file| file.is_file()) {
            self.file.set_len(0).with_context(cannot)?;
        }
        self.file.write_all(text.as_bytes()).with_context(cannot)
    }
}
