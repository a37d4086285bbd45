//! All hosted processes, by session number and by process, and the sites of those that have left.
//! In: arrivals, departures. Out: clients, rows of sites. Knows nothing of plans, samplers or
//! sockets.

use super::client::Client;
use super::layouts::Layouts;
use super::parents::Parents;
use super::processes::{ProcessRow, largest};
use super::shares::SharedMappings;
use super::sites::{SiteRow, Sites};
use super::turns::{Served, Turns};
use crate::moves::queue::MoveQueue;
use crate::net::arrival::Arrival;
use crate::observe::recording::Recording;
use crate::quota::{Account, Allowance, Quota};
use std::collections::{BTreeMap, HashMap};
use std::time::Instant;
use tiercel_ledger::Ledger;
use tiercel_ledger::confidence::{self, EvidenceOfAll, Ranking};
use tiercel_symbolize::Reader;
use tiercel_wire::{ObjectSnapshot, Record, Sample, Timeline};

/// The hosted processes.
pub(crate) struct Clients {
    by_number: BTreeMap<u32, Client>,
    /// Session number of each process.
    numbers: HashMap<u32, u32>,
    next_number: u32,
    /// Whose turn it is to be served.
    turns: Turns,
    departed: Sites,
    parents: Parents,
    /// Memory for the sites of those that are there, and of each of their users.
    sites: Account,
    site_allowances: HashMap<u32, Allowance>,
    /// Symbols of static data.
    layouts: Layouts,
    /// Memory that several mappings show.
    pub(crate) shared: SharedMappings,
    /// Records of one client on their way to the ledger.
    records: Vec<Record>,
    /// What samples said of all sites, those of departed clients included.
    evidence: EvidenceOfAll,
    /// How far rates that the sampler states may be off whatever the number of samples.
    systematic: f64,
}

/// Who learns of records.
pub(crate) struct Consumers<'a> {
    pub(crate) ledger: &'a mut Ledger,
    /// Its modelled mover learns of deaths.
    pub(crate) queue: &'a mut MoveQueue,
    pub(crate) recording: Option<&'a mut Recording>,
}

/// What a turn did.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turn {
    /// Most records of one client.
    pub(crate) fullest: usize,
    /// There is more to do.
    pub(crate) has_more: bool,
    /// Clients that have left, and of which nothing more will come.
    pub(crate) gone: Vec<u32>,
}

impl Clients {
    pub(crate) fn new(quota: Quota, symbols: &Reader) -> Clients {
        Clients {
            by_number: BTreeMap::new(),
            numbers: HashMap::new(),
            next_number: 1,
            turns: Turns::default(),
            departed: Sites::new(quota.site_account()),
            parents: Parents::default(),
            sites: quota.site_account(),
            site_allowances: HashMap::new(),
            layouts: Layouts::new(symbols.clone()),
            shared: SharedMappings::default(),
            records: Vec::new(),
            evidence: EvidenceOfAll::default(),
            systematic: 0.0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_number.len()
    }

    /// How many are of a user.
    pub(crate) fn of_user(&self, uid: u32) -> usize {
        self.turns.of_user(uid)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_number.is_empty()
    }

    pub(crate) fn get(&self, number: u32) -> Option<&Client> {
        self.by_number.get(&number)
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut Client> {
        self.by_number.get_mut(&number)
    }

    /// The process that forked this one, by what both claim: only a process of the same user can be
    /// it, one that is there or one that left lately. `None` also where several are, in different
    /// namespaces.
    pub(crate) fn parent_of(&self, child: &Arrival) -> Option<u32> {
        let (parent_pid, user) = (child.parent_pid, child.peer.uid());
        if parent_pid == 0 || parent_pid == child.stated_pid {
            return None;
        }
        let is_parent = |one: &&Client| one.stated_pid == parent_pid && one.user == user;
        let mut there = self.iter().filter(is_parent).map(|one| one.pid);
        let Some(parent) = there.next() else {
            let is_there = |pid| self.number_of(pid).is_some();
            return self.parents.find(user, parent_pid, Instant::now(), is_there);
        };
        there.next().is_none().then_some(parent)
    }

    /// Session number of a process.
    pub(crate) fn number_of(&self, pid: u32) -> Option<u32> {
        self.numbers.get(&pid).copied()
    }

    pub(crate) fn of_pid(&self, pid: u32) -> Option<&Client> {
        self.get(self.number_of(pid)?)
    }

    pub(crate) fn of_pid_mut(&mut self, pid: u32) -> Option<&mut Client> {
        self.get_mut(self.number_of(pid)?)
    }

    /// By session number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Client> {
        self.by_number.values()
    }

    /// By session number.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Client> {
        self.by_number.values_mut()
    }

    /// Session numbers, ascending.
    pub(crate) fn numbers(&self) -> Vec<u32> {
        self.by_number.keys().copied().collect()
    }

    /// The number of the next session.
    pub(crate) fn take_number(&mut self) -> u32 {
        let number = self.next_number;
        self.next_number = number.checked_add(1).unwrap_or(1);
        number
    }

    pub(crate) fn insert(&mut self, client: Client) {
        self.numbers.insert(client.pid, client.number);
        self.turns.came(client.user, client.number);
        self.by_number.insert(client.number, client);
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<Client> {
        let client = self.by_number.remove(&number)?;
        self.numbers.remove(&client.pid);
        self.turns.left(client.user, number);
        self.parents.left(client.user, client.stated_pid, client.pid, Instant::now());
        if self.turns.of_user(client.user) == 0 {
            self.site_allowances.remove(&client.user);
        }
        Some(client)
    }

    /// What the sites of a user's clients may take, for one more client.
    pub(crate) fn site_allowance(&mut self, uid: u32) -> Allowance {
        self.site_allowances.entry(uid).or_insert_with(|| self.sites.allowance()).clone()
    }

    /// Whether an access must wait for symbols, by which it is attributed.
    pub(crate) fn awaits_symbols(&mut self, pid: u32, addr: u64) -> bool {
        self.of_pid_mut(pid).is_some_and(|client| client.awaits_symbols(addr))
    }

    /// A process that was forked has these objects of its parent, but for those that show what its
    /// parent shows as well.
    pub(crate) fn forked(&mut self, parent: u32, child: u32, objects: &mut Vec<ObjectSnapshot>) {
        self.shared.forked(parent, child);
        objects.retain(|object| !self.shared.is_view(child, object.addr));
    }

    /// A process is gone: what it showed and others show too is theirs.
    pub(crate) fn forget_shares(&mut self, pid: u32, ledger: &mut Ledger) {
        let heirs = self.shared.gone(pid, 0..u64::MAX);
        heirs.iter().for_each(|(heir, object)| ledger.inherit_object(*heir, object));
    }

    /// A client has left: its last records are taken in its user's turns.
    pub(crate) fn leave(&mut self, number: u32) {
        if let Some(client) = self.by_number.get_mut(&number) {
            client.leave();
        }
    }

    /// A tick has passed: the ledger learns who is behind.
    pub(crate) fn tick(&mut self, ledger: &mut Ledger) {
        for client in self.by_number.values_mut() {
            if !client.tick() {
                ledger.process_behind(client.pid);
            }
        }
    }

    /// Keeps what a client's sites did after it has left.
    pub(crate) fn keep_sites(&mut self, client: &mut Client, ledger: &Ledger) {
        client.uses.end_rounds();
        self.departed.keep(&client.present(ledger));
    }

    /// A sample hit an object of a site of a process; so many of its accesses may be another's.
    pub(crate) fn sampled(&mut self, site: u32, sample: &Sample, doubt: f64) {
        let number = self.numbers.get(&sample.pid);
        if let Some(client) = number.and_then(|number| self.by_number.get_mut(number)) {
            let doubt = doubt + self.systematic * f64::from(sample.weight);
            client.uses.sampled(site, sample, doubt);
            self.evidence.add(f64::from(sample.weight));
        }
    }

    /// How far the rates that the sampler states may be off whatever the number of samples.
    pub(crate) fn set_systematic(&mut self, systematic: f64) {
        self.systematic = systematic;
    }

    /// The sampler brings more samples: those so far are a round, if there are any.
    pub(crate) fn end_round(&mut self) {
        if self.evidence.has_round() {
            let of_all = self.evidence;
            self.by_number.values_mut().for_each(|client| client.uses.end_round(&of_all));
            self.evidence.end_round();
        }
    }

    /// How sure the order of the sites of present clients is.
    pub(crate) fn ranking(&self) -> Ranking {
        let parts: Vec<_> = self.iter().flat_map(|client| client.uses.parts()).collect();
        confidence::rank(&parts, &self.evidence).1
    }

    /// What samples said of all sites.
    pub(crate) fn evidence(&self) -> &EvidenceOfAll {
        &self.evidence
    }

    /// Of some clients, those that have not left.
    pub(crate) fn there<'a>(&'a self, numbers: &'a [u32]) -> impl Iterator<Item = &'a Client> {
        numbers.iter().filter_map(|number| self.get(*number)).filter(|client| !client.has_left())
    }

    /// One turn of all users: takes records, reads on in object tables.
    pub(crate) fn turn(&mut self, to: &mut Consumers<'_>, timeline: &Timeline) -> Turn {
        let mut turn = Turn::default();
        let Clients { by_number, turns, records, shared, .. } = self;
        turn.has_more = turns.turn(|number, units| {
            let Some(client) = by_number.get_mut(&number) else { return Served::default() };
            let before = client.records;
            let served = to.serve(client, records, shared, timeline, units);
            let taken = usize::try_from(client.records - before).unwrap_or(usize::MAX);
            turn.fullest = turn.fullest.max(taken);
            turn.gone.extend(client.is_done().then_some(number));
            served
        });
        self.layouts.collect();
        for client in self.by_number.values_mut() {
            client.divide_statics(&mut self.layouts, to.ledger);
        }
        to.record_events();
        turn
    }

    /// Takes what a leaving client left behind, about `units`; the rest is lost.
    pub(crate) fn drain_last(
        &mut self,
        number: u32,
        to: &mut Consumers<'_>,
        timeline: &Timeline,
        mut units: usize,
    ) {
        let Some(client) = self.by_number.get_mut(&number) else { return };
        client.leave();
        while !client.is_done() && units > 0 {
            let served = to.serve(client, &mut self.records, &mut self.shared, timeline, units);
            units = units.saturating_sub(served.work);
        }
        client.lose_rest();
        to.ledger.settle_last(client.pid);
        to.record_events();
    }

    /// Bytes of live objects.
    pub(crate) fn live_bytes(&self, ledger: &Ledger) -> u64 {
        self.iter().map(|client| client.live_bytes(ledger)).sum()
    }

    /// All sites, those of departed clients included; those that deserve `fast_bytes` most are
    /// marked.
    pub(crate) fn site_rows(&mut self, ledger: &Ledger, fast_bytes: u64) -> Vec<SiteRow> {
        let present = self.by_number.values_mut().map(|client| client.present(ledger));
        self.departed.rows(present, fast_bytes)
    }

    /// The largest of the hosted processes.
    pub(crate) fn process_rows(&self, ledger: &Ledger, limit: usize) -> Vec<ProcessRow> {
        largest(self.iter().map(|client| ProcessRow::of(client, ledger)).collect(), limit)
    }

    /// Bytes born at each site, by hash, those of departed clients included.
    pub(crate) fn born_bytes(&self) -> HashMap<u64, u64> {
        let mut sums = self.departed.born_bytes();
        self.iter().for_each(|client| client.uses.add_born_bytes(&mut sums));
        sums
    }
}

impl Consumers<'_> {
    fn serve(
        &mut self,
        client: &mut Client,
        records: &mut Vec<Record>,
        shares: &mut SharedMappings,
        timeline: &Timeline,
        units: usize,
    ) -> Served {
        let queue = &mut *self.queue;
        let died = |pid, addr, bytes| queue.died(pid, addr, bytes);
        let served = client.serve((self.ledger, shares), records, timeline, units, died);
        self.record_events();
        served
    }

    fn record_events(&mut self) {
        if let Some(recording) = &mut self.recording {
            recording.consume(self.ledger);
        }
    }
}
