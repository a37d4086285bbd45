//! Budgets of control groups: whose memory counts to which.
//! In: `[[budget]]` tables, processes. Out: groups and their limits. Knows nothing of what is held.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tiercel_ledger::regions::GroupId;
use tiercel_machine::number::index_u16;
use tiercel_policy::Limit;

use super::error::AttachError;

/// Where control groups are mounted.
pub const CGROUPS: &str = "/sys/fs/cgroup";

/// Most budgets: the ledger distinguishes so many groups in a block, with the one of all others.
pub const BUDGETS_MAX: usize = 63;

/// What the processes of a control group may hold of the best tier, of what is tiered by OS page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CgroupBudget {
    /// Its directory, or its path below /sys/fs/cgroup. Groups below it belong to it, but for those
    /// with a budget of their own.
    pub cgroup: PathBuf,
    /// A size, a share of its memory, or all.
    pub fast: Limit,
}

/// A control group's directory. It may be given as below /sys/fs/cgroup, as `systemd-cgls` and
/// /proc/PID/cgroup name it.
pub fn directory(cgroup: &Path) -> PathBuf {
    if cgroup.starts_with(CGROUPS) {
        return cgroup.to_owned();
    }
    Path::new(CGROUPS).join(cgroup.strip_prefix("/").unwrap_or(cgroup))
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Budgets {
    /// Of groups 1, 2, and so on, by directory.
    named: Vec<(PathBuf, Limit)>,
    /// Of group 0, which has all other processes.
    rest: Limit,
}

impl Budgets {
    /// # Errors
    /// [`AttachError::NoCgroup`].
    pub fn new(budgets: &[CgroupBudget], rest: Limit) -> Result<Budgets, AttachError> {
        let named = budgets.iter().map(|one| (directory(&one.cgroup), one.fast)).collect();
        let budgets = Budgets { named, rest };
        let is_missing = |path: &&PathBuf| !path.join("cgroup.procs").exists();
        match budgets.named.iter().map(|(path, _)| path).find(is_missing) {
            Some(path) => Err(AttachError::NoCgroup(path.clone())),
            None => Ok(budgets),
        }
    }

    /// Whose budget a process's memory counts to.
    pub fn group_of(&self, pid: u32) -> GroupId {
        if self.named.is_empty() {
            return GroupId(0);
        }
        let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        self.group_by(&text)
    }

    /// By the text of /proc/PID/cgroup: the nearest of the groups above the process that has a
    /// budget.
    fn group_by(&self, text: &str) -> GroupId {
        let Some(own) = text.lines().find_map(|line| line.strip_prefix("0::")) else {
            return GroupId(0);
        };
        let own = directory(Path::new(own));
        let above = self.named.iter().enumerate().filter(|(_, (path, _))| own.starts_with(path));
        let nearest = above.max_by_key(|(_, (path, _))| path.components().count());
        GroupId(nearest.map_or(0, |(nth, _)| index_u16(nth + 1)))
    }

    /// All groups with their limits, and with their directories.
    pub fn groups(&self) -> impl Iterator<Item = (GroupId, Limit, Option<&Path>)> {
        let named = self.named.iter().zip(1..);
        let named = named.map(|((path, limit), nth)| (GroupId(nth), *limit, Some(path.as_path())));
        std::iter::once((GroupId(0), self.rest, None)).chain(named)
    }

    /// Whether any control group has a budget.
    pub fn is_by_group(&self) -> bool {
        !self.named.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budgets(cgroups: &[&str]) -> Budgets {
        let named = cgroups
            .iter()
            .zip(1..)
            .map(|(cgroup, nth)| (directory(Path::new(cgroup)), Limit::Bytes(nth << 20)));
        Budgets { named: named.collect(), rest: Limit::Capacity }
    }

    #[test]
    fn a_process_counts_to_the_nearest_group_above_it() {
        let budgets = budgets(&["/tenant", "/sys/fs/cgroup/tenant/below", "other"]);
        let group = |text: &str| budgets.group_by(text).0;
        assert_eq!(group("0::/tenant\n"), 1);
        assert_eq!(group("0::/tenant/elsewhere/deep\n"), 1);
        assert_eq!(group("0::/tenant/below/deep\n"), 2);
        assert_eq!(group("1:name=systemd:/x\n0::/other\n"), 3);
        assert_eq!(group("0::/tenants\n"), 0, "a name that begins alike");
        assert_eq!(group("0::/\n"), 0);
        assert_eq!(group(""), 0, "a process that is gone");
    }

    #[test]
    fn groups_have_their_limits() {
        let budgets = budgets(&["/a", "/b"]);
        let all: Vec<_> = budgets.groups().map(|(id, limit, _)| (id.0, limit)).collect();
        let mib = |nth: u64| Limit::Bytes(nth << 20);
        assert_eq!(all, [(0, Limit::Capacity), (1, mib(1)), (2, mib(2))]);
    }

    #[test]
    fn a_group_that_is_not_there_is_refused() {
        let nowhere = CgroupBudget { cgroup: "/no/such/group".into(), fast: Limit::Capacity };
        let error = Budgets::new(&[nowhere], Limit::Capacity).unwrap_err().to_string();
        assert!(error.contains("/sys/fs/cgroup/no/such/group is no control group"), "{error}");
        assert!(!Budgets::new(&[], Limit::Capacity).unwrap().is_by_group());
    }
}
