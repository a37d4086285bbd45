//! Where the accesses fall within one extent, and how an uneven extent is split.
//! In: sampled addresses. Out: the pieces to split an extent into. Knows nothing of the ledger.

use std::collections::HashMap;
use tiercel_machine::number::clamped_u32;

use crate::row::Row;

/// Parts of an extent that are counted apart.
pub(crate) const PARTS: usize = 8;

/// Uneven: a part with so many times the mean,
pub(crate) const UNEVEN: f32 = 2.0;

/// seen so many times.
pub(crate) const UNEVEN_HITS: u32 = 4;

/// What was sampled of each part of one extent.
pub(crate) struct Detail {
    pub(crate) addr: u64,
    pub(crate) pages: u32,
    pub(crate) since: u32,
    pub(crate) hits: [u32; PARTS],
    pub(crate) heat: [f32; PARTS],
}

/// What the ledger knows of splitting.
#[derive(Default)]
pub(crate) struct ExtentSizing {
    /// OS pages an extent has at most; 0: as configured.
    pub(crate) pages: u32,
    pub(crate) details: HashMap<u32, Detail>,
    /// The next row to look at.
    pub(crate) sweep_at: u32,
    /// Rows to be looked at before all have been since something changed.
    pub(crate) sweep_left: u32,
    /// Rows that were split off and may be joined again.
    pub(crate) split_off: u64,
}

impl Detail {
    pub(crate) fn is_of(&self, row: &Row) -> bool {
        (self.addr, self.pages) == (row.addr, row.pages)
    }

    pub(crate) fn is_uneven(&self) -> bool {
        let mean = self.heat.iter().sum::<f32>() / PARTS as f32;
        let hot = |(heat, hits): (&f32, &u32)| *heat > UNEVEN * mean && *hits >= UNEVEN_HITS;
        self.heat.iter().zip(&self.hits).any(hot)
    }

    /// OS pages and share of heat of runs of parts that are alike, none smaller than the finest.
    pub(crate) fn pieces(&self, finest: u32) -> Vec<(u32, f32)> {
        let all: f32 = self.heat.iter().sum();
        let end_of = |part: usize| {
            // Whole multiples of the finest, from the start of the extent.
            let exact = u64::from(self.pages) * (part as u64 + 1) / PARTS as u64;
            let end = exact.div_ceil(u64::from(finest)) * u64::from(finest);
            if part + 1 == PARTS { self.pages } else { clamped_u32(end).min(self.pages) }
        };
        let mut pieces: Vec<(u32, f32)> = Vec::new();
        // Heat of parts smaller than the finest goes with the next.
        let (mut start, mut waiting) = (0, 0.0);
        for part in 0..PARTS {
            let (pages, heat) = (end_of(part) - start, waiting + self.heat[part] / all);
            if pages == 0 {
                waiting = heat;
                continue;
            }
            (start, waiting) = (end_of(part), 0.0);
            let density = heat / pages as f32;
            match pieces.last_mut() {
                Some(last) if alike(last.1 / last.0 as f32, density, self.pages) => {
                    *last = (last.0 + pages, last.1 + heat);
                }
                _ => pieces.push((pages, heat)),
            }
        }
        if let Some(last) = pieces.last_mut() {
            last.1 += waiting;
        }
        pieces
    }
}

/// Whether two densities of heat (share by OS page) are as good as one; a sixteenth of the mean is
/// as good as nothing.
pub(crate) fn alike(a: f32, b: f32, pages: u32) -> bool {
    let little = 1.0 / (16.0 * pages as f32);
    a.max(b) <= (a.min(b) * UNEVEN).max(little)
}
