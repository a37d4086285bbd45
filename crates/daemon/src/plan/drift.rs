//! A plan that the policy may correct: what it knows stays as planned while it does what it
//! promised, and belongs to the policy from then on.
//! In: where sampled accesses went. Out: sites the policy leaves alone, or a plan that is given up.
//! Knows nothing of how the policy decides.
//!
//! Plans know phases that are still to come, which a policy does not, so the two would undo each
//! other's moves. A plan of another input places by what was hot there: then much less of what is
//! accessed lies in the fast memory than its profile had there.

use std::collections::HashSet;

use tiercel_ledger::Hit;
use tiercel_machine::NodeId;
use tiercel_wire::Sample;

use crate::clients::client::Client;
use crate::daemon::Daemon;

/// A plan is given up when less than this part of what it promised comes true.
const KEPT_PART: f64 = 0.5;
/// What promises less gains nothing that a policy could.
const PROMISED_LEAST: f64 = 0.1;
/// Before so many samples and ticks nobody judges: a program's first phase is not like the others.
/// Samplers that look at areas see few a second.
const SAMPLES_LEAST: u64 = 30;
const TICKS_LEAST: u32 = 20;
/// Standard deviations that chance is given.
const DEVIATIONS: f64 = 3.0;

/// What a plan promised, and what came of it so far.
#[derive(Debug)]
pub(crate) struct Promise {
    /// Share of the accesses that the fastest memory is to serve; `None`: nobody said.
    fast_share: Option<f64>,
    fast: f64,
    all: f64,
    samples: u64,
    ticks: u32,
}

impl Promise {
    pub(crate) fn new(fast_share: Option<f64>) -> Promise {
        Promise { fast_share, fast: 0.0, all: 0.0, samples: 0, ticks: 0 }
    }

    /// Counts where a sampled access went. On paper memory is where the books have it.
    pub(crate) fn hit(&mut self, sample: &Sample, hit: &Hit, fast: &[NodeId], on_paper: bool) {
        let seen = sample.node.filter(|_| !on_paper).map(NodeId);
        if let Some(node) = seen.or(hit.home) {
            self.count(fast.contains(&node), sample.weight);
        }
    }

    /// A sample that stands for so many accesses went to fast memory, or to other.
    fn count(&mut self, is_fast: bool, weight: u32) {
        self.samples += 1;
        self.all += f64::from(weight);
        self.fast += if is_fast { f64::from(weight) } else { 0.0 };
    }

    /// One more tick. Answers (delivered, promised) of a promise that is broken.
    fn tick(&mut self) -> Option<(f64, f64)> {
        self.ticks = self.ticks.saturating_add(1);
        let promised = self.fast_share.filter(|share| *share >= PROMISED_LEAST)?;
        if self.samples < SAMPLES_LEAST || self.ticks < TICKS_LEAST {
            return None;
        }
        let (delivered, least) = (self.fast / self.all, KEPT_PART * promised);
        let chance = DEVIATIONS * (least * (1.0 - least) / self.samples as f64).sqrt();
        (delivered < least - chance).then_some((delivered, promised))
    }
}

impl Daemon {
    /// Sites, by process, whose objects the plan places; the policy decides about the others.
    pub(crate) fn placed(&self) -> HashSet<(u32, u32)> {
        let Some(planned) = self.kept_plan() else { return HashSet::new() };
        let of_client = |client: &Client| {
            let pid = client.pid;
            let known = client.uses.known().filter(|(_, hash)| planned.knows(*hash));
            known.map(move |(site, _)| (pid, site)).collect::<Vec<_>>()
        };
        self.clients.values().flat_map(of_client).collect()
    }

    /// Gives the plan up when it does not do what it promised.
    pub(crate) fn judge_plan(&mut self) {
        if self.kept_plan().is_none() {
            return;
        }
        let Some(planned) = &mut self.planned else { return };
        let Some((delivered, promised)) = planned.promise.tick() else { return };
        planned.give_up(format!(
            "the plan was given up: {:.0}% of the accesses went to the fastest memory, where it \
             promised {:.0}%; record again with this input",
            delivered * 100.0,
            promised * 100.0
        ));
        for client in self.clients.values_mut() {
            client.session.set_stops(&[], 0);
        }
        self.tell_plan();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(promised: Option<f64>, fast: u64, slow: u64, ticks: u32) -> Option<(f64, f64)> {
        let mut promise = Promise::new(promised);
        (0..fast).for_each(|_| promise.count(true, 7));
        (0..slow).for_each(|_| promise.count(false, 7));
        (0..ticks).filter_map(|_| promise.tick()).last()
    }

    #[test]
    fn what_delivers_less_than_half_is_given_up() {
        assert_eq!(judged(Some(0.8), 300, 700, 20), Some((0.3, 0.8)));
        assert_eq!(judged(Some(0.8), 500, 500, 20), None, "more than half");
        assert_eq!(judged(Some(1.0), 0, 40, 20), Some((0.0, 1.0)), "few, and all of them");
        assert_eq!(judged(Some(0.8), 12, 28, 20), None, "chance may do that");
    }

    #[test]
    fn nobody_judges_early_or_what_promises_nothing() {
        assert_eq!(judged(Some(0.8), 0, 29, 20), None, "few samples");
        assert_eq!(judged(Some(0.8), 0, 5000, 19), None, "few ticks");
        assert_eq!(judged(Some(0.05), 0, 5000, 40), None);
        assert_eq!(judged(None, 0, 5000, 40), None);
    }
}
