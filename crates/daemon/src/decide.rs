//! Deciding, and what follows from it: moves for the mover, birth budgets for the clients.
//! In: the ledger after a look. Out: [`Job::Execute`], figures in control pages.
//! Knows nothing of how a decision is made or a move executed.

use std::collections::BTreeMap;
use std::path::Path;

use crate::cpu;
use crate::daemon::Daemon;
use crate::moves::queue::Job;
use tiercel_ledger::Range;
use tiercel_ledger::movement::Move;
use tiercel_machine::{NodeId, Room};
use tiercel_policy::{BirthPlan, Budgets, Decision, Interval, Limit};
use tiercel_wire::Session;

/// Birth budget of tiers that have no budget, bytes: never used up between two ticks.
const UNLIMITED_BYTES: u64 = 1 << 56;

/// What a new client may give birth to in the best tier until the first decision: one extent.
const FIRST_GRANT_BYTES: u64 = 64 << 20;

impl Daemon {
    /// Asks the policy, hands the moves to the mover and the birth plans to the clients.
    pub(crate) fn decide(&mut self) {
        if self.planned.as_ref().is_some_and(|planned| !planned.choice.adapt) {
            self.refill();
            return;
        }
        let began_ns = cpu::thread_ns();
        let counters = self.sampler.as_mut().and_then(|sampler| sampler.counters());
        let interval = Interval {
            llc_misses: counters.map(|c| c.llc_misses),
            instructions: counters.map(|c| c.instructions),
            is_modelled: self.hands.keeps_books(),
            ..std::mem::take(&mut self.pace.undecided)
        };
        self.judge_plan();
        let budgets = Budgets {
            left_bytes: self.left_bytes(),
            placed: self.placed(),
            ..Budgets::fast(self.config.fast)
        };
        let decision = self.policy.tick(&self.ledger, &self.machine, &budgets, &interval);
        self.summary.spent.policy_ns += cpu::since_ns(began_ns);
        self.carry_out(decision);
    }

    /// What is left on the nodes of all tiers but the last, where moves are real.
    fn left_bytes(&self) -> BTreeMap<NodeId, u64> {
        let tiers = self.machine.tiers();
        let (Some((_, better)), false) = (tiers.split_last(), self.hands.keeps_books()) else {
            return BTreeMap::new();
        };
        let os_page_bytes = rustix::param::page_size() as u64;
        let room = self.room.get_or_init(|| Room::of(Path::new("/"), os_page_bytes));
        let nodes = better.iter().flat_map(|tier| &tier.nodes);
        nodes.filter_map(|node| Some((*node, room.left_bytes(*node)?))).collect()
    }

    fn carry_out(&mut self, decision: Decision) {
        for problem in &decision.problems {
            self.summary.problem(problem.to_string());
        }
        for refused in decision.summary.iter().flat_map(|summary| &summary.refused) {
            let why = crate::moves::log::kebab(&refused.why);
            *self.summary.left_bytes.entry(why).or_default() += refused.bytes;
        }
        self.summary.benefit.extend(decision.judged);
        self.summary.decisions += u64::from(decision.summary.is_some());
        self.summary.trigger = decision.trigger;
        if self.kept_plan().is_some() {
            self.refill(); // births are the plan's affair, in the room that is left
        } else {
            decision.births.iter().for_each(|plan| self.plan_births(plan));
        }
        if !decision.moves.is_empty() {
            self.give_moves(decision.moves, None);
        }
    }

    /// Gives the mover moves, of a phase entry or of nobody's. Answers whether it took them: not
    /// when it is busy.
    pub(crate) fn give_moves(&mut self, moves: Vec<Move>, entry: Option<(u32, u32)>) -> bool {
        let ranges = moves.iter().map(|m| Range { pid: m.pid, addr: m.addr, bytes: m.bytes });
        self.moving.push_back(ranges.collect());
        self.let_go();
        let taken = self.hands.give(Job::Execute(moves)).is_ok();
        if taken {
            self.job_given(entry);
        } else {
            self.moving.pop_back();
            self.let_go();
            self.summary.spent.ticks_busy += 1;
        }
        taken
    }

    /// Of bytes left in the best tier, what one of its arenas of one of `clients` may take.
    pub(crate) fn share_of_arena(&self, left_bytes: u64, clients: usize) -> u64 {
        let arenas = self.arenas.iter().filter(|id| self.fast.contains(id)).count();
        left_bytes / clients.max(1) as u64 / arenas.max(1) as u64
    }

    /// Lets a client give birth to `share_bytes` on each node of the best tier, and elsewhere to
    /// what it likes.
    pub(crate) fn grant_births(&self, session: &Session, share_bytes: u64) {
        for (arena, id) in self.arenas.iter().enumerate() {
            let bytes = if self.fast.contains(id) { share_bytes } else { UNLIMITED_BYTES };
            session.set_birth_budget(arena, bytes.min(UNLIMITED_BYTES).cast_signed());
        }
    }

    /// Tells a new client where its arenas are, and lets it give birth until the first decision.
    pub(crate) fn give_arenas(&self, session: &Session) {
        if self.arenas.is_empty() {
            return;
        }
        let node = |id: &NodeId| self.node_of_arena(*id);
        let left = self.fast_budget_bytes().saturating_sub(self.fast_used_bytes());
        let share = self.share_of_arena(left, self.clients.len() + 1);
        // A share of a peak that nobody has seen yet is nothing: begin with something.
        let is_share = matches!(self.config.fast, Limit::ShareOfPeak(_));
        let share = if is_share { share.max(FIRST_GRANT_BYTES) } else { share };
        self.grant_births(session, share);
        session.set_small_arena(0);
        session.set_arenas(&self.arenas.iter().map(node).collect::<Vec<_>>());
    }

    fn plan_births(&self, plan: &BirthPlan) {
        let number = self.numbers.get(&plan.pid);
        let Some(client) = number.and_then(|number| self.clients.get(number)) else { return };
        for (nodes, bytes) in &plan.tiers {
            let arenas = || self.arenas.iter().enumerate().filter(|(_, id)| nodes.contains(id));
            let share = bytes / arenas().count().max(1) as u64;
            for (arena, _) in arenas() {
                let bytes = share.min(UNLIMITED_BYTES).cast_signed();
                client.session.set_birth_budget(arena, bytes);
            }
        }
        let small = plan.tiers.get(plan.small_tier).and_then(|(nodes, _)| nodes.first());
        if let Some(arena) = small.and_then(|node| self.arenas.iter().position(|id| id == node)) {
            client.session.set_small_arena(arena);
        }
    }

    /// Bytes of live objects in the best tier, as far as somebody looked.
    pub(crate) fn fast_used_bytes(&self) -> u64 {
        let resident = self.clients.values().flat_map(|c| self.ledger.resident_bytes(c.pid));
        resident.filter(|(node, _)| self.fast.contains(node)).map(|(_, bytes)| bytes).sum()
    }

    /// The best tier's budget now, bytes.
    pub(crate) fn fast_budget_bytes(&self) -> u64 {
        let nodes = self.fast.iter().filter_map(|id| self.machine.node(*id));
        let capacity: u64 = nodes.map(|node| node.capacity_bytes).sum();
        match self.config.fast {
            Limit::Capacity => capacity,
            Limit::Bytes(bytes) => bytes.min(capacity),
            Limit::ShareOfPeak(share) => {
                ((self.summary.objects.peak_bytes as f64 * share) as u64).min(capacity)
            }
        }
    }
}
