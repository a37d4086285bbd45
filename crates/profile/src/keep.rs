//! Keeps a profile within a size: merges similar parts and drops nothing. In: a [`Profile`], a
//! limit. Out: the same profile, coarser, with a [`crate::Coarsening`] that says how. Knows nothing
//! of files; the size is before compression, which no file exceeds.
//!
//! Steps, cheapest first, each only as far as needed: time slots double until [`SLOTS_FEW`] are
//! left; objects of a process, site and size class become one, the largest such groups first;
//! extents of an object double until one is left; processes of a run and program become one; slots
//! continue to double; at last sites, size classes, processes and phases are merged.

use std::collections::{BTreeMap, HashSet};

use crate::profile::{Access, AccessSite, Frame, Object, Process, Profile, Site, size_class};
use crate::tables::{self, FrameRow, SiteRow, ThreadRow, row_bytes};
use tiercel_machine::number::index_u32;

/// Default size limit of profiles, bytes before compression: such a profile opens in a few seconds.
pub const LIMIT_BYTES: u64 = 128 << 20;

/// Smallest limit: it holds a profile with one object per process, phase and kind.
pub const LIMIT_BYTES_MIN: u64 = 1 << 20;

/// Time slots that are kept while anything else can be merged.
const SLOTS_FEW: u32 = 64;

impl Profile {
    /// Its size before compression, bytes. Each text counts once.
    pub fn bytes(&self) -> u64 {
        let sites: usize = self.sites.iter().map(site_bytes).sum();
        self.rows_bytes() + (sites + self.texts_bytes()) as u64
    }

    /// The same without sites and texts, in constant time.
    pub(crate) fn rows_bytes(&self) -> u64 {
        let threads: usize = self.processes.iter().map(|process| process.threads.len()).sum();
        let rows = self.objects.len() * row_bytes::<Object>()
            + self.accesses.len() * row_bytes::<Access>()
            + self.access_sites.len() * row_bytes::<AccessSite>()
            + self.phases.len() * row_bytes::<crate::Phase>()
            + self.processes.len() * row_bytes::<Process>()
            + threads * row_bytes::<ThreadRow>();
        rows as u64
    }

    fn texts_bytes(&self) -> usize {
        let texts = self.sites.iter().flat_map(|site| &site.frames).flat_map(texts_of);
        let texts = texts.chain(self.phases.iter().map(|phase| &*phase.name));
        let texts = texts.chain(self.processes.iter().map(|process| &*process.program));
        let different: HashSet<&str> = texts.collect();
        different.iter().map(|text| text.len()).sum()
    }

    /// Merges similar parts until the profile has at most `limit` bytes; limits below
    /// [`LIMIT_BYTES_MIN`] are raised to it.
    pub fn keep(&mut self, limit: u64) {
        let limit = limit.max(LIMIT_BYTES_MIN);
        self.keep_apart(limit);
        if !self.is_within(limit) {
            self.merge_processes();
        }
        while !self.is_within(limit) && self.slots() > 1 {
            self.double_slots();
        }
        if !self.is_within(limit) {
            self.merge_sites();
        }
        if !self.is_within(limit) {
            self.merge_all_processes();
        }
    }

    /// Does so as far as possible without merging processes or sites.
    pub(crate) fn keep_apart(&mut self, limit: u64) {
        let is_fine = |profile: &Profile| profile.is_within(limit);
        while !is_fine(self) && self.slots() > SLOTS_FEW {
            self.double_slots();
        }
        let mut rows_min = usize::MAX;
        while !is_fine(self) && rows_min > 2 {
            rows_min = self.largest_group().min(rows_min / 2).max(2);
            self.merge_groups(rows_min);
        }
        while !is_fine(self) && self.double_extents() {}
    }

    fn is_within(&self, limit: u64) -> bool {
        self.bytes() <= limit && self.is_readable()
    }

    /// Doubles time slots until their length is `slot_ns`.
    pub(crate) fn lengthen_slots(&mut self, slot_ns: u64) {
        while self.slot_ns < slot_ns {
            self.double_slots();
        }
    }

    /// One more than the last time slot with an access.
    fn slots(&self) -> u32 {
        self.accesses.iter().map(|access| access.slot.saturating_add(1)).max().unwrap_or(0)
    }

    /// Whether no table has more rows than a reader accepts.
    fn is_readable(&self) -> bool {
        self.objects.len() <= tables::OBJECTS_MAX
            && self.accesses.len() <= tables::ACCESSES_MAX
            && self.access_sites.len() <= tables::ACCESS_SITES_MAX
            && self.processes.len() <= tables::PROCESSES_MAX
            && self.sites.len() <= tables::SITES_MAX
            && self.phases.len() <= tables::PHASES_MAX
    }

    fn double_slots(&mut self) {
        self.slot_ns *= 2;
        self.coarsening.slots_doubled += 1;
        self.accesses.iter_mut().for_each(|access| access.slot /= 2);
        self.settle();
    }

    /// Rows of the most numerous group.
    fn largest_group(&self) -> usize {
        let mut sizes: BTreeMap<_, usize> = BTreeMap::new();
        self.objects.iter().for_each(|object| *sizes.entry(group(object)).or_default() += 1);
        sizes.into_values().max().unwrap_or(0)
    }

    /// Merges each group with at least this many rows into one object.
    fn merge_groups(&mut self, rows_min: usize) {
        let mut sizes: BTreeMap<_, usize> = BTreeMap::new();
        self.objects.iter().for_each(|object| *sizes.entry(group(object)).or_default() += 1);
        self.merge_objects(|object| (sizes[&group(object)] >= rows_min).then(|| group(object)));
    }

    /// Merges objects with the same key into one; those with `None` stay separate.
    pub(crate) fn merge_objects<K: Ord>(&mut self, key: impl Fn(&Object) -> Option<K>) {
        let mut members: BTreeMap<K, Vec<u32>> = BTreeMap::new();
        let mut groups: Vec<Vec<u32>> = Vec::new();
        for (index, object) in (0..).zip(&self.objects) {
            match key(object) {
                Some(key) => members.entry(key).or_default().push(index),
                None => groups.push(vec![index]),
            }
        }
        groups.extend(members.into_values());
        let mut merged: Vec<(Object, Vec<u32>)> = Vec::with_capacity(groups.len());
        for group in groups {
            let one = merge(group.iter().map(|index| &self.objects[*index as usize]));
            let members = group.iter().map(|index| &self.objects[*index as usize]);
            self.coarsening.objects_merged +=
                members.filter(|object| group.len() > 1 && object.count == 1).count() as u64;
            merged.push((one, group));
        }
        merged.sort_by_key(|(one, group)| (one.process, one.birth_ns, group[0]));
        let mut now_at = vec![0u32; self.objects.len()];
        let mut is_one = vec![false; self.objects.len()];
        for (index, (_, group)) in (0..).zip(&merged) {
            for member in group {
                now_at[*member as usize] = index;
                is_one[*member as usize] = group.len() > 1;
            }
        }
        for access in &mut self.accesses {
            access.extent = if is_one[access.object as usize] { 0 } else { access.extent };
            access.object = now_at[access.object as usize];
        }
        self.objects = merged.into_iter().map(|(one, _)| one).collect();
        self.settle();
    }

    /// Makes one extent of two neighbours, in all objects that have several. False: none has.
    fn double_extents(&mut self) -> bool {
        let mut has_several = false;
        for object in self.objects.iter_mut().filter(|object| object.extent_bytes > 0) {
            has_several = true;
            let extent_bytes = object.extent_bytes.saturating_mul(2);
            let is_last = extent_bytes >= object.peak_bytes.max(object.bytes);
            object.extent_bytes = if is_last { 0 } else { extent_bytes };
            self.coarsening.extents_merged += u64::from(is_last);
        }
        for access in &mut self.accesses {
            let is_one = self.objects[access.object as usize].extent_bytes == 0;
            access.extent = if is_one { 0 } else { access.extent / 2 };
        }
        self.settle();
        has_several
    }

    /// Merges the processes of a run and program that marked no phases into one.
    fn merge_processes(&mut self) {
        let marked: HashSet<u32> = self.phases.iter().filter_map(|phase| phase.process).collect();
        self.merge_processes_by(|index, process| {
            let program = (!marked.contains(&index)).then(|| process.program.to_string());
            (program, if marked.contains(&index) { index } else { 0 })
        });
        self.merge_groups(2);
    }

    fn merge_processes_by<K: Ord>(&mut self, key: impl Fn(u32, &Process) -> K) {
        let mut first_of: BTreeMap<(u32, K), u32> = BTreeMap::new();
        let mut kept: Vec<Process> = Vec::new();
        let mut now_at = Vec::with_capacity(self.processes.len());
        for (index, process) in (0..).zip(std::mem::take(&mut self.processes)) {
            let next = index_u32(kept.len());
            let at = *first_of.entry((process.run, key(index, &process))).or_insert(next);
            now_at.push(at);
            if at == next {
                let parent = process.parent.map(|parent| now_at[parent as usize]);
                kept.push(Process { parent, ..process });
            } else {
                self.coarsening.processes_merged += 1;
                kept[at as usize].absorb(&process);
            }
        }
        self.processes = kept;
        for object in &mut self.objects {
            object.process = now_at[object.process as usize];
        }
        for phase in &mut self.phases {
            phase.process = phase.process.map(|process| now_at[process as usize]);
        }
        // Restores the order: objects of a process together.
        self.merge_objects(|_| None::<()>);
    }

    /// All sites become the unknown site, and all sizes one class.
    fn merge_sites(&mut self) {
        self.coarsening.sites_merged +=
            self.sites.iter().filter(|site| !site.is_unknown()).count() as u64;
        self.sites = vec![Site::default()];
        self.objects.iter_mut().for_each(|object| object.site = 0);
        self.access_sites.iter_mut().for_each(|one| (one.code, one.site) = (0, 0));
        self.settle_access_sites();
        self.merge_objects(|object| Some((object.process, object.is_block, object.is_mapped)));
    }

    /// Each run becomes one process in one phase.
    fn merge_all_processes(&mut self) {
        let mut phases: Vec<crate::Phase> = Vec::new();
        for phase in std::mem::take(&mut self.phases) {
            match phases.last_mut() {
                Some(last) if last.run == phase.run => {
                    last.start_ns = last.start_ns.min(phase.start_ns);
                    last.end_ns = last.end_ns.max(phase.end_ns);
                }
                _ => phases.push(crate::Phase { process: None, ..phase }),
            }
        }
        self.phases = phases;
        for access in &mut self.accesses {
            let run = self.processes[self.objects[access.object as usize].process as usize].run;
            let of_run = self.phases.iter().position(|phase| phase.run == run);
            access.phase = index_u32(of_run.expect("accesses have a phase of their run"));
        }
        self.settle();
        self.merge_processes_by(|_, _| ());
        self.merge_objects(|object| Some((object.process, object.is_block, object.is_mapped)));
    }

    /// Puts accesses by code in order, those of one key together.
    pub(crate) fn settle_access_sites(&mut self) {
        self.access_sites.sort_by(|a, b| a.key().cmp(&b.key()));
        self.access_sites.dedup_by(|later, kept| {
            let is_same = later.key() == kept.key();
            if is_same {
                kept.reads = kept.reads.saturating_add(later.reads);
                kept.writes = kept.writes.saturating_add(later.writes);
            }
            is_same
        });
    }

    /// Puts accesses in order, those of one key together.
    pub(crate) fn settle(&mut self) {
        let mut accesses = std::mem::take(&mut self.accesses);
        settle(&mut accesses);
        self.accesses = accesses;
    }
}

/// Puts accesses in order, those of one key together.
pub(crate) fn settle(accesses: &mut Vec<Access>) {
    if !accesses.is_sorted_by_key(Access::key) {
        accesses.sort_by_key(Access::key);
    }
    accesses.dedup_by(|later, kept| {
        let is_same = later.key() == kept.key();
        if is_same {
            kept.absorb(later);
        }
        is_same
    });
}

impl Process {
    /// Merges another process of its run. They may have lived at the same time, so peaks are added.
    pub(crate) fn absorb(&mut self, other: &Process) {
        self.start_ns = self.start_ns.min(other.start_ns);
        self.end_ns = self.end_ns.max(other.end_ns);
        self.peak_bytes = self.peak_bytes.saturating_add(other.peak_bytes);
        let room = crate::check::THREAD_BITS - self.threads.len();
        self.threads.extend(other.threads.iter().take(room));
    }
}

/// What objects that may be merged have in common.
fn group(object: &Object) -> (u32, u32, u32, bool, bool) {
    let Object { process, site, is_block, is_mapped, .. } = *object;
    (process, site, size_class(object.bytes), is_block, is_mapped)
}

/// One object that represents several of a process.
fn merge<'a>(members: impl Iterator<Item = &'a Object> + Clone) -> Object {
    let mut all = members.clone();
    let mut one = all.next().expect("a group has members").clone();
    let is_alone = members.clone().nth(1).is_none();
    if is_alone {
        return one;
    }
    for object in all {
        one.count = one.count.saturating_add(object.count);
        one.bytes = one.bytes.max(object.bytes);
        one.born_bytes = one.born_bytes.saturating_add(object.born_bytes);
        one.fresh_bytes = one.fresh_bytes.saturating_add(object.fresh_bytes);
        one.birth_ns = one.birth_ns.min(object.birth_ns);
        one.death_ns = one.death_ns.max(object.death_ns);
        one.freed = one.freed.saturating_add(object.freed);
        one.lifetime_ns = one.lifetime_ns.saturating_add(object.lifetime_ns);
    }
    one.born_bytes = one.born_bytes.min(i64::MAX as u64);
    one.fresh_bytes = one.fresh_bytes.min(one.born_bytes);
    one.peak_bytes = peak_bytes(members).max(one.bytes).min(one.born_bytes);
    (one.address, one.extent_bytes) = (0, 0);
    one
}

/// Peak of live bytes; an upper bound if objects are merged already.
pub(crate) fn peak_bytes<'a>(members: impl Iterator<Item = &'a Object>) -> u64 {
    let mut changes: Vec<(u64, i128)> = Vec::new();
    for object in members {
        changes.push((object.birth_ns, i128::from(object.peak_bytes)));
        changes.push((object.death_ns, -i128::from(object.peak_bytes)));
    }
    // At the same instant, deaths come first.
    changes.sort_unstable();
    let (mut now, mut most) = (0, 0);
    for (_, change) in changes {
        now += change;
        most = most.max(now);
    }
    u64::try_from(most).unwrap_or(u64::MAX)
}

fn site_bytes(site: &Site) -> usize {
    let names: usize = site.frames.iter().map(|frame| frame.names.len().max(1)).sum();
    // The texts of a name are counted elsewhere; its line number is not.
    row_bytes::<SiteRow>() + names * row_bytes::<FrameRow>()
}

fn texts_of(frame: &Frame) -> impl Iterator<Item = &str> {
    let names = frame.names.iter().flat_map(|name| [&*name.function, &*name.file]);
    [&*frame.module, &*frame.build_id].into_iter().chain(names)
}
