//! All hosted processes, by session number and by process, and the sites of those that have left.
//! In: arrivals, departures. Out: clients, rows of sites. Knows nothing of plans, samplers or
//! sockets.

use super::client::{Client, LAST_TURNS_MAX};
use super::sites::{SiteRow, Sites};
use crate::moves::queue::MoveQueue;
use crate::observe::recording::Recording;
use std::collections::{BTreeMap, HashMap};
use tiercel_ledger::Ledger;
use tiercel_wire::Record;

/// The hosted processes.
pub(crate) struct Clients {
    by_number: BTreeMap<u32, Client>,
    /// Session number of each process.
    numbers: HashMap<u32, u32>,
    next_number: u32,
    departed: Sites,
    /// Records of one client on their way to the ledger.
    records: Vec<Record>,
}

/// Who learns of records.
pub(crate) struct Consumers<'a> {
    pub(crate) ledger: &'a mut Ledger,
    /// Its modelled mover learns of deaths.
    pub(crate) queue: &'a mut MoveQueue,
    pub(crate) recording: Option<&'a mut Recording>,
}

/// What a drain of all rings found.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Drained {
    /// Most records of one client.
    pub(crate) fullest: usize,
    /// Some rings are not empty yet.
    pub(crate) has_more: bool,
}

impl Clients {
    pub(crate) fn new() -> Clients {
        Clients {
            by_number: BTreeMap::new(),
            numbers: HashMap::new(),
            next_number: 1,
            departed: Sites::default(),
            records: Vec::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_number.len()
    }

    /// How many are of a user.
    pub(crate) fn of_user(&self, uid: u32) -> usize {
        self.iter().filter(|client| client.peer.uid() == uid).count()
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
        self.by_number.insert(client.number, client);
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<Client> {
        let client = self.by_number.remove(&number)?;
        self.numbers.remove(&client.pid);
        Some(client)
    }

    /// Keeps what a client's sites did after it has left.
    pub(crate) fn keep_sites(&mut self, client: &mut Client, ledger: &Ledger) {
        self.departed.keep(&client.present(ledger));
    }

    /// Clients that are no longer what attached: they run another program, for example.
    pub(crate) fn changed(&self) -> Vec<u32> {
        let changed = self.by_number.iter().filter(|(_, client)| client.has_changed());
        changed.map(|(number, _)| *number).collect()
    }

    /// Drains all rings, and heals clients that lost records.
    pub(crate) fn drain(&mut self, to: &mut Consumers<'_>, now_ms: u64) -> Drained {
        let mut all = Drained::default();
        for client in self.by_number.values_mut() {
            client.session.set_clock_ms(now_ms);
            let drained = drain_turn(client, &mut self.records, to, now_ms);
            all.fullest = all.fullest.max(drained.records);
            all.has_more |= drained.more;
            if !drained.more {
                client.heal(to.ledger, now_ms);
                to.record_events();
            }
        }
        all
    }

    /// Drains everything that a leaving client left behind, within a bound.
    pub(crate) fn drain_last(&mut self, number: u32, to: &mut Consumers<'_>, now_ms: u64) {
        let Some(client) = self.by_number.get_mut(&number) else { return };
        for _ in 0..LAST_TURNS_MAX {
            if !drain_turn(client, &mut self.records, to, now_ms).more {
                break;
            }
        }
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

    /// Bytes born at each site, by hash, those of departed clients included.
    pub(crate) fn born_bytes(&self) -> HashMap<u64, u64> {
        let mut sums = self.departed.born_bytes();
        self.iter().for_each(|client| client.uses.add_born_bytes(&mut sums));
        sums
    }
}

impl Consumers<'_> {
    fn record_events(&mut self) {
        if let Some(recording) = &mut self.recording {
            recording.consume(self.ledger);
        }
    }
}

fn drain_turn(
    client: &mut Client,
    records: &mut Vec<Record>,
    to: &mut Consumers<'_>,
    now_ms: u64,
) -> tiercel_wire::Drained {
    let queue = &mut *to.queue;
    let died = |pid, addr, bytes| queue.died(pid, addr, bytes);
    let drained = client.drain(to.ledger, records, now_ms, died);
    to.record_events();
    drained
}
