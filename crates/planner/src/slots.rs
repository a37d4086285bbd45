//! Divides time so that capacity needs to be checked only once a slot.
//! In: births, deaths and phase starts. Out: slots, and those in which each object takes room.
//! Knows nothing of memories.
//!
//! The room that is taken grows only at births. So a slot may span births until something has died:
//! all objects born in it live together at its last birth, when it is fullest. An object that dies
//! at the moment of a birth has made room for it.

use crate::span::Span;
use crate::workload::Workload;
use tiercel_machine::number::index_u32;

/// Slots of a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Slots {
    /// How many.
    pub count: usize,
    /// First and last slot of each object.
    pub of_object: Vec<Span>,
    /// First slot of each phase, ascending; all 0 if phases begin no slots.
    pub of_phase: Vec<u32>,
}

/// At one time, deaths come first, then phase starts, then births.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Death(usize),
    Phase(usize),
    Birth(usize),
}

impl Slots {
    /// One slot for everything (H2M III-D2).
    pub fn whole(workload: &Workload) -> Slots {
        Slots {
            count: 1,
            of_object: vec![Span { first: 0, last: 0 }; workload.objects.len()],
            of_phase: vec![0; workload.phases.len()],
        }
    }

    /// As few slots as lifetimes allow; with `phases`, each phase begins one.
    pub fn by_lifetime(workload: &Workload, phases: bool) -> Slots {
        let start_ns = workload.phases[0].start_ns;
        let mut events = Vec::with_capacity(2 * workload.objects.len() + workload.phases.len());
        for (index, object) in workload.objects.iter().enumerate() {
            events.push((object.birth_ns.max(start_ns), Event::Birth(index)));
            events.push((object.death_ns.max(start_ns), Event::Death(index)));
        }
        if phases {
            let starts = workload.phases.iter().enumerate();
            events.extend(starts.map(|(index, phase)| (phase.start_ns, Event::Phase(index))));
        }
        events.sort_unstable();
        let mut slots = Slots::whole(workload);
        let (mut slot, mut died) = (0u32, false);
        for (_, event) in events {
            match event {
                Event::Death(object) => {
                    slots.of_object[object].last = slot;
                    died = true;
                }
                Event::Phase(0) => {}
                Event::Phase(phase) => {
                    slot += 1;
                    died = false;
                    slots.of_phase[phase] = slot;
                }
                Event::Birth(object) => {
                    slot += u32::from(std::mem::take(&mut died));
                    slots.of_object[object].first = slot;
                }
            }
        }
        slots.count = slot as usize + 1;
        slots
    }

    /// Slots in which an object takes room during a phase it lives in.
    pub fn in_phase(&self, object: usize, phase: usize) -> Span {
        let of_object = self.of_object[object];
        let end = self.of_phase.get(phase + 1).map_or(index_u32(self.count), |next| *next);
        Span { first: of_object.first.max(self.of_phase[phase]), last: of_object.last.min(end - 1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Object, Phase};

    fn workload(lives: &[(u64, u64)], phases: &[u64]) -> Workload {
        let object = |&(birth_ns, death_ns): &(u64, u64)| Object {
            name: String::new(),
            bytes: 1,
            birth_ns,
            death_ns,
            uses: Vec::new(),
        };
        let phase = |&start_ns: &u64| Phase { name: String::new(), start_ns, compute_ns: 0.0 };
        Workload {
            objects: lives.iter().map(object).collect(),
            phases: phases.iter().map(phase).collect(),
            end_ns: 100,
            sample_period: 1.0,
        }
    }

    fn shown(slots: &Slots) -> Vec<(u32, u32)> {
        slots.of_object.iter().map(|span| (span.first, span.last)).collect()
    }

    #[test]
    fn births_share_a_slot_until_something_dies() {
        let slots =
            Slots::by_lifetime(&workload(&[(0, 10), (5, 30), (10, 20), (40, 50)], &[0]), true);
        assert_eq!(slots.count, 3);
        assert_eq!(shown(&slots), [(0, 0), (0, 1), (1, 1), (2, 2)]);
    }

    #[test]
    fn phases_cut_only_if_asked() {
        let given = workload(&[(0, 100), (50, 60)], &[0, 50]);
        assert_eq!(Slots::by_lifetime(&given, false).count, 1);
        let slots = Slots::by_lifetime(&given, true);
        assert_eq!((slots.count, shown(&slots)), (2, vec![(0, 1), (1, 1)]));
        assert_eq!(slots.in_phase(0, 0), Span { first: 0, last: 0 });
    }

    #[test]
    fn what_dies_at_a_phase_start_is_gone_before_it() {
        let given = workload(&[(0, 50), (50, 100)], &[0, 50]);
        let slots = Slots::by_lifetime(&given, true);
        assert_eq!(shown(&slots), [(0, 0), (1, 1)]);
    }
}
