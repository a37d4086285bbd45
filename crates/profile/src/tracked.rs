//! One live process in a recorder: its live objects, its dead ones, and their accesses. In: births,
//! deaths, accesses, times in nanoseconds. Out: its objects when it ends. Knows nothing of other
//! processes, names, or limits: the recorder decides when to merge.
//!
//! ```text
//!   live: first byte -> Live --dies--> dead: one by one   (its group has few)
//!                        |             group.cells         (its group is merged)
//!                        `--> groups: (site, size class, kind) -> sums over all of them
//! ```

use std::collections::{BTreeMap, HashMap};

use crate::ghosts::{Ghost, Ghosts, Place};
use crate::keep::settle;
use crate::located::Located;
use crate::profile::{Access, Object, size_class};
use tiercel_machine::number::index_u32;

/// Most groups of one process; further objects count towards the unknown site.
const GROUPS_MAX: usize = 1 << 16;

/// Most phase entries of one process that are kept.
pub const PHASES_ENTERED_MAX: usize = 4096;

/// Most extents of an object at its birth; one that grows gets more.
const EXTENTS: usize = 64;

/// Smallest extent, bytes; smaller objects are one extent.
const EXTENT_BYTES_MIN: u64 = 64 << 10;

/// Cells at the end of an object's list that are searched for the one to add to.
const CELLS_RECENT: usize = 2 * EXTENTS;

/// What objects of a process have in common when they are merged.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    site: u32,
    class: u32,
    is_block: bool,
    is_mapped: bool,
}

/// How the ledger describes a birth.
#[derive(Clone, Copy)]
pub(crate) struct Birth {
    /// A block of small objects.
    pub(crate) is_block: bool,
    /// Made by mmap, served by the kernel.
    pub(crate) is_mapped: bool,
    /// Most of its memory was never used before.
    pub(crate) is_fresh: bool,
}

/// Sums over all objects of a key, including live ones.
struct Group {
    key: Key,
    count: u64,
    freed: u64,
    bytes: u64,
    live_bytes: u64,
    peak_bytes: u64,
    born_bytes: u64,
    fresh_bytes: u64,
    first_birth_ns: u64,
    last_death_ns: u64,
    lifetime_ns: u64,
    /// Its dead objects are merged; otherwise each is in the list of the dead.
    is_merged: bool,
    /// How many objects are in that list.
    kept: u32,
    /// Accesses of the merged objects.
    cells: Vec<Access>,
}

/// A live object.
struct Live {
    bytes: u64,
    birth_bytes: u64,
    fresh_bytes: u64,
    peak_bytes: u64,
    birth_ns: u64,
    group: u32,
    /// 0: not divided.
    extent_bytes: u64,
    cells: Vec<Access>,
}

/// A dead object that is kept individually.
struct Dead {
    group: u32,
    object: Object,
    cells: Vec<Access>,
}

/// What a process leaves at its end. Sites are the process's own numbers, phases are indexes into
/// `phases`.
#[derive(Default)]
pub(crate) struct Left {
    pub(crate) objects: Vec<(Object, Vec<Access>)>,
    /// When each was entered, and its number; `None`: before the first.
    pub(crate) phases: Vec<(u64, Option<u64>)>,
    pub(crate) objects_merged: u64,
    pub(crate) located: Located,
}

/// One live process.
pub(crate) struct Tracked {
    /// Index of its process in the profile.
    pub(crate) index: u32,
    pub(crate) located: Located,
    start_ns: u64,
    last_ns: u64,
    slot_ns: u64,
    live: BTreeMap<u64, Live>,
    groups: Vec<Group>,
    known: HashMap<Key, u32>,
    dead: Vec<Dead>,
    /// The latest dead.
    ghosts: Ghosts,
    /// When the latest birth or death was.
    event_ns: u64,
    phases: Vec<(u64, Option<u64>)>,
    has_phases: bool,
    live_bytes: u64,
    peak_bytes: u64,
    cells: usize,
}

impl Tracked {
    pub(crate) fn new(index: u32, start_ns: u64, slot_ns: u64) -> Tracked {
        Tracked {
            index,
            located: Located::default(),
            start_ns,
            last_ns: start_ns,
            slot_ns,
            live: BTreeMap::new(),
            groups: Vec::new(),
            known: HashMap::new(),
            dead: Vec::new(),
            ghosts: Ghosts::default(),
            event_ns: 0,
            phases: Vec::new(),
            has_phases: true,
            live_bytes: 0,
            peak_bytes: 0,
            cells: 0,
        }
    }

    /// Whether the phases that it marks are kept.
    pub(crate) fn set_has_phases(&mut self, yes: bool) {
        self.has_phases = yes;
    }

    /// Peak of live bytes.
    pub(crate) fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }

    /// Dead objects that are kept individually.
    pub(crate) fn kept(&self) -> usize {
        self.dead.len()
    }

    /// Cells of accesses.
    pub(crate) fn cells(&self) -> usize {
        self.cells
    }

    /// When the last birth or death was.
    pub(crate) fn event_ns(&self) -> u64 {
        self.event_ns
    }

    /// When the last access was seen.
    pub(crate) fn last_ns(&self) -> u64 {
        self.last_ns
    }

    pub(crate) fn born(
        &mut self,
        addr: u64,
        bytes: u64,
        site: u32,
        Birth { is_block, is_mapped, is_fresh }: Birth,
        at_ns: u64,
    ) {
        let at_ns = self.after_the_last(at_ns);
        let fresh_bytes = if is_fresh { bytes } else { 0 };
        let group = self.group(Key { site, class: size_class(bytes), is_block, is_mapped }, at_ns);
        let sums = &mut self.groups[group as usize];
        sums.count += 1;
        sums.bytes = sums.bytes.max(bytes);
        sums.fresh_bytes = sums.fresh_bytes.saturating_add(fresh_bytes);
        sums.first_birth_ns = sums.first_birth_ns.min(at_ns);
        let extent_bytes = match (bytes / EXTENTS as u64).next_power_of_two() {
            _ if sums.is_merged || bytes <= EXTENT_BYTES_MIN => 0,
            piece => piece.max(EXTENT_BYTES_MIN),
        };
        let live = Live {
            bytes,
            birth_bytes: bytes,
            fresh_bytes,
            peak_bytes: bytes,
            birth_ns: at_ns,
            group,
            extent_bytes,
            cells: Vec::new(),
        };
        self.grow(group, bytes);
        self.live.insert(addr, live);
    }

    /// The range extends the object before it.
    pub(crate) fn grown(&mut self, addr: u64, bytes: u64) {
        let Some((at, live)) = self.live.range_mut(..addr).next_back() else { return };
        if at + live.bytes != addr {
            return;
        }
        live.bytes += bytes;
        live.peak_bytes = live.peak_bytes.max(live.bytes);
        let group = live.group;
        self.grow(group, bytes);
    }

    /// Nothing lives in the range any longer.
    pub(crate) fn gone(&mut self, addr: u64, bytes: u64, life: u64, at_ns: u64) {
        let at_ns = self.after_the_last(at_ns);
        let end = addr + bytes;
        while let Some((&at, live)) = self.live.range(..end).next_back() {
            let live_end = at + live.bytes;
            if live_end <= addr {
                return;
            }
            let live = self.live.remove(&at).expect("it was found above");
            let (from, to) = (at.max(addr), live_end.min(end));
            if at < from || to < live_end {
                let rest = if at < from { at } else { to };
                self.keep_ghost(life, at, &live, Place::Live(rest));
            }
            self.shrink(live.group, to - from);
            if to < live_end {
                // The part above the range becomes an object of its own, of the same age and site.
                self.part(live_end - to, to, &live);
            }
            if at < from {
                // The part below stays the object.
                self.live.insert(at, Live { bytes: from - at, ..live });
            } else if to == live_end {
                self.die(at, live, at_ns, Some(life));
            } else {
                self.continue_at(to, live);
            }
        }
    }

    /// Nothing is left of an object but the part above a hole, at `addr`, which continues it.
    fn continue_at(&mut self, addr: u64, object: Live) {
        self.groups[object.group as usize].count -= 1;
        let part = self.live.get_mut(&addr).expect("it was inserted before");
        part.birth_bytes = object.birth_bytes;
        part.peak_bytes = object.peak_bytes;
        part.cells = object.cells;
        part.cells.iter_mut().for_each(|cell| cell.extent = 0);
        part.extent_bytes = 0;
    }

    /// The process enters a phase; false if that is not kept.
    pub(crate) fn enter_phase(&mut self, number: u64, at_ns: u64) -> bool {
        if !self.has_phases {
            return false;
        }
        if self.phases.is_empty() {
            self.phases.push((self.start_ns, None));
        }
        let (last_ns, last) = self.phases.last_mut().expect("there is always one");
        if at_ns <= *last_ns {
            let is_first = last.is_none();
            *last = Some(number);
            return is_first;
        }
        if self.phases.len() >= PHASES_ENTERED_MAX {
            return false;
        }
        self.phases.push((at_ns, Some(number)));
        true
    }

    /// An access at a time, to what lives at its address or to a life that has ended; `access` has
    /// counts, everything else is found here. The site of what it belongs to; `None` when that is
    /// not known any more.
    pub(crate) fn accessed(
        &mut self,
        addr: u64,
        life: Option<u64>,
        (at_ns, slot_ns): (u64, u64),
        mut access: Access,
    ) -> Option<u32> {
        self.reslot(slot_ns);
        self.last_ns = self.last_ns.max(at_ns);
        access.slot = u32::try_from(at_ns / slot_ns).unwrap_or(u32::MAX);
        let entered = self.phases.partition_point(|(start_ns, _)| *start_ns <= at_ns);
        access.phase = index_u32(entered.saturating_sub(1));
        let (cells, extent, site) = match life {
            Some(life) => self.cells_of_ended(life, addr),
            None => self.cells_of_live(addr),
        }?;
        access.extent = u32::try_from(extent.unwrap_or(0)).unwrap_or(u32::MAX);
        let recent = cells.len().saturating_sub(CELLS_RECENT);
        match cells[recent..].iter_mut().rev().find(|cell| cell.key() == access.key()) {
            Some(cell) => cell.absorb(&access),
            None => {
                cells.push(access);
                self.cells += 1;
            }
        }
        Some(site)
    }

    /// Where accesses to what lives at an address are kept, the extent that it is in, and its site.
    fn cells_of_live(&mut self, addr: u64) -> Option<(&mut Vec<Access>, Option<u64>, u32)> {
        let found = self.live.range_mut(..=addr).next_back();
        let (at, live) = found.filter(|(at, live)| addr < *at + live.bytes)?;
        let group = &mut self.groups[live.group as usize];
        Some(match group.is_merged {
            true => (&mut group.cells, None, group.key.site),
            false => (&mut live.cells, (addr - at).checked_div(live.extent_bytes), group.key.site),
        })
    }

    /// The same of a life that has ended.
    fn cells_of_ended(
        &mut self,
        life: u64,
        addr: u64,
    ) -> Option<(&mut Vec<Access>, Option<u64>, u32)> {
        let Ghost { addr: first, group, extent_bytes, place, .. } = self.ghosts.find(life)?;
        let site = self.groups[group as usize].key.site;
        if self.groups[group as usize].is_merged {
            return Some((&mut self.groups[group as usize].cells, None, site));
        }
        let extent = addr.saturating_sub(first).checked_div(extent_bytes);
        match place {
            Place::Dead(dead) => Some((&mut self.dead.get_mut(dead as usize)?.cells, extent, site)),
            Place::Live(rest) => {
                let live = self.live.get_mut(&rest).filter(|live| live.group == group)?;
                let extent = if live.extent_bytes > 0 { extent } else { None };
                Some((&mut live.cells, extent, site))
            }
        }
    }

    /// Lives with lower numbers get no access any more.
    pub(crate) fn forget(&mut self, before: u64) {
        self.ghosts.forget(before);
    }

    fn keep_ghost(&mut self, life: u64, addr: u64, live: &Live, place: Place) {
        let Live { group, extent_bytes, .. } = *live;
        self.ghosts.keep(Ghost { life, addr, group, extent_bytes, place });
    }

    /// Births and deaths keep the order of their events, a nanosecond apart where they are of one
    /// time: who comes first is served first, and what died makes room for what is born.
    fn after_the_last(&mut self, at_ns: u64) -> u64 {
        self.event_ns = at_ns.max(self.event_ns.saturating_add(1));
        self.event_ns
    }

    /// Lengthens time slots to `slot_ns`, a multiple of their present length.
    pub(crate) fn reslot(&mut self, slot_ns: u64) {
        if slot_ns == self.slot_ns {
            return;
        }
        let by = u32::try_from(slot_ns / self.slot_ns).unwrap_or(u32::MAX);
        self.slot_ns = slot_ns;
        let live = self.live.values_mut().map(|live| &mut live.cells);
        let dead = self.dead.iter_mut().map(|dead| &mut dead.cells);
        let groups = self.groups.iter_mut().map(|group| &mut group.cells);
        let mut cells = 0;
        for list in live.chain(dead).chain(groups) {
            list.iter_mut().for_each(|cell| cell.slot /= by);
            settle(list);
            list.shrink_to_fit();
            cells += list.len();
        }
        self.cells = cells;
    }

    /// Merges the dead of the largest groups until half are left.
    pub(crate) fn merge_most(&mut self) {
        let mut by_size: Vec<(u32, u32)> =
            (0..).zip(&self.groups).map(|(at, group)| (group.kept, at)).collect();
        by_size.sort_unstable_by(|a, b| b.cmp(a));
        let mut left = self.dead.len() / 2;
        for (kept, at) in by_size {
            if left == 0 || kept == 0 {
                break;
            }
            self.groups[at as usize].is_merged = true;
            left = left.saturating_sub(kept as usize);
        }
        self.fold();
    }

    /// Merges the objects of each group.
    pub(crate) fn merge_all(&mut self) {
        self.groups.iter_mut().for_each(|group| group.is_merged = true);
        self.fold();
    }

    /// The process has ended: returns all its objects, by birth.
    pub(crate) fn end(mut self, now_ns: u64, slot_ns: u64) -> Left {
        self.reslot(slot_ns);
        for (at, live) in std::mem::take(&mut self.live) {
            self.shrink(live.group, live.bytes);
            self.die(at, live, now_ns, None);
        }
        let (phases, located) = (self.phases, self.located);
        let mut left = Left { phases, located, ..Left::default() };
        for Dead { object, cells, .. } in self.dead {
            left.objects.push((object, cells));
        }
        for group in self.groups.into_iter().filter(|group| group.is_merged && group.count > 0) {
            left.objects_merged += if group.count > 1 { group.count } else { 0 };
            left.objects.push(group.object());
        }
        left.objects.sort_by_key(|(object, _)| object.birth_ns);
        left
    }

    fn group(&mut self, mut key: Key, at_ns: u64) -> u32 {
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        if self.groups.len() >= GROUPS_MAX {
            key.site = 0;
            if let Some(known) = self.known.get(&key) {
                return *known;
            }
        }
        let at = index_u32(self.groups.len());
        self.known.insert(key, at);
        self.groups.push(Group {
            key,
            count: 0,
            freed: 0,
            bytes: 0,
            live_bytes: 0,
            peak_bytes: 0,
            born_bytes: 0,
            fresh_bytes: 0,
            first_birth_ns: at_ns,
            last_death_ns: at_ns,
            lifetime_ns: 0,
            is_merged: false,
            kept: 0,
            cells: Vec::new(),
        });
        at
    }

    fn grow(&mut self, group: u32, bytes: u64) {
        self.live_bytes += bytes;
        self.peak_bytes = self.peak_bytes.max(self.live_bytes);
        let sums = &mut self.groups[group as usize];
        sums.born_bytes = sums.born_bytes.saturating_add(bytes);
        sums.live_bytes += bytes;
        sums.peak_bytes = sums.peak_bytes.max(sums.live_bytes);
    }

    fn shrink(&mut self, group: u32, bytes: u64) {
        self.live_bytes -= bytes;
        self.groups[group as usize].live_bytes -= bytes;
    }

    /// Inserts the part of an object above a hole as an object of its own.
    fn part(&mut self, bytes: u64, addr: u64, of: &Live) {
        self.groups[of.group as usize].count += 1;
        let part = Live {
            bytes,
            birth_bytes: bytes,
            peak_bytes: bytes,
            extent_bytes: 0,
            cells: Vec::new(),
            ..*of
        };
        self.live.insert(addr, part);
    }

    /// An object has died. Its bytes have already been subtracted.
    fn die(&mut self, addr: u64, live: Live, at_ns: u64, life: Option<u64>) {
        let is_freed = life.is_some();
        if let Some(life) = life {
            self.keep_ghost(life, addr, &live, Place::Dead(index_u32(self.dead.len())));
        }
        let death_ns = at_ns.max(live.birth_ns + 1);
        let group = &mut self.groups[live.group as usize];
        group.freed += u64::from(is_freed);
        group.lifetime_ns = group.lifetime_ns.saturating_add(death_ns - live.birth_ns);
        group.last_death_ns = group.last_death_ns.max(death_ns);
        if group.is_merged {
            self.cells -= live.cells.len();
            self.cells += take_in(group, live.cells);
            return;
        }
        group.kept += 1;
        let object = Object {
            process: 0,
            site: group.key.site,
            count: 1,
            bytes: live.birth_bytes,
            peak_bytes: live.peak_bytes,
            born_bytes: live.peak_bytes,
            fresh_bytes: live.fresh_bytes,
            address: addr,
            birth_ns: live.birth_ns,
            death_ns,
            freed: u64::from(is_freed),
            lifetime_ns: death_ns - live.birth_ns,
            extent_bytes: live.extent_bytes,
            is_block: group.key.is_block,
            is_mapped: group.key.is_mapped,
        };
        self.dead.push(Dead { group: live.group, object, cells: live.cells });
    }

    /// Moves the accesses to objects of merged groups into the groups.
    fn fold(&mut self) {
        let groups = &mut self.groups;
        for live in self.live.values_mut() {
            let group = &mut groups[live.group as usize];
            if group.is_merged {
                live.extent_bytes = 0;
                take_in(group, std::mem::take(&mut live.cells));
            }
        }
        let mut kept = Vec::with_capacity(self.dead.len());
        self.dead.retain_mut(|dead| {
            let group = &mut groups[dead.group as usize];
            if group.is_merged {
                take_in(group, std::mem::take(&mut dead.cells));
            }
            kept.push(!group.is_merged);
            !group.is_merged
        });
        self.dead.shrink_to_fit();
        self.ghosts.renumber(&kept);
        for group in self.groups.iter_mut().filter(|group| group.is_merged) {
            group.kept = 0;
            settle(&mut group.cells);
        }
        let live = self.live.values().map(|live| live.cells.len());
        let dead = self.dead.iter().map(|dead| dead.cells.len());
        self.cells = live.chain(dead).chain(self.groups.iter().map(|g| g.cells.len())).sum();
    }
}

impl Group {
    /// All its objects, merged.
    fn object(mut self) -> (Object, Vec<Access>) {
        settle(&mut self.cells);
        let object = Object {
            process: 0,
            site: self.key.site,
            count: self.count,
            bytes: self.bytes,
            peak_bytes: self.peak_bytes.max(self.bytes),
            born_bytes: self.born_bytes.clamp(self.peak_bytes.max(self.bytes), i64::MAX as u64),
            fresh_bytes: self.fresh_bytes.min(self.born_bytes).min(i64::MAX as u64),
            address: 0,
            birth_ns: self.first_birth_ns,
            death_ns: self.last_death_ns.max(self.first_birth_ns + 1),
            freed: self.freed.min(self.count),
            lifetime_ns: self.lifetime_ns,
            extent_bytes: 0,
            is_block: self.key.is_block,
            is_mapped: self.key.is_mapped,
        };
        (object, self.cells)
    }
}

/// Adds the cells of an object to its group's; returns by how many these grow.
fn take_in(group: &mut Group, cells: Vec<Access>) -> usize {
    let before = group.cells.len();
    for cell in cells {
        let cell = Access { extent: 0, ..cell };
        let recent = group.cells.len().saturating_sub(CELLS_RECENT);
        match group.cells[recent..].iter_mut().rev().find(|known| known.key() == cell.key()) {
            Some(known) => known.absorb(&cell),
            None => group.cells.push(cell),
        }
    }
    group.cells.len() - before
}
