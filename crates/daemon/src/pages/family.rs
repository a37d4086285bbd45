//! The processes that are tiered together: one and its descendants, or those of a control group.
//! In: a [`Target`]. Out: what the sampler observes and the ledger tracks. Knows nothing of
//! accesses and moves.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use tiercel_ledger::regions::Regions;
use tiercel_sampler::Sampler;

use super::budgets::Budgets;
use super::error::{AttachError, refusal};
use super::watched::Watched;
use crate::clients::children::children_of;

/// Processes of a family; more are not tiered. Chosen, not measured: each takes some 10 us a look.
const MEMBERS_MAX: usize = 1024;
/// Control groups below one that are looked through.
const GROUPS_MAX: usize = 1024;

/// What to tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A process and what it starts.
    Process(u32),
    /// The processes of a control group and of those below it, by its directory.
    Cgroup(PathBuf),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Process(pid) => write!(f, "process {pid}"),
            Target::Cgroup(path) => write!(f, "control group {}", path.display()),
        }
    }
}

impl Target {
    /// The processes that belong to it now, beside those in `known` and what these have started.
    fn members(&self, known: &[u32]) -> BTreeSet<u32> {
        match self {
            Target::Process(pid) => descendants(known, *pid),
            Target::Cgroup(path) => processes_of(path),
        }
    }

    /// Whether it exists and may be tiered.
    ///
    /// # Errors
    /// See [`AttachError`].
    pub fn check(&self) -> Result<(), AttachError> {
        match self {
            Target::Process(pid) => {
                Watched::new(*pid).map(drop).map_err(|errno| refusal(*pid, errno))
            }
            Target::Cgroup(path) if !path.join("cgroup.procs").exists() => {
                Err(AttachError::NoCgroup(path.clone()))
            }
            Target::Cgroup(path) if processes_of(path).is_empty() => {
                Err(AttachError::Empty(path.clone()))
            }
            Target::Cgroup(_) => Ok(()),
        }
    }
}

/// See the module.
pub(super) struct Family {
    target: Target,
    pub budgets: Budgets,
    members: BTreeMap<u32, Watched>,
    /// Processes that belong to it and cannot be tiered: another user's, or already ending.
    refused: BTreeSet<u32>,
    /// How many were tiered so far.
    pub seen: u64,
}

impl Family {
    /// # Errors
    /// The target is gone, empty or another's, or the sampler refuses all of it.
    pub fn new(
        target: Target,
        budgets: Budgets,
        regions: &mut Regions,
        sampler: &mut dyn Sampler,
    ) -> Result<Family, AttachError> {
        target.check()?;
        let (members, refused) = (BTreeMap::new(), BTreeSet::new());
        let mut family = Family { target, budgets, members, refused, seen: 0 };
        let mut last = None;
        for pid in family.target.members(&[]) {
            last = family.admit(pid, regions, sampler).err().or(last);
        }
        match last {
            Some(error) if family.members.is_empty() => Err(error),
            _ => Ok(family),
        }
    }

    /// Whether none of it lives any longer.
    pub fn has_ended(&self) -> bool {
        self.members.values().all(Watched::has_ended)
    }

    /// Takes in who has joined, and lets go who has left or ended.
    pub fn look(&mut self, regions: &mut Regions, sampler: &mut dyn Sampler) {
        let known: Vec<u32> = self.members.keys().copied().collect();
        let now = self.target.members(&known);
        for pid in known {
            if !now.contains(&pid) || self.members[&pid].has_ended() {
                self.members.remove(&pid);
                regions.gone(pid);
                sampler.detach(pid);
            }
        }
        self.regroup(regions);
        self.refused.retain(|pid| now.contains(pid));
        for pid in now {
            let is_new = !self.members.contains_key(&pid) && !self.refused.contains(&pid);
            if is_new && self.admit(pid, regions, sampler).is_err() {
                self.refused.insert(pid);
            }
        }
    }

    /// Moves memory of processes that went to another control group to its budget.
    fn regroup(&mut self, regions: &mut Regions) {
        for (pid, watched) in &mut self.members {
            let group = self.budgets.group_of(*pid);
            if group != watched.group {
                watched.group = group;
                watched.read_maps(regions);
            }
        }
    }

    fn admit(
        &mut self,
        pid: u32,
        regions: &mut Regions,
        sampler: &mut dyn Sampler,
    ) -> Result<(), AttachError> {
        let mut watched = Watched::new(pid).map_err(|errno| refusal(pid, errno))?;
        sampler.attach(pid)?;
        watched.group = self.budgets.group_of(pid);
        watched.read_maps(regions);
        watched.read_huge(regions);
        self.members.insert(pid, watched);
        self.seen += 1;
        Ok(())
    }

    /// Reads what is mapped.
    pub fn read_maps(&mut self, regions: &mut Regions) {
        self.members.values_mut().for_each(|one| one.read_maps(regions));
    }

    /// Looks where they have huge OS pages.
    pub fn read_huge(&mut self, regions: &mut Regions) {
        self.members.values_mut().for_each(|one| one.read_huge(regions));
    }

    /// Looks up where so many OS pages are, in turns; returns how many it were.
    pub fn locate(&mut self, regions: &mut Regions, pages: usize) -> usize {
        let ranges = regions.to_locate(pages);
        for (pid, addr, pages) in &ranges {
            self.locate_range(regions, *pid, *addr, *pages);
        }
        ranges.iter().map(|(_, _, pages)| pages).sum()
    }

    /// Looks up where OS pages of a process are from an address on.
    pub fn locate_range(&mut self, regions: &mut Regions, pid: u32, addr: u64, pages: usize) {
        if let Some(one) = self.members.get_mut(&pid) {
            one.locate_range(regions, addr, pages);
        }
    }

    /// Nothing is observed any longer.
    pub fn detach(&mut self, sampler: &mut dyn Sampler) {
        self.members.keys().for_each(|pid| sampler.detach(*pid));
    }
}

/// A process, those known, and all that they have started and that still run.
fn descendants(known: &[u32], pid: u32) -> BTreeSet<u32> {
    let mut found: BTreeSet<u32> = known.iter().copied().chain([pid]).collect();
    let mut queue: Vec<u32> = found.iter().copied().collect();
    while let Some(parent) = queue.pop() {
        for child in children_of(parent) {
            if found.len() < MEMBERS_MAX && found.insert(child) {
                queue.push(child);
            }
        }
    }
    found
}

/// The processes of a control group and of those below it.
fn processes_of(path: &Path) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    let mut queue = vec![path.to_owned()];
    let mut looked_at = 0;
    while let Some(group) = queue.pop().filter(|_| looked_at < GROUPS_MAX) {
        looked_at += 1;
        let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        found.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()).take(MEMBERS_MAX));
        let below = fs::read_dir(&group).into_iter().flatten().flatten();
        queue.extend(below.map(|entry| entry.path()).filter(|path| path.is_dir()));
    }
    while found.len() > MEMBERS_MAX {
        found.pop_last();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn descendants_are_followed_and_those_known_are_kept() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let (own, pid) = (std::process::id(), child.id());
        let found = descendants(&[4_000_000], own);
        assert!([own, pid, 4_000_000].iter().all(|one| found.contains(one)), "{found:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!descendants(&[], own).contains(&pid));
    }

    #[test]
    fn a_control_group_has_the_processes_below_it() {
        let root = tempfile::tempdir().unwrap();
        let below = root.path().join("a/b");
        fs::create_dir_all(&below).unwrap();
        assert!(matches!(
            Target::Cgroup(root.path().to_owned()).check(),
            Err(AttachError::NoCgroup(_))
        ));
        fs::write(root.path().join("cgroup.procs"), "").unwrap();
        assert!(matches!(
            Target::Cgroup(root.path().to_owned()).check(),
            Err(AttachError::Empty(_))
        ));
        fs::write(below.join("cgroup.procs"), "7\n8\nnonsense\n").unwrap();
        fs::write(root.path().join("cgroup.procs"), "3\n").unwrap();
        assert_eq!(processes_of(root.path()), BTreeSet::from([3, 7, 8]));
        assert!(Target::Cgroup(root.path().to_owned()).check().is_ok());
    }
}
