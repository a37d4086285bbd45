//! Recording a run as a profile.
//! In: the ledger's events, samples, clients that come and go. Out: a [`Profile`] without names of
//! functions, which [`name_sites`] finds later. Knows nothing of moves: a daemon that records
//! leaves all memory where the program and the kernel put it.

use crate::clients::client::Client;
use crate::clients::client_uses::ClientUses;
use crate::clients::origin::Origin;
use crate::summary::Summary;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use tiercel_ledger::{Ledger, LedgerEvent};
use tiercel_machine::Machine;
use tiercel_profile::{
    Frame, Name, Names, Observed, Profile, Recorder, RecorderConfig, Run, Site, TEXT_BYTES_MAX,
};
use tiercel_sampler::{Method, Sampler};
use tiercel_symbolize::{SiteFrame, Symbols, hex};
use tiercel_wire::layout::PHASE_START;
use tiercel_wire::{Sample, Session};

/// Sites that get names, those accessed most first: 4 s at one new frame a site, since a frame that
/// was not seen before takes up to a millisecond.
pub const NAMED_MAX: usize = 4096;

/// Processes whose memory beside their objects is read: 30 us each, so at most half a millisecond
/// for each drain of the sampler.
const STATUS_READS_MAX: usize = 16;

/// A recorder, and the ledger's events on their way to it.
pub(crate) struct Recording {
    recorder: Recorder,
    events: Vec<LedgerEvent>,
    peak: Peak,
}

/// Peaks over all reads, bytes: objects are known some time after they were made, so that the
/// difference at a single read would count the newest as memory beside the objects.
#[derive(Default)]
struct Peak {
    private_bytes: u64,
    object_bytes: u64,
}

impl Peak {
    fn add(&mut self, private_bytes: u64, object_bytes: u64) {
        self.private_bytes = self.private_bytes.max(private_bytes);
        self.object_bytes = self.object_bytes.max(object_bytes);
    }

    fn untracked_bytes(&self) -> u64 {
        self.private_bytes.saturating_sub(self.object_bytes)
    }
}

impl Recording {
    /// A recording of what happens in this ledger from now on.
    pub(crate) fn new(
        config: RecorderConfig,
        sampler: Option<&dyn Sampler>,
        ledger: &mut Ledger,
    ) -> Recording {
        ledger.listen();
        let misses_only = sampler.is_some_and(|sampler| sampler.method() == Method::Misses);
        let config = RecorderConfig {
            misses_only,
            sees_dirtied: sampler.is_some_and(|sampler| sampler.capabilities().dirtied),
            ..config
        };
        Recording { recorder: Recorder::new(config), events: Vec::new(), peak: Peak::default() }
    }

    /// Consumes the ledger's events.
    pub(crate) fn consume(&mut self, ledger: &mut Ledger) {
        ledger.take_events(&mut self.events);
        self.events.iter().for_each(|event| self.recorder.consume(event));
    }

    pub(crate) fn sampled(&mut self, sample: &Sample) {
        self.recorder.sampled(sample);
    }

    pub(crate) fn client_came(&mut self, client: &Client, parent: Option<u32>, now_ms: u64) {
        self.recorder.process_born(client.pid, parent, &client.program, now_ms);
    }

    /// The client's objects are still in the ledger; its sites are known.
    pub(crate) fn client_left(&mut self, client: &Client, ledger: &mut Ledger, now_ms: u64) {
        self.consume(ledger);
        let mut names = ClientNames { uses: &client.uses, session: &client.session };
        self.recorder.process_gone(client.pid, now_ms, &mut names);
    }

    /// Reads how much memory processes have beside their objects.
    pub(crate) fn note_untracked<'a>(
        &mut self,
        clients: impl Iterator<Item = &'a Client>,
        ledger: &Ledger,
    ) {
        let (mut private, mut objects) = (0, 0);
        for client in clients.take(STATUS_READS_MAX) {
            let status = std::fs::read_to_string(format!("/proc/{}/status", client.pid));
            let held = status.map_or(0, |status| private_bytes(&status));
            // Dead memory that the heap keeps is no memory beside the objects.
            let idle = client.session.idle_bytes().into_iter().fold(0, u64::saturating_add);
            private += held.saturating_sub(idle);
            objects += client.live_bytes(ledger);
        }
        self.peak.add(private, objects);
    }

    /// The profile. The caller fills in what only it knows of the run.
    pub(crate) fn finish(self, machine: Machine, summary: &Summary) -> Profile {
        let (records, samples) = (&summary.records, &summary.samples);
        // With a single CPU no program runs while the daemon works.
        let is_one = thread::available_parallelism().is_ok_and(|cpus| cpus.get() == 1);
        let spent = &summary.spent;
        let own_ns = spent.records_ns + spent.samples_ns + spent.ledger_ns;
        let own_ns = if is_one { own_ns } else { 0 };
        let run = Run {
            duration_ns: summary.elapsed_ms * 1_000_000,
            ending: "unknown".to_owned(),
            sampler: summary.sampler.clone(),
            sampler_note: summary.sampler_note.clone(),
            observed: Observed {
                births: summary.objects.born,
                born_bytes: summary.objects.born_bytes,
                records: records.drained,
                records_lost: records.lost,
                births_refused: summary.objects.refused,
                samples: samples.seen,
                samples_outside: samples.outside,
                samples_lost: samples.lost,
                throttled: samples.throttled,
                scans_skipped: samples.blind,
                phases_refused: 0,
                untracked_bytes: self.peak.untracked_bytes(),
                sampling_ns: summary.spent.theirs_ns + own_ns,
            },
            ..Run::default()
        };
        self.recorder.finish(machine, run)
    }
}

/// Private memory of a process, its page tables included, from its `/proc/PID/status`.
fn private_bytes(status: &str) -> u64 {
    let kib = |line: &str| {
        let (name, value) = line.split_once(':')?;
        let counts = matches!(name, "RssAnon" | "RssShmem" | "VmPTE");
        counts.then(|| value.trim().trim_end_matches(" kB").parse::<u64>().ok())?
    };
    status.lines().filter_map(kib).sum::<u64>().saturating_mul(1024)
}

struct ClientNames<'a> {
    uses: &'a ClientUses,
    session: &'a Session,
}

impl Names for ClientNames<'_> {
    fn site(&mut self, number: u32) -> Site {
        let Some((hash, frames)) = self.uses.site(number) else {
            return unborn_site(number, self.session);
        };
        if let Origin::Data(name) = self.uses.origins.of(number) {
            return data_site(hash, &name);
        }
        let frame = |frame: &SiteFrame| Frame {
            module: bounded(&frame.path.to_string_lossy()),
            build_id: hex::text(&frame.build_id).into(),
            address: frame.addr,
            names: Vec::new(),
        };
        Site { hash, frames: frames.iter().map(frame).collect() }
    }

    fn phase(&mut self, number: u64) -> Arc<str> {
        if number == 0 {
            return PHASE_START.into(); // marked loops return to it
        }
        let known = u32::try_from(number).ok().and_then(|number| self.session.phase_name(number));
        known.map_or_else(|| format!("phase {number}"), |known| known.name).into()
    }
}

/// A site that no object was born at, as that of code that accesses: the session alone knows it.
fn unborn_site(number: u32, session: &Session) -> Site {
    let Some(site) = session.site(number) else { return Site::default() };
    let frame = |frame: &tiercel_wire::Frame| {
        let module = frame.module.and_then(|module| session.module(module));
        let (path, build_id) = module.map(|one| (one.path, one.build_id)).unwrap_or_default();
        Frame {
            module: bounded(&path.to_string_lossy()),
            build_id: hex::text(&build_id).into(),
            address: frame.offset,
            names: Vec::new(),
        }
    };
    Site { hash: site.hash, frames: site.frames.iter().map(frame).collect() }
}

/// A site that no call has: its only frame is in no module, and has its name.
fn data_site(hash: u64, name: &str) -> Site {
    let names = vec![Name { function: bounded(name), file: "".into(), line: 0 }];
    let frame = Frame { module: "".into(), build_id: "".into(), address: 0, names };
    Site { hash, frames: vec![frame] }
}

/// Finds the functions and lines of the sites that were accessed most.
pub fn name_sites(profile: &mut Profile, symbols: &mut Symbols) {
    let mut weights: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for object in &profile.objects {
        let sum = &mut weights.entry(object.site).or_default().1;
        *sum = sum.saturating_add(object.born_bytes);
    }
    for access in &profile.accesses {
        let site = profile.objects[access.object as usize].site;
        let sum = &mut weights.entry(site).or_default().0;
        *sum = sum.saturating_add(access.accesses());
    }
    for access in &profile.access_sites {
        let sum = &mut weights.entry(access.code).or_default().0;
        *sum = sum.saturating_add(access.accesses());
    }
    let mut order: Vec<u32> = weights.keys().copied().collect();
    order.sort_by_key(|site| std::cmp::Reverse(weights[site]));
    for site in order.into_iter().take(NAMED_MAX) {
        let frames = profile.sites[site as usize].frames.iter_mut();
        for frame in frames.filter(|frame| frame.names.is_empty()) {
            frame.names = names(frame, symbols);
        }
    }
}

fn names(frame: &Frame, symbols: &mut Symbols) -> Vec<Name> {
    let Some(build_id) = hex::bytes(&frame.build_id) else { return Vec::new() };
    let path = Path::new(&*frame.module).into();
    let named = symbols.names(&SiteFrame { path, build_id, addr: frame.address });
    let known = named.into_iter().filter(|named| !named.function.is_empty());
    let name = |named: tiercel_symbolize::Named| {
        let (file, line) = named.line.unwrap_or_default();
        let file = bounded(&file.to_string_lossy());
        Name { function: bounded(&named.function), file, line }
    };
    known.take(tiercel_profile::NAMES_MAX).map(name).collect()
}

/// Cuts a text to the length that a profile takes.
fn bounded(text: &str) -> Arc<str> {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_memory_is_what_no_file_backs() {
        let status = "Name:\tapp\nVmPTE:\t      40 kB\nRssAnon:\t    2000 kB\nRssFile:\t    \
                      9000 kB\nRssShmem:\t     100 kB\nRssAnon\nRssShmem: many\n";
        assert_eq!(private_bytes(status), 2140 * 1024);
        assert_eq!(private_bytes(""), 0);
    }

    #[test]
    fn freed_memory_that_is_still_resident_is_not_untracked() {
        let mut peak = Peak::default();
        for (all, objects) in [(10, 100), (103, 100), (103, 20), (0, 0)] {
            peak.add(all, objects);
        }
        assert_eq!(peak.untracked_bytes(), 3);
    }
}
