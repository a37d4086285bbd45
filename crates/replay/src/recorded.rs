//! Streams of recorded profiles, as far as a profile goes.
//! In: a [`Profile`]. Out: a [`Stream`]. Knows nothing of files.
//!
//! ```text
//! slot       |    17     |    18     |       counts of an object's extent become accesses that are
//! accesses   ..  ..  ..  ..  ..  ..  ..      spread over the extent, every 5 ms of the slot
//! ```
//! A profile has counts, not an order: within a slot everything is even. What else is lost is said
//! in [`Stream::lost`].

use std::collections::BTreeMap;

use tiercel_profile::{Access, AccessSite, Object, Profile};
use tiercel_wire::Pattern;
use tiercel_wire::layout::OS_PAGE_BYTES;

use crate::stream::{
    Accesses, CHASED, Half, Manner, OS_PAGES_MAX, Piece, RANDOM, SEQUENTIAL, Script, Stream,
};

/// Longest time over which accesses happen at once, nanoseconds.
const PART_NS: u64 = 5_000_000;

/// Misses under way at once where the sampler does not say it: as the ledger takes it.
const AT_ONCE: f64 = 4.0;

/// Most misses that a core has under way at once.
const AT_ONCE_MAX: f64 = 16.0;

/// Why a profile is no stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordedError {
    /// Nothing was accessed.
    #[error("the profile has no accesses to replay; record it with a sampler")]
    NoAccesses,
    /// Its objects take too much memory.
    #[error("the profile's objects take {0} OS pages; at most {OS_PAGES_MAX} are replayed")]
    TooLarge(u64),
    /// It has too many moments.
    #[error("the profile has {0} accesses in its time slots; at most {max} are replayed",
        max = crate::stream::EVENTS_MAX)]
    TooMany(usize),
}

/// What happens, in the order of time; deaths first, so that births may take their addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Died(usize),
    Born(usize),
    Phase(u64),
    Accessed { access: usize, part: u64 },
}

/// The first run of a profile as a stream of this name. It is held out: it is a real program's.
pub fn recorded(profile: &Profile, name: &str) -> Result<Stream, RecordedError> {
    let source = Source::new(profile);
    let happenings = source.happenings()?;
    let mut script = Script::new();
    let mut free: BTreeMap<u64, Vec<Piece>> = BTreeMap::new();
    let mut places: BTreeMap<usize, Piece> = BTreeMap::new();
    let mut now_ns = 0;
    for (at_ns, happening) in happenings {
        script.work(at_ns - now_ns);
        now_ns = at_ns;
        source.write(happening, &mut script, (&mut places, &mut free));
    }
    let duration_ns = profile.runs.first().map_or(0, |run| run.duration_ns);
    script.work(duration_ns.saturating_sub(now_ns));
    let mut stream = script.end(name, "a recorded run", Half::HeldOut);
    stream.lost = source.lost();
    if stream.os_pages > OS_PAGES_MAX {
        return Err(RecordedError::TooLarge(stream.os_pages));
    }
    Ok(stream)
}

struct Source<'a> {
    profile: &'a Profile,
    /// Of the first run: place in the profile.
    objects: Vec<usize>,
    parts: u64,
    /// By site of objects, where the code shows in what order they are accessed.
    orders: BTreeMap<u32, Order>,
}

/// How the objects of a site are accessed, as far as the code shows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Order {
    misses: f64,
    /// Misses over how many are under way at once.
    waited: f64,
    /// Those without neighbours.
    apart: f64,
}

impl Order {
    fn add(&mut self, site: &AccessSite) {
        let Some(Manner { at_once, apart, .. }) = manner_of(&site.pattern) else { return };
        let misses = (site.reads + site.writes) as f64;
        self.misses += misses;
        self.waited += misses / at_once;
        self.apart += if apart { misses } else { 0.0 };
    }

    /// Misses under way at once, and the share of those without neighbours.
    fn shares(self) -> Option<(f64, f64)> {
        (self.misses > 0.0).then(|| (self.misses / self.waited, self.apart / self.misses))
    }
}

/// A stride takes as many misses at once as a sequence, but no two in a block.
fn manner_of(pattern: &str) -> Option<Manner> {
    let pattern = Pattern::ALL.into_iter().find(|one| one.name() == pattern)?;
    Some(match pattern {
        Pattern::Random => RANDOM,
        Pattern::Sequential => SEQUENTIAL,
        Pattern::Strided => Manner { apart: true, ..SEQUENTIAL },
        Pattern::Chased => CHASED,
    })
}

impl<'a> Source<'a> {
    fn new(profile: &'a Profile) -> Source<'a> {
        let is_first = |object: &Object| profile.run_of(object) == 0 && object.peak_bytes > 0;
        let objects = profile.objects.iter().enumerate();
        let objects = objects.filter(|(_, object)| is_first(object)).map(|(at, _)| at).collect();
        let mut orders: BTreeMap<u32, Order> = BTreeMap::new();
        for site in &profile.access_sites {
            orders.entry(site.site).or_default().add(site);
        }
        Source { profile, objects, parts: profile.slot_ns.div_ceil(PART_NS).max(1), orders }
    }

    fn happenings(&self) -> Result<Vec<(u64, Happening)>, RecordedError> {
        let mut all = Vec::new();
        for at in &self.objects {
            let object = &self.profile.objects[*at];
            all.push((object.birth_ns, Happening::Born(*at)));
            all.push((object.death_ns.max(object.birth_ns + 1), Happening::Died(*at)));
        }
        let phases = self.profile.phases.iter().filter(|phase| phase.run == 0);
        all.extend((1..).zip(phases).map(|(nth, phase)| (phase.start_ns, Happening::Phase(nth))));
        let before = all.len();
        for (access, one) in self.profile.accesses.iter().enumerate() {
            let object = &self.profile.objects[one.object as usize];
            if self.objects.binary_search(&(one.object as usize)).is_err() {
                continue;
            }
            for part in 0..self.parts {
                let start_ns = u64::from(one.slot) * self.profile.slot_ns;
                let at_ns = start_ns + part * self.profile.slot_ns / self.parts;
                let last_ns = object.death_ns.max(object.birth_ns + 1) - 1;
                let at_ns = at_ns.clamp(object.birth_ns, last_ns);
                all.push((at_ns, Happening::Accessed { access, part }));
            }
            if all.len() > crate::stream::EVENTS_MAX {
                return Err(RecordedError::TooMany(all.len()));
            }
        }
        if all.len() == before {
            return Err(RecordedError::NoAccesses);
        }
        all.sort_unstable();
        Ok(all)
    }

    fn write(
        &self,
        happening: Happening,
        script: &mut Script,
        (places, free): (&mut BTreeMap<usize, Piece>, &mut BTreeMap<u64, Vec<Piece>>),
    ) {
        match happening {
            Happening::Born(at) => {
                let object = &self.profile.objects[at];
                script.of_process(object.process + 1);
                let bytes = object.peak_bytes.max(object.bytes).next_multiple_of(OS_PAGE_BYTES);
                // As a heap does that finds a freed run of the size.
                let reused = free.get_mut(&bytes).and_then(Vec::pop);
                let place = reused.unwrap_or_else(|| script.reserve(bytes));
                script.born_at(place, object.site + 1);
                script.touch(place);
                places.insert(at, place);
            }
            Happening::Died(at) => {
                if let Some(place) = places.remove(&at) {
                    script.of_process(self.profile.objects[at].process + 1);
                    script.died(place);
                    free.entry(place.bytes).or_default().push(place);
                }
            }
            Happening::Phase(number) => script.phase(number),
            Happening::Accessed { access, part } => {
                let one = &self.profile.accesses[access];
                let object = &self.profile.objects[one.object as usize];
                if let Some(place) = places.get(&(one.object as usize)) {
                    script.of_process(object.process + 1);
                    let piece = extent_of(object, one, *place);
                    self.accesses(one, piece, part)
                        .into_iter()
                        .for_each(|one| script.accesses(one));
                }
            }
        }
    }

    /// Those in blocks without neighbours, and the others.
    fn accesses(&self, one: &Access, piece: Piece, part: u64) -> [Accesses; 2] {
        let (at_once, apart) = self.order(one);
        let dirtied = one.dirtied.unwrap_or(one.writes).min(one.writes);
        let of = |count: u64, share: f64| {
            let so_far = |part: u64| {
                let share = share.clamp(0.0, 1.0) * part as f64 / self.parts as f64;
                tiercel_machine::number::saturating_u64(count as f64 * share)
            };
            so_far(part + 1) - so_far(part)
        };
        [(true, apart), (false, 1.0 - apart)].map(|(apart, share)| {
            let writes = of(one.writes, share);
            Accesses {
                addr: piece.addr,
                bytes: piece.bytes,
                reads: of(one.reads, share),
                writes,
                dirtied: of(dirtied, share).min(writes),
                at_once: at_once.clamp(1.0, AT_ONCE_MAX),
                apart,
            }
        })
    }

    /// Misses under way at once, and the share of those without neighbours: as sampled, else as the
    /// code shows for the object's site.
    fn order(&self, one: &Access) -> (f64, f64) {
        let known = one.mlp_known as f64;
        if one.mlp_known == 0 {
            let site = self.profile.objects[one.object as usize].site;
            let by_code = self.orders.get(&site).and_then(|order| order.shares());
            return by_code.unwrap_or((AT_ONCE, 1.0));
        }
        let is_known = one.serialized > 0;
        let at_once = if is_known { known / one.serialized as f64 } else { AT_ONCE };
        (at_once, one.isolated as f64 / known)
    }

    fn lost(&self) -> Vec<String> {
        let profile = self.profile;
        let mut lost = vec![
            "the order of accesses within a time slot: they are even".to_owned(),
            "where the recorded run had its data: its pace counts as that of all-fast".to_owned(),
            "growth and first touch: an object has, and touches, its peak at its birth".to_owned(),
            "addresses: a freed object's are reused by the next of its size".to_owned(),
        ];
        if !self.orders.is_empty() {
            let what = "misses under way at once, and neighbours: as the code's patterns have them";
            lost.push(what.to_owned());
        }
        let merged = self.objects.iter().filter(|at| profile.objects[**at].count > 1).count();
        if merged > 0 {
            lost.push(format!("births and deaths within {merged} merged groups of objects"));
        }
        if profile.runs.len() > 1 {
            lost.push(format!("all runs but the first of {}", profile.runs.len()));
        }
        if let Some(run) = profile.runs.first() {
            let all = run.observed.samples.max(1);
            let outside = run.observed.samples_outside as f64 / all as f64 * 100.0;
            lost.push(format!("accesses outside of all objects: {outside:.0}% of the samples"));
            if !run.misses_only {
                lost.push("whether a cache served an access: all count as misses".to_owned());
            }
        }
        lost
    }
}

/// The part of an object that an access names; all of it where the object is a single extent.
fn extent_of(object: &Object, one: &Access, place: Piece) -> Piece {
    let start = u64::from(one.extent).saturating_mul(object.extent_bytes);
    if object.extent_bytes < OS_PAGE_BYTES || start >= place.bytes {
        return place;
    }
    let bytes = object.extent_bytes.min(place.bytes - start);
    Piece { addr: place.addr + start, bytes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::What;
    use tiercel_profile::{Process, Run, Site};
    use tiercel_wire::Record;

    fn profile() -> Profile {
        let object = |birth_ns: u64, death_ns: u64| Object {
            count: 1,
            bytes: 10_000,
            peak_bytes: 10_000,
            birth_ns,
            death_ns,
            extent_bytes: 8192,
            ..Object::default()
        };
        let access = |object, extent, slot, reads| Access {
            object,
            extent,
            slot,
            reads,
            mlp_known: reads,
            serialized: reads / 2,
            isolated: reads / 4,
            ..Access::default()
        };
        Profile {
            slot_ns: 10_000_000,
            runs: vec![Run { duration_ns: 100_000_000, ..Run::default() }],
            processes: vec![Process::default()],
            sites: vec![Site::default()],
            objects: vec![object(0, 40_000_000), object(50_000_000, 90_000_000)],
            accesses: vec![access(0, 0, 1, 1000), access(0, 1, 2, 400), access(1, 0, 9, 800)],
            ..Profile::default()
        }
    }

    #[test]
    fn counts_become_accesses_of_extents_within_lives() {
        let stream = recorded(&profile(), "app.profile").unwrap();
        assert_eq!(stream.check(), Ok(()));
        assert_eq!((stream.misses(), stream.work_ns), (2200, 100_000_000));
        assert_eq!(stream.os_pages, 3, "the second takes the place of the first");
        let accesses: Vec<&Accesses> = stream
            .events
            .iter()
            .filter_map(|event| match &event.what {
                What::Accesses(accesses) => Some(accesses),
                What::Record(_) => None,
            })
            .collect();
        let real = accesses.iter().filter(|one| one.misses() > 0);
        assert!(real.clone().all(|one| (one.at_once - 2.0).abs() < 1e-9));
        let apart: u64 = accesses.iter().filter(|one| one.apart).map(|one| one.reads).sum();
        assert_eq!(apart, 550);
        assert_eq!(accesses.iter().map(|one| one.bytes).min(), Some(4096), "the second extent");
        let touched = accesses.iter().filter(|one| one.misses() == 0);
        assert_eq!(touched.map(|one| one.bytes).collect::<Vec<_>>(), [12_288; 2]);
        let is_birth =
            |event: &&crate::stream::Event| matches!(event.what, What::Record(Record::Born { .. }));
        assert_eq!(stream.events.iter().filter(is_birth).count(), 2);
        assert!(stream.lost.iter().any(|what| what.contains("order")), "{:?}", stream.lost);
    }

    #[test]
    fn patterns_of_the_code_say_how_many_misses_are_under_way() {
        let access = Access { reads: 800, ..Access::default() };
        let by = |pattern: &str, reads| AccessSite {
            pattern: pattern.into(),
            reads,
            ..AccessSite::default()
        };
        let shown = |sites: Vec<AccessSite>| {
            let profile = Profile { access_sites: sites, ..profile() };
            Source::new(&profile).order(&access)
        };
        assert_eq!(shown(vec![by("chased", 7)]), (1.0, 1.0));
        assert_eq!(shown(vec![by("sequential", 7)]), (SEQUENTIAL.at_once, 0.0));
        assert_eq!(shown(vec![by("strided", 7)]), (SEQUENTIAL.at_once, 1.0));
        assert_eq!(shown(vec![by("random", 7)]), (RANDOM.at_once, 1.0));
        // Half of them wait alone, half eight at a time: 2 / (1 + 1/8).
        assert_eq!(shown(vec![by("chased", 4), by("sequential", 4)]), (16.0 / 9.0, 0.5));
        assert_eq!(shown(vec![by("unheard of", 7)]), (AT_ONCE, 1.0));
        assert_eq!(shown(Vec::new()), (AT_ONCE, 1.0));
    }

    #[test]
    fn a_profile_without_accesses_is_refused() {
        let empty = Profile { accesses: Vec::new(), ..profile() };
        assert_eq!(recorded(&empty, ""), Err(RecordedError::NoAccesses));
    }
}
