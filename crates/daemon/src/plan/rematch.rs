//! Symbolizes stacks that a plan may know from another build, on a thread of its own.
//! In: stacks by address. Out: their keys by function and line, when they are found. Knows nothing
//! of plans but these keys.
//!
//! Parsing debug information takes time, and the file may be anything: the loop never waits for it.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use tiercel_plan::{StackKeys, numbered};
use tiercel_symbolize::{Reader, SiteFrame, Symbols};

/// Stacks that may wait; further ones are requested again at the next drain. About a second's work
/// at a millisecond each.
const REQUESTS_MAX: usize = 1024;

/// Stacks that are symbolized over all programs: half a minute's work at the millisecond that each
/// takes at first, and as many as sites are kept.
const STACKS_MAX: usize = 1 << 15;

type Request = (u64, Arc<[SiteFrame]>);
type Found = (u64, StackKeys);

/// Stacks that were requested. The thread starts with the first of them.
pub(crate) struct Rematch {
    reader: Reader,
    thread: Option<(SyncSender<Request>, Receiver<Found>)>,
    requested: HashSet<u64>,
}

impl Rematch {
    pub(crate) fn new(reader: Reader) -> Rematch {
        Rematch { reader, thread: None, requested: HashSet::new() }
    }

    /// Requests the keys of a stack, once; false when the request has to be repeated.
    pub(crate) fn request(&mut self, hash: u64, frames: &Arc<[SiteFrame]>) -> bool {
        if self.requested.contains(&hash) || self.requested.len() >= STACKS_MAX {
            return true;
        }
        if self.thread.is_none() {
            self.thread = start(&self.reader);
        }
        let Some((requests, _)) = &self.thread else {
            return true; // without a thread, sites of rebuilt modules stay unknown
        };
        let taken = requests.try_send((hash, Arc::clone(frames))).is_ok();
        if taken {
            self.requested.insert(hash);
        }
        taken
    }

    /// What was found since the last call.
    pub(crate) fn found(&self) -> Vec<Found> {
        self.thread.iter().flat_map(|(_, found)| found.try_iter()).collect()
    }
}

fn start(reader: &Reader) -> Option<(SyncSender<Request>, Receiver<Found>)> {
    let (requests, inbox) = sync_channel::<Request>(REQUESTS_MAX);
    let (outbox, found) = sync_channel::<Found>(STACKS_MAX);
    let reader = reader.clone();
    let work = move || {
        let mut symbols = Symbols::new(&reader);
        while let Ok((hash, frames)) = inbox.recv() {
            if outbox.send((hash, keys(&mut symbols, &frames))).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("tiercel-names".into()).spawn(work).ok()?;
    Some((requests, found))
}

fn keys(symbols: &mut Symbols, frames: &[SiteFrame]) -> StackKeys {
    let named: Vec<(String, String, String, u32)> = frames
        .iter()
        .map(|frame| {
            let named = symbols.innermost(frame);
            let (file, line) = named.line.unwrap_or_default();
            let text = |path: &std::path::Path| path.to_string_lossy().into_owned();
            let number = numbered(Some((!frame.path.as_os_str().is_empty(), frame.addr)));
            (text(&frame.path), named.function, text(&file), line.max(number))
        })
        .collect();
    StackKeys::of(named.iter().map(|(module, function, file, line)| {
        (module.as_str(), function.as_str(), file.as_str(), *line)
    }))
}
