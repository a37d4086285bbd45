//! A plan's rows, compiled for this machine: which row holds for an object.
//! In: a [`Plan`], the machine, the builds at hand. Out: rows by site, size and phase, and rows in
//! sessions. Knows nothing of when anything moves.

use super::choice::PlanChoice;
use crate::summary::PlanSummary;
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tiercel_machine::{Machine, NodeId};
use tiercel_plan::{Fit, Plan, PlannedSite, StackKeys, fit};
use tiercel_symbolize::{SiteFrame, hex};
use tiercel_wire::layout::{PLAN_CLASS_ANY, PLAN_RANGES, PLAN_SHARE_ALL};
use tiercel_wire::{PlanError, PlanRange, PlanRow, Session};

/// Row of no site: a plan without rows is a plan nevertheless.
const SENTINEL_ROW: PlanRow = PlanRow {
    site: u64::MAX,
    size_class: PLAN_CLASS_ANY,
    phase: u64::MAX,
    arena: 0,
    other: 0,
    share: PLAN_SHARE_ALL,
    ranges: [PlanRange { from: 0, to: 0 }; PLAN_RANGES],
};

/// Unmatched sites that are listed: one screen.
const UNMATCHED_MAX: usize = 16;

/// The rows of a plan.
pub(crate) struct PlanRows {
    plan: Arc<Plan>,
    fit: Fit,
    /// Rows as clients have them, by key.
    rows: HashMap<(u64, u8, u64), PlanRow>,
    /// Sites under the hashes they have in this build: the plan's, and those found by name.
    hashes: HashMap<u64, usize>,
    by_name: HashSet<u64>,
    /// Without rows births are as without a plan.
    is_prior: bool,
}

impl PlanRows {
    pub(crate) fn new(choice: &PlanChoice, machine: &Machine, arenas: &[NodeId]) -> PlanRows {
        let plan = Arc::clone(&choice.plan);
        let fit = fit(&plan, machine, arenas);
        let hashes = plan.sites.iter().enumerate().map(|(index, site)| (site.hash, index));
        let mut rows = PlanRows {
            rows: HashMap::new(),
            hashes: hashes.collect(),
            by_name: HashSet::new(),
            is_prior: choice.is_prior(),
            fit,
            plan,
        };
        rows.index();
        rows
    }

    fn index(&mut self) {
        // Of equal keys the first row holds.
        let rows = self.fit.rows.iter().rev();
        self.rows = rows.map(|row| ((row.site, row.size_class, row.phase), *row)).collect();
    }

    /// From now on it places nothing and moves nothing. What was matched stays counted.
    pub(crate) fn abandon(&mut self, why: String) {
        self.rows.clear();
        let mut remarks = std::mem::take(&mut self.fit.remarks);
        remarks.push(why);
        self.fit = Fit::default();
        self.fit.remarks = remarks;
    }

    /// True when it has rows for a site.
    pub(crate) fn has_site(&self, site: u64) -> bool {
        self.hashes.contains_key(&site)
    }

    /// The row that holds for an object, found in the runtime's order.
    pub(crate) fn find(&self, site: u64, size_class: u8, phase: u64) -> Option<&PlanRow> {
        let keys =
            [(size_class, phase), (size_class, 0), (PLAN_CLASS_ANY, phase), (PLAN_CLASS_ANY, 0)];
        keys.iter().find_map(|(class, phase)| self.rows.get(&(site, *class, *phase)))
    }

    /// The phase that is predicted to follow one.
    pub(crate) fn next_phase(&self, phase: u64) -> Option<u64> {
        self.fit.next.get(&phase).copied()
    }

    /// Whether the objects of a site and size may move during a phase for the next one.
    pub(crate) fn is_early(&self, site: u64, size_class: u8, phase: u64) -> bool {
        let name = self.fit.phases.get(&phase);
        let site = self.hashes.get(&site).and_then(|index| self.plan.sites.get(*index));
        let (Some(name), Some(site)) = (name, site) else { return false };
        let mut classes = site.classes.iter().filter(|class| class.size_class() == size_class);
        classes.any(|class| class.prefetch.contains(name))
    }

    /// Hashes of the phases at whose entry programs wait for moves.
    pub(crate) fn stops(&self) -> &[u64] {
        &self.fit.stops
    }

    /// Arena of blocks of small allocations; `None`: the plan leaves it to the budget.
    pub(crate) fn small_arena(&self) -> Option<u8> {
        self.fit.small.or(self.fit.unplanned)
    }

    /// Writes the rows into a session. `nurseries`: rows of sites that keep room for their births,
    /// whatever the plan says of these.
    pub(crate) fn publish(
        &self,
        session: &mut Session,
        nurseries: &[PlanRow],
    ) -> Result<(), PlanError> {
        let is_nursery = |row: &&PlanRow| nurseries.iter().any(|nursery| nursery.site == row.site);
        let mut rows: Vec<PlanRow> =
            self.fit.rows.iter().filter(|row| !is_nursery(row)).copied().collect();
        rows.extend(nurseries);
        rows.extend((!self.is_prior).then_some(SENTINEL_ROW));
        session.set_plan(&rows, self.fit.unplanned)
    }

    /// True when a stack without rows may be a site of the plan: it runs through a module of the
    /// plan that was rebuilt.
    pub(crate) fn may_match(&self, site: u64, frames: &[SiteFrame]) -> bool {
        !self.has_site(site) && frames.iter().any(|frame| self.is_rebuilt(frame))
    }

    fn is_rebuilt(&self, frame: &SiteFrame) -> bool {
        let name = frame.path.file_name().unwrap_or_default().to_string_lossy();
        let builds = self.fit.builds_of(&name);
        builds.is_some_and(|builds| !builds.contains(&hex::text(&frame.build_id)))
    }

    /// Adds the rows of the site that has this stack in the plan's build, under the hash that it
    /// has in this one. False when the plan has no such stack.
    pub(crate) fn rematch(&mut self, hash: u64, keys: &StackKeys) -> bool {
        let Some(index) = self.fit.site_of(&self.plan, keys) else { return false };
        let Some(site) = self.plan.sites.get(index) else { return false };
        let rows: Vec<PlanRow> = self.fit.rows_of(site, hash).collect();
        self.fit.rows.extend(rows);
        self.hashes.insert(hash, index);
        self.by_name.insert(hash);
        self.index();
        true
    }

    /// Which sites of the plan were matched. `seen`: bytes born, by hash of the site.
    pub(crate) fn summary(&self, seen: &HashMap<u64, u64>) -> PlanSummary {
        let mut matched: HashMap<usize, bool> = HashMap::new();
        let (mut planned_bytes, mut unplanned_bytes) = (0, 0);
        for (hash, bytes) in seen {
            match self.hashes.get(hash) {
                Some(site) => {
                    *matched.entry(*site).or_insert(true) &= self.by_name.contains(hash);
                    planned_bytes += bytes;
                }
                None => unplanned_bytes += bytes,
            }
        }
        PlanSummary {
            sites: self.plan.sites.len() as u64,
            matched: matched.len() as u64,
            by_name: matched.values().filter(|by_name| **by_name).count() as u64,
            unmatched: self.unmatched(&matched),
            planned_bytes,
            unplanned_bytes,
            remarks: self.fit.remarks.clone(),
            ..PlanSummary::default()
        }
    }

    /// Sites at which no program allocated, those with most bytes first.
    fn unmatched(&self, matched: &HashMap<usize, bool>) -> Vec<String> {
        let bytes =
            |site: &PlannedSite| site.classes.iter().map(|class| class.peak_bytes).sum::<u64>();
        let sites = self.plan.sites.iter().enumerate();
        let missed = sites.filter(|(index, _)| !matched.contains_key(index));
        let mut missed: Vec<&PlannedSite> = missed.map(|(_, site)| site).collect();
        missed.sort_by_key(|site| Reverse(bytes(site)));
        missed.iter().take(UNMATCHED_MAX).map(|site| site.label.clone()).collect()
    }
}
