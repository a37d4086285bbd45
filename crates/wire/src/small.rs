//! What sites keep in small objects, as the runtime estimates it from sampled births.
//! In: the table of a session. Out: [`Small`]s, claims of the client. Knows nothing of blocks, nor
//! of what the estimates are for.

use std::os::fd::BorrowedFd;

use crate::layout::{SITES_MAX, SMALL_BYTES, SMALLS_AT};
use crate::site::{half, word};

/// Bytes copied at a time; a multiple of an entry.
const CHUNK_BYTES: usize = 64 << 10;

/// The small objects of one site, outside of blocks that are its alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Small {
    /// Index of the site; 0: unknown.
    pub site: u32,
    /// Bytes that were born, an estimate.
    pub born_bytes: u64,
    /// Bytes that live, an estimate.
    pub live_bytes: u64,
    /// Sampled births, from which these are estimated.
    pub births: u32,
    /// Of them, those that live.
    pub lives: u32,
    /// Of them, those whose end was seen.
    pub deaths: u32,
    /// The mean life of those, milliseconds.
    pub life_ms: u32,
}

/// All sites below `top` with a sampled birth.
pub(crate) fn read(fd: BorrowedFd<'_>, top: u32) -> Vec<Small> {
    let bytes = (top as usize).min(SITES_MAX) * SMALL_BYTES;
    let mut chunk = vec![0; CHUNK_BYTES.min(bytes)];
    let mut smalls = Vec::new();
    for at in (0..bytes).step_by(CHUNK_BYTES) {
        let room = chunk.len().min(bytes - at);
        // `pread` copies, and does not fill holes as touching a mapping would.
        let got = rustix::io::pread(fd, &mut chunk[..room], SMALLS_AT + at as u64).unwrap_or(0);
        let entries = (at / SMALL_BYTES..).zip(chunk[..got].chunks_exact(SMALL_BYTES));
        smalls.extend(entries.filter_map(|(site, entry)| decode(site, entry)));
    }
    smalls
}

fn decode(site: usize, entry: &[u8]) -> Option<Small> {
    let births = half(entry, 16);
    let small = Small {
        site: u32::try_from(site).ok()?,
        born_bytes: word(entry, 0),
        live_bytes: word(entry, 8),
        births,
        lives: half(entry, 20).min(births),
        deaths: half(entry, 24),
        life_ms: half(entry, 28),
    };
    (births > 0).then_some(small)
}
