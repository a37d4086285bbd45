//! What the processes of a group have together: those of one user, where there are several.
//! In: extents, sites and early deaths that come and go. Out: whether there is room for more.
//! Knows nothing of what they are.

use crate::config::{Bounds, Config};

/// Place of a group in [`Groups`].
pub(crate) type GroupSlot = usize;

/// Sums over the processes of one group, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    extents: u64,
    sites: u64,
    early: u64,
}

struct Group {
    id: u32,
    processes: usize,
    sums: Sums,
}

/// All groups. A process that was not given one is in group 0.
#[derive(Default)]
pub(crate) struct Groups {
    /// A free place is `None`.
    groups: Vec<Option<Group>>,
    all: Sums,
}

impl Groups {
    /// One more process is in group `id`.
    pub(crate) fn joined(&mut self, id: u32) -> GroupSlot {
        let is_it = |group: &Option<Group>| group.as_ref().is_some_and(|group| group.id == id);
        let slot = self.groups.iter().position(is_it);
        let slot = slot.or_else(|| self.groups.iter().position(Option::is_none));
        let slot = slot.unwrap_or_else(|| {
            self.groups.push(None);
            self.groups.len() - 1
        });
        let group = Group { id, processes: 0, sums: Sums::default() };
        self.groups[slot].get_or_insert(group).processes += 1;
        slot
    }

    /// A process is in it no longer; it had given back all that it had.
    pub(crate) fn left(&mut self, slot: GroupSlot) {
        let group = self.group(slot);
        group.processes -= 1;
        if group.processes == 0 {
            debug_assert_eq!(group.sums, Sums::default());
            self.groups[slot] = None;
        }
    }

    pub(crate) fn has_room(&self, slot: GroupSlot, extents: u64, config: &Config) -> bool {
        let sums = self.sums(slot);
        sums.extents + extents <= u64::from(config.of_group.extents)
            && self.all.extents + extents <= u64::from(config.extents_max)
    }

    pub(crate) fn add_extent(&mut self, slot: GroupSlot) {
        self.all.extents += 1;
        self.group(slot).sums.extents += 1;
    }

    pub(crate) fn remove_extent(&mut self, slot: GroupSlot) {
        self.all.extents -= 1;
        self.group(slot).sums.extents -= 1;
    }

    /// Adds sites if there is room for them.
    pub(crate) fn add_sites(&mut self, slot: GroupSlot, more: usize, config: &Config) -> bool {
        self.add(slot, more as u64, config, |bounds| bounds.sites, |sums| &mut sums.sites)
    }

    /// Adds an early death if there is room for it.
    pub(crate) fn add_early(&mut self, slot: GroupSlot, config: &Config) -> bool {
        self.add(slot, 1, config, |bounds| bounds.early, |sums| &mut sums.early)
    }

    fn add(
        &mut self,
        slot: GroupSlot,
        more: u64,
        config: &Config,
        bound: fn(&Bounds) -> u32,
        sum: fn(&mut Sums) -> &mut u64,
    ) -> bool {
        let of_group = *sum(&mut self.group(slot).sums) + more;
        let of_all = *sum(&mut self.all) + more;
        let fits = of_group <= u64::from(bound(&config.of_group))
            && of_all <= u64::from(bound(&config.of_all));
        if fits {
            *sum(&mut self.group(slot).sums) = of_group;
            *sum(&mut self.all) = of_all;
        }
        fits
    }

    /// Sites and early deaths that a process has no longer.
    pub(crate) fn give_back(&mut self, slot: GroupSlot, sites: usize, early: usize) {
        let Groups { all, .. } = self;
        all.sites -= sites as u64;
        all.early -= early as u64;
        let sums = &mut self.group(slot).sums;
        sums.sites -= sites as u64;
        sums.early -= early as u64;
    }

    fn sums(&self, slot: GroupSlot) -> &Sums {
        &self.groups[slot].as_ref().expect("processes name live groups").sums
    }

    fn group(&mut self, slot: GroupSlot) -> &mut Group {
        self.groups[slot].as_mut().expect("processes name live groups")
    }
}
