//! Budgets of control groups: whose memory counts to which, and what each is entitled to.
//! In: `[[budget]]` tables, processes, what groups hold. Out: groups with their limits and
//! entitlements. Knows nothing of OS pages.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tiercel_ledger::regions::GroupId;
use tiercel_machine::number::{index_u16, saturating_u64};
use tiercel_policy::Limit;

use super::error::AttachError;

/// Where control groups are mounted.
pub const CGROUPS: &str = "/sys/fs/cgroup";

/// Most budgets: the ledger distinguishes so many groups in a block, with the one of all others.
pub const BUDGETS_MAX: usize = 63;

/// Largest weight, as of control groups' CPU time (cgroups(7), cpu.weight).
pub const WEIGHT_MAX: f64 = 10_000.0;

/// What the processes of a control group may hold of the best tier, of what is tiered by OS page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CgroupBudget {
    /// Its directory, or its path below /sys/fs/cgroup. Groups below it belong to it, but for those
    /// with a budget of their own.
    pub cgroup: PathBuf,
    /// A size, a share of its memory, or all.
    pub fast: Limit,
    /// What no other group takes of it: a size, or a share of its memory. Not given: `fast`, or
    /// nothing if that is all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guarantee: Option<Limit>,
    /// Its share of what is not guaranteed to any group is its weight over those of all; 1 if not
    /// given.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub weight: f64,
}

/// Weight of a group that gives none, and of all processes without a budget.
fn one() -> f64 {
    1.0
}

fn is_one(weight: &f64) -> bool {
    *weight == one()
}

/// Bytes that a group holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    /// Of the best tier.
    pub fast: u64,
    /// Of all tiers.
    pub all: u64,
}

impl Held {
    /// What a limit comes to; `None`: there is none.
    pub fn limit(self, limit: Limit) -> Option<u64> {
        match limit {
            Limit::Capacity => None,
            Limit::Bytes(bytes) => Some(bytes),
            Limit::ShareOfPeak(share) => Some(saturating_u64(self.all as f64 * share)),
        }
    }
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
    /// Of groups 1, 2, and so on, with their directories.
    named: Vec<CgroupBudget>,
    /// Of group 0, which has all other processes.
    rest: Limit,
}

impl Budgets {
    /// # Errors
    /// [`AttachError::NoCgroup`].
    pub fn new(budgets: &[CgroupBudget], rest: Limit) -> Result<Budgets, AttachError> {
        let at =
            |one: &CgroupBudget| CgroupBudget { cgroup: directory(&one.cgroup), ..one.clone() };
        let budgets = Budgets { named: budgets.iter().map(at).collect(), rest };
        let is_missing = |path: &&PathBuf| !path.join("cgroup.procs").exists();
        match budgets.named.iter().map(|one| &one.cgroup).find(is_missing) {
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
        let above = self.named.iter().enumerate().filter(|(_, one)| own.starts_with(&one.cgroup));
        let nearest = above.max_by_key(|(_, one)| one.cgroup.components().count());
        GroupId(nearest.map_or(0, |(nth, _)| index_u16(nth + 1)))
    }

    /// All groups with their limits, and with their directories.
    pub fn groups(&self) -> impl Iterator<Item = (GroupId, Limit, Option<&Path>)> {
        let named = self.named.iter().zip(1..);
        let named = named.map(|(one, nth)| (GroupId(nth), one.fast, Some(one.cgroup.as_path())));
        std::iter::once((GroupId(0), self.rest, None)).chain(named)
    }

    /// What each group that holds anything is entitled to of the best tier: what is guaranteed to
    /// it, and by weight a part of what is guaranteed to none; at most its limit.
    pub fn entitled(&self, held: &BTreeMap<GroupId, Held>, fast_bytes: u64) -> Vec<(GroupId, u64)> {
        let rest = [(GroupId(0), self.rest, None, one())];
        let named = self.named.iter().zip(1..);
        let named = named.map(|(of, nth)| (GroupId(nth), of.fast, of.guarantee, of.weight));
        let present =
            rest.into_iter().chain(named).filter_map(|(group, fast, guarantee, weight)| {
                let held = held.get(&group).filter(|held| held.all > 0)?;
                let limit = held.limit(fast);
                let guarantee = guarantee.map_or(limit, |one| held.limit(one)).unwrap_or(0);
                Some((group, limit.unwrap_or(u64::MAX), guarantee, weight))
            });
        let present: Vec<_> = present.collect();
        let guaranteed = present.iter().fold(0u64, |sum, of| sum.saturating_add(of.2));
        let spare = fast_bytes.saturating_sub(guaranteed) as f64;
        let weights: f64 = present.iter().map(|of| of.3).sum();
        let share =
            |weight| if weights > 0.0 { saturating_u64(spare * weight / weights) } else { 0 };
        let entitled = |(group, limit, guarantee, weight): (GroupId, u64, u64, f64)| {
            (group, guarantee.saturating_add(share(weight)).min(limit))
        };
        present.into_iter().map(entitled).collect()
    }

    /// Whether any control group has a budget.
    pub fn is_by_group(&self) -> bool {
        !self.named.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(cgroup: &str, fast: Limit) -> CgroupBudget {
        CgroupBudget { cgroup: directory(Path::new(cgroup)), fast, guarantee: None, weight: 1.0 }
    }

    fn budgets(cgroups: &[&str]) -> Budgets {
        let named =
            cgroups.iter().zip(1..).map(|(cgroup, nth)| budget(cgroup, Limit::Bytes(nth << 20)));
        Budgets { named: named.collect(), rest: Limit::Capacity }
    }

    #[test]
    fn what_is_not_guaranteed_is_shared_by_weight() {
        let entitled = |named: &[(Limit, Option<Limit>, f64)], fast_mib: u64| -> Vec<u64> {
            let of = |(fast, guarantee, weight): &(Limit, Option<Limit>, f64)| CgroupBudget {
                guarantee: *guarantee,
                weight: *weight,
                ..budget("/any", *fast)
            };
            let budgets = Budgets { named: named.iter().map(of).collect(), rest: Limit::Capacity };
            let holds = (1..=index_u16(named.len()))
                .map(|nth| (GroupId(nth), Held { fast: 0, all: 100 << 20 }));
            let entitled = budgets.entitled(&holds.collect(), fast_mib << 20);
            entitled.into_iter().map(|(_, bytes)| bytes >> 20).collect()
        };
        let (all, mib) = (Limit::Capacity, |mib: u64| Limit::Bytes(mib << 20));
        assert_eq!(entitled(&[(all, None, 1.0), (all, None, 3.0)], 80), [20, 60]);
        assert_eq!(entitled(&[(all, Some(mib(40)), 1.0), (all, None, 1.0)], 80), [60, 20]);
        let share = Some(Limit::ShareOfPeak(0.3));
        assert_eq!(entitled(&[(all, share, 0.0), (all, None, 1.0)], 80), [30, 50]);
        assert_eq!(entitled(&[(mib(40), None, 1.0), (all, None, 1.0)], 80), [40, 20], "a limit");
        assert_eq!(entitled(&[(mib(99), None, 1.0), (all, Some(mib(9)), 1.0)], 80), [99, 9]);
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
        let nowhere = budget("/no/such/group", Limit::Capacity);
        let error = Budgets::new(&[nowhere], Limit::Capacity).unwrap_err().to_string();
        assert!(error.contains("/sys/fs/cgroup/no/such/group is no control group"), "{error}");
        assert!(!Budgets::new(&[], Limit::Capacity).unwrap().is_by_group());
    }
}
