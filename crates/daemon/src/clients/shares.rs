//! Memory that several mappings show: it is in the ledger once, as an object of one of them.
//! In: mapped objects with the name of what they show, as they are born and die. Out: which of them
//! are in the ledger, where an address of the others lies in it. Knows nothing of files or sites.
//!
//! ```text
//! name 7    owner: process 1 at 0x1000      in the ledger
//!           view:  process 2 at 0x8000      a sample at 0x8010 is one of process 1 at 0x1010
//!           view:  process 1 at 0x5000      when the owner dies, a view becomes the owner
//! ```
//! Mappings with one name begin with the same byte. Names are claims: they are compared among the
//! processes of one user.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use tiercel_wire::ObjectSnapshot;

/// Mappings of one user that are compared, at some 200 bytes: 3 MiB. Further ones are objects of
/// their own.
const PLACES_MAX: usize = 1 << 14;

/// User and name.
type Name = (u32, u64);

/// A mapping: process and first byte.
type Place = (u32, u64);

#[derive(Clone, Copy, Debug)]
struct Mapping {
    name: Name,
    object: ObjectSnapshot,
}

/// The mappings of all processes that may show the same as others.
#[derive(Debug, Default)]
pub(crate) struct SharedMappings {
    /// By process and address.
    mappings: BTreeMap<Place, Mapping>,
    /// Mappings of each name; the first is the owner.
    places: HashMap<Name, Vec<Place>>,
    of_user: HashMap<u32, usize>,
}

impl SharedMappings {
    /// A mapping was born. False: what it shows is in the ledger already.
    pub(crate) fn born(&mut self, uid: u32, pid: u32, share: u64, object: ObjectSnapshot) -> bool {
        let (name, place) = ((uid, share), (pid, object.addr));
        if let Some(known) = self.mappings.get(&place) {
            if known.object.version == object.version && known.name == name {
                return self.is_owner(place);
            }
            // Its death was lost. What it showed has another owner from the next look on.
            self.remove(place);
        }
        let count = self.of_user.entry(uid).or_default();
        if *count >= PLACES_MAX {
            return true;
        }
        *count += 1;
        self.mappings.insert(place, Mapping { name, object });
        let places = self.places.entry(name).or_default();
        places.push(place);
        places.len() == 1
    }

    fn is_owner(&self, place: Place) -> bool {
        let name = self.mappings.get(&place).map(|one| one.name);
        name.is_some_and(|name| self.places[&name].first() == Some(&place))
    }

    /// Mappings that begin in a range are gone. Returns those that are owners now: they are to be
    /// born in the ledger.
    pub(crate) fn gone(&mut self, pid: u32, range: Range<u64>) -> Vec<(u32, ObjectSnapshot)> {
        if self.mappings.is_empty() {
            return Vec::new();
        }
        let places = self.mappings.range((pid, range.start)..(pid, range.end));
        let places: Vec<Place> = places.map(|(place, _)| *place).collect();
        let heirs: Vec<_> = places.into_iter().filter_map(|place| self.remove(place)).collect();
        // One that was gone as well has passed it on.
        let is_there = |(pid, one): &(u32, ObjectSnapshot)| self.is_owner((*pid, one.addr));
        heirs.into_iter().filter(is_there).collect()
    }

    fn remove(&mut self, place: Place) -> Option<(u32, ObjectSnapshot)> {
        let was_owner = self.is_owner(place);
        let name = self.mappings.remove(&place)?.name;
        if let Some(count) = self.of_user.get_mut(&name.0) {
            *count -= 1;
        }
        let places = self.places.get_mut(&name)?;
        places.retain(|other| *other != place);
        let heir = places.first().copied().filter(|_| was_owner);
        if places.is_empty() {
            self.places.remove(&name);
        }
        heir.and_then(|heir| Some((heir.0, self.mappings.get(&heir)?.object)))
    }

    /// Whether a mapping is known, and is none of the ledger.
    pub(crate) fn is_view(&self, pid: u32, addr: u64) -> bool {
        self.mappings.contains_key(&(pid, addr)) && !self.is_owner((pid, addr))
    }

    /// Where an address of a process lies in the ledger.
    pub(crate) fn resolve(&self, pid: u32, addr: u64) -> (u32, u64) {
        let below = self.mappings.range((pid, 0)..=(pid, addr)).next_back();
        let below = below.filter(|(place, one)| addr - place.1 < one.object.bytes);
        let Some((place, mapping)) = below else { return (pid, addr) };
        let owner = self.places[&mapping.name].first().filter(|owner| *owner != place);
        match owner {
            Some((owner, at)) => (*owner, at + (addr - place.1)),
            None => (pid, addr),
        }
    }

    /// Mappings of a process that are none of the ledger: where it is to be watched as well.
    pub(crate) fn views_of(&self, pid: u32) -> impl Iterator<Item = Range<u64>> {
        let all = self.mappings.range((pid, 0)..(pid, u64::MAX));
        let views = all.filter(|(place, _)| !self.is_owner(**place));
        views.map(|(_, one)| one.object.addr..one.object.addr + one.object.bytes)
    }

    /// Mappings of a process that begin in a range.
    pub(crate) fn mappings_of(&self, pid: u32, range: Range<u64>) -> Vec<Range<u64>> {
        let all = self.mappings.range((pid, range.start)..(pid, range.end));
        all.map(|(place, _)| place.1..place.1 + 1).collect()
    }

    /// A forked child has what its parent has.
    pub(crate) fn forked(&mut self, parent: u32, child: u32) {
        let all = self.mappings.range((parent, 0)..(parent, u64::MAX));
        let all: Vec<Mapping> = all.map(|(_, mapping)| *mapping).collect();
        for Mapping { name: (uid, share), object } in all {
            self.born(uid, child, share, object);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tiercel_wire::{Flags, Version};

    fn object(addr: u64, bytes: u64, carve: u32) -> ObjectSnapshot {
        let version = Version { carve, generation: 0 };
        ObjectSnapshot { addr, bytes, site: 1, version, arena: None, flags: Flags::MAPPED }
    }

    #[test]
    fn memory_is_in_the_ledger_once_until_its_last_mapping_is_gone() {
        let mut shares = SharedMappings::default();
        assert!(shares.born(0, 1, 7, object(0x1000, 0x4000, 1)));
        assert!(!shares.born(0, 2, 7, object(0x8000, 0x4000, 1)));
        assert!(!shares.born(0, 1, 7, object(0x10_000, 0x1000, 2)), "twice in one process");
        assert!(shares.born(5, 3, 7, object(0x1000, 0x4000, 1)), "another user's");
        assert!(shares.born(0, 1, 7, object(0x1000, 0x4000, 1)), "known from the table too");
        assert_eq!(shares.resolve(2, 0x8010), (1, 0x1010));
        assert_eq!(shares.resolve(2, 0xc000), (2, 0xc000), "behind its end");
        assert_eq!(shares.resolve(1, 0x1010), (1, 0x1010));
        assert!(shares.views_of(1).eq(std::iter::once(0x10_000..0x11_000)));
        shares.forked(1, 4);
        assert!(shares.is_view(4, 0x1000) && shares.is_view(4, 0x10_000));
        let heirs = shares.gone(1, 0..u64::MAX);
        let heirs: Vec<_> = heirs.iter().map(|(pid, one)| (*pid, one.addr)).collect();
        assert_eq!(heirs, [(2, 0x8000)]);
        assert_eq!(shares.resolve(4, 0x1010), (2, 0x8010));
        assert_eq!(shares.gone(2, 0x8000..0x8001).len(), 1);
        assert!(shares.gone(4, 0..u64::MAX).is_empty());
        assert!(shares.gone(3, 0..u64::MAX).is_empty());
        assert!(shares.mappings.is_empty() && shares.places.is_empty());
        assert!(shares.of_user.values().all(|count| *count == 0));
    }

    proptest! {
        #[test]
        fn each_name_has_one_owner(
            steps in proptest::collection::vec((0u32..4, 0u64..6, 0u64..3, any::<bool>()), 0..60),
        ) {
            let mut shares = SharedMappings::default();
            let mut in_ledger: BTreeMap<Place, u64> = BTreeMap::new();
            for (nth, (pid, page, name, is_birth)) in steps.into_iter().enumerate() {
                let addr = page << 12;
                for (heir, one) in shares.gone(pid, addr..addr + 1) {
                    in_ledger.insert((heir, one.addr), 0);
                }
                in_ledger.remove(&(pid, addr));
                let carve = u32::try_from(nth).unwrap();
                if is_birth && shares.born(0, pid, name, object(addr, 0x1000, carve)) {
                    in_ledger.insert((pid, addr), 0);
                }
                let owners: Vec<Place> =
                    shares.places.values().filter_map(|all| all.first().copied()).collect();
                prop_assert_eq!(owners.len(), in_ledger.len());
                prop_assert!(owners.iter().all(|owner| in_ledger.contains_key(owner)));
                for (pid, addr) in shares.mappings.keys() {
                    prop_assert!(in_ledger.contains_key(&shares.resolve(*pid, *addr)));
                }
            }
        }
    }
}
