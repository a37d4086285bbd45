//! The kernel's knobs of NUMA balancing: set while the sampler runs, and put back afterwards. In: a
//! length of passes. Out: changed files below /proc/sys and debugfs. Knows nothing of faults.
//!
//! What was found is written to a file before anything is changed. After a kill a child puts it
//! back ([`Guard`]). Where that was killed as well, the next sampler that starts does.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use tiercel_wire::stat;

use super::guard::Guard;
use crate::{Kind, SamplerError};

/// Off, balancing, or tiering.
pub const SWITCH: &str = "/proc/sys/kernel/numa_balancing";
/// Where debugfs has the scan's knobs.
const SCAN: &str = "/sys/kernel/debug/sched/numa_balancing";
/// `NUMA_BALANCING_NORMAL` of linux/sched/sysctl.h: marks memory of every node.
const BALANCING: &str = "1";
/// Where what was found is kept: it does not outlive a boot, as the knobs do not.
const FOUND: &str = "/run/tiercel-hint.found";

/// The files, which tests have elsewhere.
#[derive(Clone, Debug)]
pub struct Place {
    switch: PathBuf,
    scan: PathBuf,
    found: PathBuf,
}

/// Knobs as this sampler has them.
#[derive(Debug)]
pub struct Knobs {
    place: Place,
    /// Whether [`Drop`] has something to put back.
    is_ours: bool,
    /// Does it if this process is killed. Its own [`Drop`] comes after ours, and lets it end.
    _guard: Option<Guard>,
    state: String,
}

/// What was found, in the order in which it is put back: the switch comes first. While the kernel
/// scans, the other values would be in use.
struct Note {
    writer: String,
    found: Vec<(PathBuf, String)>,
}

impl Place {
    /// The same files in a folder.
    #[cfg(test)]
    pub fn below(folder: &Path) -> Place {
        let at = |name| folder.join(name);
        Place { switch: at("switch"), scan: at("scan"), found: at("found") }
    }
}

impl Default for Place {
    fn default() -> Place {
        Place { switch: SWITCH.into(), scan: SCAN.into(), found: FOUND.into() }
    }
}

impl Knobs {
    /// Makes the kernel scan, once in `window_ms` as far as it can.
    ///
    /// # Errors
    /// Where it does not scan, and we may not make it.
    pub fn set(place: &Place, window_ms: u64) -> Result<Knobs, SamplerError> {
        restore(place);
        let found = switch(place)?;
        let is_taken = place.found.exists();
        let wanted = wanted(place, window_ms);
        let note = if is_taken { None } else { change(place, &wanted) };
        let guard = |note: &Note| Guard::start(&place.found, &note.writer, &note.found);
        let (is_ours, _guard) = (note.is_some(), note.as_ref().and_then(guard));
        let mut knobs = Knobs { place: place.clone(), is_ours, _guard, state: String::new() };
        let now = switch(place)?;
        if now != BALANCING {
            return Err(off(&found));
        }
        knobs.state = match is_ours {
            true => format!("a pass of the scan every {window_ms} ms"),
            false => "the kernel scans at its own rate (root could set it)".to_owned(),
        };
        Ok(knobs)
    }

    /// What [`Knobs::set`] would find; changes nothing.
    ///
    /// # Errors
    /// As [`Knobs::set`].
    pub fn look(place: &Place) -> Result<String, SamplerError> {
        let now = switch(place)?;
        let may = fs::OpenOptions::new().write(true).open(&place.switch).is_ok();
        if now == BALANCING || may {
            Ok(format!("numa_balancing is {now}"))
        } else {
            Err(off(&now))
        }
    }

    /// For people.
    pub fn state(&self) -> &str {
        &self.state
    }
}

impl Drop for Knobs {
    fn drop(&mut self) {
        if self.is_ours {
            put_back(&self.place);
        }
    }
}

/// Puts back what a writer that is gone has changed.
pub fn restore(place: &Place) {
    let Ok(text) = fs::read_to_string(&place.found) else { return };
    let writer = text.lines().next().unwrap_or_default();
    let is_alive = writer
        .split_once(' ')
        .and_then(|(pid, started)| Some((pid.parse::<u32>().ok()?, started)))
        .is_some_and(|(pid, started)| identity(pid).as_deref() == Some(started));
    if !is_alive {
        put_back(place);
    }
}

/// The knobs and their wanted values, the switch last: then the scan begins with all set.
fn wanted(place: &Place, window_ms: u64) -> Vec<(PathBuf, String)> {
    let ms = window_ms.to_string();
    // The kernel scans so much of a process in scan_period_min_ms as its memory has
    // (task_scan_min in kernel/sched/fair.c): this is the time of a pass, down to 1 s for 2.5 GiB.
    let scan = ["scan_delay_ms", "scan_period_max_ms", "scan_period_min_ms"];
    let scan = scan.map(|name| (place.scan.join(name), ms.clone()));
    scan.into_iter().chain([(place.switch.clone(), BALANCING.to_owned())]).collect()
}

/// Notes what is found, then changes it; `None`, and nothing changed, without the rights to.
fn change(place: &Place, wanted: &[(PathBuf, String)]) -> Option<Note> {
    let read = |path: &Path| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let present: Vec<_> =
        wanted.iter().filter_map(|(path, value)| Some((path, value, read(path)?))).collect();
    if !present.iter().all(|(path, _, _)| fs::OpenOptions::new().write(true).open(path).is_ok()) {
        return None;
    }
    let own = std::process::id();
    let found = present.iter().rev().map(|(path, _, found)| ((*path).clone(), found.clone()));
    let writer = format!("{own} {}", identity(own).unwrap_or_default());
    let note = Note { writer, found: found.collect() };
    keep(&place.found, &note.text()).ok()?;
    for (path, value, found) in &present {
        if value != &found {
            let _ = fs::write(path, value); // Whether the one that matters worked is read back.
        }
    }
    Some(note)
}

impl Note {
    fn text(&self) -> String {
        let line = |(path, value): &(PathBuf, String)| format!("{} {value}\n", path.display());
        format!("{}\n{}", self.writer, self.found.iter().map(line).collect::<String>())
    }
}

/// Writes a new file that is on disk, or at least complete, before this returns.
fn keep(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// Puts back what the file says, line by line, and removes the file.
fn put_back(place: &Place) {
    let Ok(text) = fs::read_to_string(&place.found) else { return };
    let known = |path: &Path| path == place.switch || path.starts_with(&place.scan);
    let lines = text.lines().skip(1).filter_map(|line| line.rsplit_once(' '));
    for (path, value) in lines.filter(|(path, _)| known(path.as_ref())) {
        let _ = fs::write(path, value);
    }
    let _ = fs::remove_file(&place.found);
}

/// Field of `stat` (proc_pid_stat(5)).
const STARTED: usize = 22;

/// When a process started, which distinguishes it from a later one with its number; `None` when it
/// is gone.
fn identity(pid: u32) -> Option<String> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    stat::field(&String::from_utf8_lossy(&stat), STARTED).map(str::to_owned)
}

fn switch(place: &Place) -> Result<String, SamplerError> {
    let text = fs::read_to_string(&place.switch).map_err(|_| SamplerError::Unavailable {
        kind: Kind::Hint,
        why: "this kernel has no NUMA balancing".to_owned(),
        remedy: "a kernel with CONFIG_NUMA_BALANCING is needed; the probe sampler works without"
            .to_owned(),
    })?;
    Ok(text.trim().to_owned())
}

fn off(found: &str) -> SamplerError {
    SamplerError::Unavailable {
        kind: Kind::Hint,
        why: format!("kernel.numa_balancing is {found}, and 1 is needed"),
        remedy: "as root: sysctl kernel.numa_balancing=1".to_owned(),
    }
}
