//! Moves in a run: those of the policy, those of a plan's phases, and the lookups before both.
//! In: decisions, phases that programs enter, completions of the mover. Out: jobs in the mover's
//! queue, answers to programs that wait at a phase entry. Knows nothing of sockets, or of how a
//! decision is made.

use crate::births;
use crate::clients::client::Client;
use crate::moves::queue::{Answer, MoveQueue, PhaseEntry};
use crate::observe::residency::{LOOKUPS_MAX, MODELLED_LOOKUPS_MAX};
use crate::observe::sampling::Sampling;
use crate::plan::objects::current_phase;
use crate::plan::runner::{Entered, PlanRunner};
use crate::summary::Summary;
use crate::tiers::Tiers;
use crate::tracking::Tracking;
use tiercel_ledger::Range;
use tiercel_ledger::movement::{Move, Outcome};
use tiercel_policy::BirthBudget;
use tiercel_wire::{Backing, PlanError};

/// The mover's queue, and the plan that fills it beside the policy.
pub(crate) struct Moving {
    pub(crate) queue: MoveQueue,
    pub(crate) plan: Option<PlanRunner>,
    backing: Backing,
    /// The modelled mover located new objects while a handler ran: a decision follows it.
    has_located_births: bool,
}

/// The other components that a move reads and changes, borrowed while one handler runs.
pub(crate) struct Context<'a> {
    pub(crate) tracking: &'a mut Tracking,
    pub(crate) sampling: &'a mut Sampling,
    pub(crate) tiers: &'a Tiers,
    pub(crate) summary: &'a mut Summary,
    pub(crate) now_ms: u64,
}

impl Context<'_> {
    /// Takes in where the mover found extents.
    pub(crate) fn located(&mut self, answers: Vec<Answer>, took_ns: u64) {
        self.summary.spent.mover_ns += took_ns;
        let problems = self.tracking.located(answers, took_ns, self.now_ms);
        self.summary.problems(problems);
    }
}

impl Moving {
    pub(crate) fn new(queue: MoveQueue, plan: Option<PlanRunner>, backing: Backing) -> Moving {
        Moving { queue, plan, backing, has_located_births: false }
    }

    /// True while a plan, and not the policy, decides how much room births have.
    pub(crate) fn has_active_plan(&self) -> bool {
        self.plan.as_ref().is_some_and(PlanRunner::divides_room)
    }

    /// False when the plan decides alone.
    pub(crate) fn needs_policy(&self) -> bool {
        self.plan.as_ref().is_none_or(PlanRunner::adapts)
    }

    /// Whether the modelled mover located new objects since the last call.
    pub(crate) fn take_located_births(&mut self) -> bool {
        std::mem::take(&mut self.has_located_births)
    }

    // ---- Lookups -------------------------------------------------------------------------------

    /// Has the mover look up where new and stale extents are. True when there is nothing to wait
    /// for: the decision may follow at once.
    pub(crate) fn look_up(&mut self, stale: Vec<Range>, context: &mut Context<'_>) -> bool {
        if self.queue.has_failed() {
            context.summary.problem("the mover failed: nothing moves any longer".to_owned());
            return false;
        }
        if self.queue.is_busy() {
            context.summary.spent.ticks_busy += 1;
            return false;
        }
        let mut wanted = self.take_births(LOOKUPS_MAX, context);
        wanted.extend(stale);
        wanted.is_empty() || !self.queue.look_up(wanted)
    }

    fn take_births(&mut self, most: usize, context: &mut Context<'_>) -> Vec<Range> {
        let Context { tracking, tiers, .. } = context;
        tracking.take_births(most, &mut self.queue, self.plan.as_ref(), tiers)
    }

    /// The modelled mover moves only what it knows: it learns of all that lives.
    fn locate_births(&mut self, context: &mut Context<'_>) {
        let located = self.locate_some(MODELLED_LOOKUPS_MAX, context);
        self.has_located_births |= located > 0;
    }

    /// Has the modelled mover look up where some new extents are; how many there were.
    pub(crate) fn locate_some(&mut self, most: usize, context: &mut Context<'_>) -> usize {
        if !self.queue.is_modelled() || self.queue.is_busy() {
            return 0;
        }
        let born = self.take_births(most, context);
        let count = born.len();
        if count > 0
            && let Some((answers, took_ns)) = self.queue.look_up_now(born)
        {
            context.located(answers, took_ns);
        }
        count
    }

    // ---- Jobs ----------------------------------------------------------------------------------

    /// Submits moves, those of a phase entry or the policy's. False when the mover is busy.
    pub(crate) fn submit(
        &mut self,
        moves: Vec<Move>,
        entry: Option<PhaseEntry>,
        context: &mut Context<'_>,
    ) -> bool {
        self.queue.announce(&moves, entry);
        self.release_moving(context);
        let is_taken = self.queue.submit_announced(moves);
        if !is_taken {
            self.release_moving(context);
            context.summary.spent.ticks_busy += 1;
        }
        is_taken
    }

    /// Processes that move their own memory need the sampler to release it.
    fn release_moving(&self, context: &mut Context<'_>) {
        if self.backing != Backing::Kernel {
            let Context { sampling, tracking, .. } = context;
            sampling.release(&tracking.clients, |pid| self.queue.ranges_in_flight(pid));
        }
    }

    /// Takes in what became of a move.
    pub(crate) fn note(&mut self, outcome: Outcome, context: &mut Context<'_>) {
        let tracking = &mut *context.tracking;
        tracking.ledger.outcome(&outcome);
        let Move { pid, addr, .. } = outcome.asked;
        let site = tracking.ledger.site_at(pid, addr).filter(|site| *site != 0);
        let client = tracking.clients.of_pid(pid);
        let site = client.zip(site).and_then(|(client, site)| client.session.site(site));
        self.queue.log.add(context.now_ms, site.map_or(0, |site| site.hash), outcome);
    }

    /// The oldest job is complete: answers the program that waited for it, and submits the next
    /// moves ahead of time.
    pub(crate) fn executed(&mut self, took_ns: u64, context: &mut Context<'_>) {
        context.summary.spent.mover_ns += took_ns;
        let entry = self.queue.executed();
        self.release_moving(context);
        if let Some(entry) = entry {
            self.divide_budget(context);
            complete_phase(entry, context);
        }
        self.submit_prefetch(context);
    }

    /// Where an active plan places births, they share what the budget leaves.
    pub(crate) fn divide_budget(&self, context: &Context<'_>) {
        let Tracking { clients, ledger, .. } = &context.tracking;
        if self.has_active_plan() {
            births::divide_budget(context.tiers, clients, ledger, context.tracking.peak_bytes());
        }
    }

    /// Gives births the room that the policy decided on.
    pub(crate) fn apply_births(&self, births: &[BirthBudget], context: &mut Context<'_>) {
        let clients = &mut context.tracking.clients;
        for budget in births {
            if births::apply(budget, context.tiers, clients)
                && let Some(client) = clients.of_pid_mut(budget.pid)
                && let Err(error) = self.publish_rows(client)
            {
                context.summary.problem(error.to_string());
            }
        }
        self.plan.iter().for_each(|plan| plan.place_small(clients));
    }

    /// Other sites of a client have nurseries than before.
    fn publish_rows(&self, client: &mut Client) -> Result<(), PlanError> {
        match &self.plan {
            Some(plan) => plan.publish_to(client),
            None => client.session.set_plan(&client.nursery_rows, None),
        }
    }

    // ---- The plan ------------------------------------------------------------------------------

    /// Follows sites of rebuilt modules: live objects of the sites that the plan recognizes go
    /// where they belong. True when the plan has new rows.
    pub(crate) fn rematch_plan(&mut self, context: &mut Context<'_>) -> bool {
        let clients = &mut context.tracking.clients;
        let Some(plan) = &mut self.plan else { return false };
        if !plan.rematch(clients) {
            return false;
        }
        context.summary.problems(plan.publish(clients));
        for number in context.tracking.clients.numbers() {
            let Some(client) = context.tracking.clients.get(number) else { continue };
            let now = current_phase(&client.session);
            let moves = self.moves_into(number, (now, now), false, context);
            if !moves.is_empty() {
                self.submit(moves, None, context);
            }
        }
        true
    }

    /// Starts the moves of phases that programs entered.
    pub(crate) fn follow_phases(&mut self, context: &mut Context<'_>) {
        let executions = self.queue.executions();
        let Some(plan) = &mut self.plan else { return };
        for entered in plan.take_entered(&context.tracking.clients, executions) {
            self.enter_phase(entered, context);
        }
    }

    fn enter_phase(&mut self, entered: Entered, context: &mut Context<'_>) {
        let Entered { entry, phase, before, waits } = entered;
        let (number, entries) = entry;
        let moves = match waits {
            true => self.moves_into(number, (before, phase), false, context),
            false => Vec::new(),
        };
        if moves.is_empty() || !self.submit(moves, Some(entry), context) {
            complete_phase(entry, context); // the program must not wait for moves that do not come
        } else if let Some(plan) = &mut self.plan {
            plan.phase_moves();
        }
        let next = self.plan.as_ref().and_then(|plan| plan.next_phase(phase));
        let ahead = next.map(|next| self.moves_into(number, (phase, next), true, context));
        if let Some(plan) = &mut self.plan {
            plan.prefetch().plan(number, entries, ahead.unwrap_or_default());
        }
        self.submit_prefetch(context);
    }

    /// The live objects of a client that belong elsewhere in a phase than in the one before; with
    /// `is_early`, those that may move during that one.
    fn moves_into(
        &mut self,
        number: u32,
        phases: (u64, u64),
        is_early: bool,
        context: &mut Context<'_>,
    ) -> Vec<Move> {
        // Objects born since the last tick have rows from now on.
        context.tracking.close_interval(context.now_ms);
        self.locate_births(context);
        let (Some(plan), tiers) = (&self.plan, context.tiers) else { return Vec::new() };
        let Tracking { clients, ledger, .. } = &mut *context.tracking;
        let client = clients.get_mut(number);
        client.map_or(Vec::new(), |client| plan.moves_into(client, ledger, tiers, phases, is_early))
    }

    /// Submits one job of moves for the next phase when the mover has nothing to do.
    fn submit_prefetch(&mut self, context: &mut Context<'_>) {
        if self.queue.executions() > 0 {
            return;
        }
        let Some(plan) = &mut self.plan else { return };
        let Some(job) = plan.prefetch().take_job(&context.tracking.clients) else { return };
        let bytes = job.iter().map(|one| one.bytes).sum();
        if self.submit(job, None, context)
            && let Some(plan) = &mut self.plan
        {
            plan.prefetch().submitted(bytes);
        }
    }

    /// Adds what moved, and what became of the plan.
    pub(crate) fn add_to(&self, summary: &mut Summary, tracking: &Tracking) {
        summary.moves = self.queue.log.totals.clone();
        summary.moves.own_refused_bytes = self.queue.refusals.bytes();
        let plan = self.plan.as_ref().map(|plan| plan.summary(&tracking.clients));
        let is_prior = self.plan.as_ref().is_some_and(PlanRunner::is_prior);
        (summary.learned, summary.plan) = if is_prior { (plan, None) } else { (None, plan) };
    }
}

/// Lets a program continue that waits at a phase entry.
fn complete_phase((number, entries): PhaseEntry, context: &Context<'_>) {
    if let Some(client) = context.tracking.clients.get(number) {
        client.session.set_phase_done(entries);
    }
}
