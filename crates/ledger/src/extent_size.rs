//! How finely objects are cut: extents follow the budget, and split where their heat is uneven.
//! In: the budget, samples, ticks. Out: rows split and joined. Knows nothing of tiers.
//!
//! MAT's extents have 64 MiB (4.5.1). Under a small budget such an extent never fits, and one that
//! is hot in one corner is half a loss in any tier. So extents have at most a sixteenth of the
//! budget, and the ones whose samples fall unevenly are split further, as regions are by DAMON:
//!
//! ```text
//! extent, 64 MiB   [ . | . | . | # | # | . | . | . ]   what was sampled of each eighth
//! next tick        [     24 MiB    | 16 MiB  |  24 MiB   ]
//! ```
//! Neighbours that have become alike are joined again. Both are bounded at each tick, and cost
//! nothing where no extent is larger than the finest: ten million small objects are not looked at.

use tiercel_machine::NodeId;
use tiercel_machine::number::{clamped_u32, index, nearest_f32, signed};

use crate::config::OBJECT_EXTENTS_MAX;
use crate::ledger::Ledger;
use crate::row::{FRESH, Home, LAST, PAGE_SHIFT, Row, Stamp};
use crate::sub_extent::{Detail, PARTS};

/// Extents the budget has room for, at least: what is misjudged then is a sixteenth of it.
pub const BUDGET_EXTENTS: u64 = 16;

/// Extents whose insides are counted at a time.
pub const DETAILS_MAX: usize = 4096;

/// Rows looked at in a tick for splitting and joining: 4 MiB of slab, about 1 ms.
pub const SWEEP_ROWS: u32 = 1 << 16;

/// Rows joined in a tick; each costs two searches of the index.
pub const JOINS_MAX: u32 = 4096;

/// Extents made of larger ones in a tick, before the next tick goes on: 2 ms, at 0.1 us each.
const SPLITS_MAX: u32 = 1 << 14;

/// Samples after which an extent's parts are compared: four a part.
const HITS: u32 = 32;
/// Intervals after which counts are too old to be compared.
const STALE: u32 = 30;
/// Neighbours are alike when the hotter one has less than so many times the other's heat by byte.
/// Below `UNEVEN`, so that what was split for a reason is not joined at once.
const ALIKE: f32 = 1.5;

impl Ledger {
    /// Sets the budget of fast memory, which bounds the size of extents: each has at most a part of
    /// it, within the configured limits. Larger ones are split at the next ticks, equal neighbours
    /// are joined.
    pub fn fit_extents(&mut self, budget_bytes: u64) {
        let part = budget_bytes / BUDGET_EXTENTS;
        let part = if part == 0 { 0 } else { 1 << part.ilog2() };
        let most = self.config.extent_bytes;
        let bytes = part.max(self.finest_bytes()).min(most);
        let pages = clamped_u32(bytes >> PAGE_SHIFT);
        if pages != self.extent_pages_now() {
            self.sizing.pages = pages;
            self.sizing.sweep_left = self.rows.slots();
        }
    }

    /// Bytes of the largest extents made now.
    pub fn extent_bytes(&self) -> u64 {
        u64::from(self.extent_pages_now()) << PAGE_SHIFT
    }

    pub(crate) fn extent_pages_now(&self) -> u32 {
        match self.sizing.pages {
            0 => clamped_u32(self.config.extent_bytes >> PAGE_SHIFT),
            pages => pages,
        }
    }

    fn finest_bytes(&self) -> u64 {
        self.config.finest_bytes.min(self.config.extent_bytes)
    }

    /// A sample hit a record: counts it in its part of the extent, if it could be split.
    #[inline]
    pub(crate) fn count_within(&mut self, number: u32, addr: u64, heat: f32) {
        if self.rows[number].bytes() > self.finest_bytes() {
            self.count_part(number, addr, heat);
        }
    }

    fn count_part(&mut self, number: u32, addr: u64, heat: f32) {
        let row = &self.rows[number];
        let details = &mut self.sizing.details;
        if details.len() >= DETAILS_MAX && !details.contains_key(&number) {
            return;
        }
        let anew = || Detail {
            addr: row.addr,
            pages: row.pages,
            since: self.interval,
            hits: [0; PARTS],
            heat: [0.0; PARTS],
        };
        let detail = details.entry(number).or_insert_with(anew);
        if !detail.is_of(row) {
            *detail = anew();
        }
        let part = index((addr - row.addr) * PARTS as u64 / row.bytes());
        detail.hits[part] += 1;
        detail.heat[part] += heat;
    }

    /// Splits what is uneven or too large, joins what is alike; bounded.
    pub(crate) fn resize_extents(&mut self) {
        self.split_uneven();
        if self.sizing.sweep_left == 0 && self.sizing.split_off > 0 {
            self.sizing.sweep_left = self.rows.slots();
        }
        let slots = self.rows.slots();
        let (mut joins_left, mut made) = (JOINS_MAX, 0);
        for _ in 0..self.sizing.sweep_left.min(SWEEP_ROWS).min(slots) {
            if made >= SPLITS_MAX {
                return;
            }
            let at = self.sizing.sweep_at % slots;
            self.sizing.sweep_at = at + 1;
            self.sizing.sweep_left -= 1;
            if self.rows.get(at).is_none_or(|row| row.has(FRESH)) {
                continue;
            }
            if self.rows[at].pages > self.extent_pages_now() {
                made += self.split_large(at);
            } else if joins_left > 0 {
                joins_left -= self.join_alike(at, joins_left);
            }
        }
    }

    fn split_uneven(&mut self) {
        let mut details = std::mem::take(&mut self.sizing.details);
        let finest = clamped_u32(self.finest_bytes() >> PAGE_SHIFT);
        details.retain(|number, detail| {
            let row = self.rows.get(*number).filter(|row| detail.is_of(row) && !row.has(FRESH));
            if row.is_none() || self.interval - detail.since > STALE * u32::from(self.config.units)
            {
                return false;
            }
            if detail.hits.iter().sum::<u32>() < HITS {
                return true;
            }
            if detail.is_uneven() {
                let pieces = detail.pieces(finest);
                self.cut_into(*number, &pieces);
            }
            false
        });
        // What was counted meanwhile is nothing: this is one thread.
        self.sizing.details = details;
    }

    /// An extent larger than the budget's part is cut evenly, into so many pieces.
    fn split_large(&mut self, number: u32) -> u32 {
        let (pages, most) = (self.rows[number].pages, self.extent_pages_now());
        let count = pages.div_ceil(most);
        let of_process = self.process(self.rows[number].process).index.len() as u64;
        // One object must not fill the ledger, whatever its size.
        if of_process + u64::from(count) > OBJECT_EXTENTS_MAX {
            return 0;
        }
        let piece = |nth: u32| {
            let pages_here = most.min(pages - nth * most);
            (pages_here, pages_here as f32 / pages as f32)
        };
        self.cut_into(number, &(0..count).map(piece).collect::<Vec<_>>());
        count
    }

    /// Cuts a record into neighbours of so many OS pages each, which take their shares of its heat.
    /// Without room it stays whole.
    fn cut_into(&mut self, number: u32, pieces: &[(u32, f32)]) {
        let whole = self.rows[number];
        if pieces.len() < 2 || !self.has_room(whole.process, pieces.len() as u64 - 1) {
            return;
        }
        debug_assert_eq!(pieces.iter().map(|(pages, _)| pages).sum::<u32>(), whole.pages);
        let home = self.only_home(&whole);
        self.clear_residency(number);
        // Of the value, the pieces so far took these shares.
        let (mut bytes_taken, mut heat_taken) = (0.0, 0.0);
        let gone = u64::from(whole.pages - pieces[0].0) << PAGE_SHIFT;
        self.live.bytes -= gone;
        self.process_mut(whole.process).live_bytes -= gone;
        self.count_live(whole.process, whole.site(), -signed(gone));
        let recorded_bytes = self.counts.recorded_bytes;
        let (mut at, mut last) = (whole.addr, number);
        for (nth, &(pages, share)) in pieces.iter().enumerate() {
            let heat = Row {
                reads: whole.reads * share,
                writes: whole.writes * share,
                stall_ns: whole.stall_ns * share,
                last_access: if share > 0.0 { whole.last_access } else { Stamp::NEVER },
                hits: whole.hits,
                ..Self::untouched(&whole)
            };
            let row = Row { addr: at, pages, ..heat };
            if nth == 0 {
                let flags = self.rows[number].flags & !LAST;
                self.rows[number] = Row { flags, ..row };
            } else {
                let flags = row.flags & !(crate::row::HEAD | LAST);
                last = self.insert_row(Row { flags, ..row });
                let of_bytes = f64::from(pages) / f64::from(whole.pages);
                let left = (1.0 - bytes_taken, 1.0 - heat_taken);
                let part = |share: f64, left: f64| if left > 0.0 { share / left } else { 0.0 };
                let heat = nearest_f32(part(share.into(), left.1).min(1.0));
                self.share_value(number, Some(last), part(of_bytes, left.0).min(1.0), heat);
                (bytes_taken, heat_taken) = (bytes_taken + of_bytes, heat_taken + f64::from(share));
            }
            at += row.bytes();
            match home {
                Some((node, as_of)) => {
                    self.set_row_residency(last, vec![(node, row.bytes())], as_of)
                }
                None => self.queue_for_scan(last),
            }
        }
        self.counts.recorded_bytes = recorded_bytes;
        self.rows[last].flags |= whole.flags & LAST;
        self.sizing.split_off += pieces.len() as u64 - 1;
    }

    /// The node on which all of a row lies.
    fn only_home(&self, row: &Row) -> Option<(NodeId, Stamp)> {
        let [(node, bytes), (_, second)] = row.homes.map(Home::get);
        (bytes == row.bytes() && second == 0).then_some((node, row.homes_as_of))
    }

    /// Joins a row with those above it while they are alike. Answers how many were joined.
    fn join_alike(&mut self, number: u32, most: u32) -> u32 {
        let mut joined = 0;
        while joined < most {
            let row = self.rows[number];
            if row.has(LAST) || row.pages >= self.extent_pages_now() {
                break;
            }
            let Some(next) = self.next_of(number) else { break };
            let above = self.rows[next];
            if row.pages + above.pages > self.extent_pages_now() || !self.are_alike(&row, &above) {
                break;
            }
            self.join(number, next);
            joined += 1;
        }
        joined
    }

    fn are_alike(&self, a: &Row, b: &Row) -> bool {
        let main = |row: &Row| row.homes[0].get();
        let home = |row: &Row| (main(row).1 > 0).then_some(main(row).0);
        if b.has(FRESH) || a.arena() != b.arena() || home(a) != home(b) {
            return false;
        }
        let heat = |row: &Row| {
            let decay = self.decay(self.interval - row.clock);
            decay * (row.reads + row.writes) / row.pages as f32
        };
        let (a, b) = (heat(a), heat(b));
        // Less than one access to an OS page in an interval is cold, whatever the ratio.
        a.max(b) <= (a.min(b) * ALIKE).max(1.0 / 16.0)
    }

    fn join(&mut self, number: u32, above: u32) {
        let (a, b) = (self.rows[number], self.rows[above]);
        let both_known = a.homes_as_of != Stamp::NEVER && b.homes_as_of != Stamp::NEVER;
        let mut homes = self.homes_of(number);
        homes.extend(self.homes_of(above));
        self.clear_residency(number);
        self.clear_residency(above);
        self.move_value(above, number);
        self.process_mut(b.process).index.remove(b.addr);
        let group = self.process(b.process).group;
        self.groups.remove_extent(group);
        self.rows.remove(above);
        self.live.extents -= 1;
        self.live.born_ms -= b.born_ms();
        let clock = a.clock.max(b.clock);
        let (decay_a, decay_b) = (self.decay(clock - a.clock), self.decay(clock - b.clock));
        let row = &mut self.rows[number];
        row.pages += b.pages;
        row.flags |= b.flags & LAST;
        row.clock = clock;
        row.reads = a.reads * decay_a + b.reads * decay_b;
        row.writes = a.writes * decay_a + b.writes * decay_b;
        row.stall_ns = a.stall_ns * decay_a + b.stall_ns * decay_b;
        row.last_access = a.last_access.max(b.last_access);
        if both_known {
            homes.sort_by_key(|(node, _)| *node);
            homes.dedup_by(|(node, bytes), (kept, sum)| {
                *sum += if node == kept { *bytes } else { 0 };
                node == kept
            });
            self.set_row_residency(number, homes, a.homes_as_of.min(b.homes_as_of));
        } else {
            self.queue_for_scan(number);
        }
        self.sizing.split_off = self.sizing.split_off.saturating_sub(1);
    }
}
