//! The figures of a running daemon, put together when somebody asks.
//! In: the daemon's state. Out: a [`Summary`]. Knows nothing of who asked.

use crate::cpu;
use crate::daemon::Daemon;
use crate::summary::{BudgetState, Summary};

impl Daemon {
    /// Says who works here; constant for the daemon's life.
    pub(crate) fn introduce(&mut self) {
        let summary = &mut self.summary;
        summary.machine = self.machine.name.clone();
        summary.nodes = self.machine.nodes.iter().map(|n| (n.id.0, n.label())).collect();
        match &self.sampler {
            Some(sampler) => {
                summary.sampler = sampler.name().to_owned();
                summary.sampler_note = sampler.sees().text;
            }
            None => summary.sampler = "none".to_owned(),
        }
    }

    /// All figures now.
    pub(crate) fn status(&mut self) -> Summary {
        let mut summary = self.summary.clone();
        let totals = self.ledger.totals();
        summary.elapsed_ms = self.now_ms();
        summary.clients.now = self.clients.len() as u64;
        summary.clients.refused = crate::summary::refused(&self.greeter.refused, self.desk.refused);
        for client in self.clients.values() {
            summary.records.drained += client.records;
            summary.records.lost += client.lost;
            summary.records.resyncs += client.resyncs;
        }
        summary.samples.seen = totals.samples;
        summary.samples.attributed = totals.samples_attributed;
        summary.samples.ephemeral = totals.samples_ephemeral;
        summary.samples.outside = totals.samples_outside;
        summary.objects.born = totals.objects_born;
        summary.objects.born_bytes = totals.born_bytes;
        summary.objects.ephemeral = totals.objects_ephemeral;
        summary.objects.refused = totals.births_refused;
        summary.objects.extents = self.ledger.extent_totals().0;
        summary.moves = self.moves.totals.clone();
        summary.budget = BudgetState {
            fast: self.config.fast.to_string(),
            fast_bytes: self.fast_budget_bytes(),
            used_bytes: summary.budget.used_bytes,
        };
        summary.pools = self.pools.as_ref().map(crate::pools::Pools::state).unwrap_or_default();
        summary.plan = self.plan_summary();
        // Movers that keep books work on this thread.
        let elsewhere_ns = if self.hands.keeps_books() { 0 } else { summary.spent.mover_ns };
        summary.spent.cpu_ns = cpu::thread_ns() + elsewhere_ns;
        if let Some(sampler) = &self.sampler {
            summary.spent.theirs_ns = sampler.cost().theirs.as_nanos() as u64;
        }
        summary
    }
}
