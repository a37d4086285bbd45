//! Symbols of static data, read on a thread of its own.
//! In: modules of hosted processes, and the users whose they are. Out: the data symbols of each,
//! when they are read. Knows nothing of addresses in processes.
//!
//! The file may be anything, and reading it takes milliseconds: the loop never waits for it.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use tiercel_symbolize::{DataSymbol, Reader, SiteFrame, Symbols};

/// Modules that may wait; further ones are requested again at the next drain.
const REQUESTS_MAX: usize = 256;

/// Modules whose symbols are kept, of all users; of further ones the data has no names. At most
/// some 100 MiB, if each had as many symbols as are read of one; a few hundred KiB in practice.
const MODULES_MAX: usize = 1024;

/// User, file and build.
type Key = (u32, Arc<Path>, Arc<[u8]>);
type Found = (Key, Arc<[DataSymbol]>);

/// Data symbols by module. The thread starts with the first request.
pub(crate) struct Layouts {
    reader: Reader,
    thread: Option<(SyncSender<Key>, Receiver<Found>)>,
    /// `None`: requested.
    known: HashMap<Key, Option<Arc<[DataSymbol]>>>,
}

impl Layouts {
    pub(crate) fn new(reader: Reader) -> Layouts {
        Layouts { reader, thread: None, known: HashMap::new() }
    }

    /// The symbols of a user's module, ascending; `None` while they are being read.
    pub(crate) fn of(&mut self, uid: u32, module: &SiteFrame) -> Option<Arc<[DataSymbol]>> {
        let key = (uid, Arc::clone(&module.path), Arc::clone(&module.build_id));
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        if self.thread.is_none() {
            self.thread = start(&self.reader);
        }
        let thread = self.thread.as_ref().filter(|_| self.known.len() < MODULES_MAX);
        let Some((requests, _)) = thread else { return Some([].into()) };
        if requests.try_send(key.clone()).is_ok() {
            self.known.insert(key, None);
        }
        None
    }

    /// Takes in what was read since the last call; true when that was anything.
    pub(crate) fn collect(&mut self) -> bool {
        let found: Vec<Found> =
            self.thread.iter().flat_map(|(_, found)| found.try_iter()).collect();
        let has_found = !found.is_empty();
        self.known.extend(found.into_iter().map(|(key, symbols)| (key, Some(symbols))));
        has_found
    }
}

fn start(reader: &Reader) -> Option<(SyncSender<Key>, Receiver<Found>)> {
    let (requests, inbox) = sync_channel::<Key>(REQUESTS_MAX);
    let (outbox, found) = sync_channel::<Found>(MODULES_MAX);
    let reader = reader.clone();
    let work = move || {
        let mut symbols = Symbols::new(&reader);
        while let Ok(key) = inbox.recv() {
            let (uid, path, build_id) = key.clone();
            let data = symbols.owned_by(uid).data(&SiteFrame { path, build_id, addr: 0 });
            if outbox.send((key, data.into())).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("tiercel-data".into()).spawn(work).ok()?;
    Some((requests, found))
}
