//! Which objects may move ahead of a phase: during the phase before, if that does not access them.
//! In: places of classes by phase, when objects live. Out: phases by class. Knows nothing of files.
//!
//! A phase is predictable when the phase before it was always followed by it. Objects that no
//! access hits in the phase before are demoted at once, which makes room; others are promoted as
//! long as the fastest memory has room at every entry of that phase: those with most gain per byte
//! first.

use std::collections::BTreeMap;

use tiercel_planner::Workload;

use crate::votes::{Class, Names};

/// A class of objects: site and size class.
type Key = (u32, u32);

/// A workload with the class of each object (`None`: no class of its own).
pub(crate) struct Prefetch<'a> {
    pub workload: &'a Workload,
    pub names: &'a Names<'a>,
    pub classes: &'a BTreeMap<Key, Class>,
    pub class_of: Vec<Option<Key>>,
    /// Objects of each class.
    pub members: BTreeMap<Key, Vec<usize>>,
    /// Bytes of the fastest memory, and the index of the slowest one.
    pub fast_bytes: u64,
    pub slowest: usize,
}

/// For each phase by name, the one that always follows it.
pub(crate) fn followers(names: &Names<'_>) -> Vec<Option<usize>> {
    let mut found: Vec<Option<Option<usize>>> = vec![None; names.names.len()];
    for two in names.of_phase.windows(2) {
        let seen = &mut found[two[0]];
        *seen = match *seen {
            None => Some(Some(two[1])),
            Some(known) => Some(known.filter(|known| *known == two[1])),
        };
    }
    let other = |(name, next): (usize, Option<Option<usize>>)| next?.filter(|next| *next != name);
    found.into_iter().enumerate().map(other).collect()
}

impl Prefetch<'_> {
    /// Classes that may move ahead, each with the names of the phases during which they may.
    pub fn by_class(&self) -> BTreeMap<Key, Vec<usize>> {
        let mut prefetch: BTreeMap<Key, Vec<usize>> = BTreeMap::new();
        for (now, next) in followers(self.names).into_iter().enumerate() {
            for key in next.map_or(Vec::new(), |next| self.during(now, next)) {
                prefetch.entry(key).or_default().push(now);
            }
        }
        prefetch
    }

    fn during(&self, now: usize, next: usize) -> Vec<Key> {
        let moving = self.classes.iter().filter_map(|(key, class)| {
            let (from, to) = (class.alone_in(now)?, class.alone_in(next)?);
            (from != to && !class.is_used_in(now)).then_some((*key, from, to))
        });
        let moving: Vec<(Key, usize, usize)> = moving.collect();
        let down = moving.iter().filter(|(_, _, to)| *to == self.slowest);
        let mut prefetch: Vec<Key> = down.map(|(key, ..)| *key).collect();
        let mut room: Vec<(usize, i128)> =
            self.entries(now).map(|at| (at, self.room(at))).collect();
        for (at, room) in &mut room {
            let left = moving.iter().filter(|(_, from, to)| *from == 0 && *to == self.slowest);
            *room += left.map(|(key, ..)| i128::from(self.alive(*key, *at))).sum::<i128>();
        }
        let mut up: Vec<Key> =
            moving.iter().filter(|(.., to)| *to == 0).map(|(key, ..)| *key).collect();
        up.sort_by(|a, b| self.urgency(*b, next).total_cmp(&self.urgency(*a, next)));
        for key in up {
            let bytes = |at: usize| i128::from(self.alive(key, at));
            if room.iter().all(|(at, room)| bytes(*at) <= *room) {
                room.iter_mut().for_each(|(at, room)| *room -= bytes(*at));
                prefetch.push(key);
            }
        }
        prefetch
    }

    /// Numbers of the phases of a name.
    fn entries(&self, name: usize) -> impl Iterator<Item = usize> {
        let all = self.names.of_phase.iter().enumerate();
        all.filter(move |(_, of)| **of == name).map(|(at, _)| at)
    }

    /// Bytes of the fastest memory that a phase leaves free if all that ever lives in it lives at
    /// once.
    fn room(&self, phase: usize) -> i128 {
        let name = self.names.of_phase[phase];
        let fast =
            |object: usize| match self.class_of[object].and_then(|key| self.classes.get(&key)) {
                Some(class) => class.alone_in(name) != Some(self.slowest),
                None => true,
            };
        let objects = (0..self.workload.objects.len()).filter(|object| self.lives(*object, phase));
        let used = objects.filter(|object| fast(*object));
        let used = used.map(|object| i128::from(self.workload.objects[object].bytes));
        i128::from(self.fast_bytes) - used.sum::<i128>()
    }

    fn alive(&self, key: Key, phase: usize) -> u64 {
        let members = self.members.get(&key).into_iter().flatten();
        let alive = members.filter(|object| self.lives(**object, phase));
        alive.map(|object| self.workload.objects[*object].bytes).sum()
    }

    fn lives(&self, object: usize, phase: usize) -> bool {
        let (first, last) = self.workload.phases_of(&self.workload.objects[object]);
        (first..=last).contains(&phase)
    }

    fn urgency(&self, key: Key, phase: usize) -> f64 {
        self.classes.get(&key).map_or(0.0, |class| class.gain_per_byte(phase))
    }
}
