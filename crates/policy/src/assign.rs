//! Priorities become tiers: fill the best tier in order of priority, then the next (MAT 3.4.4).
//! In: candidates with sizes, room per tier. Out: the candidates in runs, one per tier.
//! Knows nothing of what a candidate is or where it lies.

use tiercel_ledger::{CHEAP_IN_UNIT, ExtentId, PIECE_UNITS, Pace};
use tiercel_machine::number::clamped_u32;

use crate::order;
use crate::prioritise::Key;

/// Candidates around the point where a tier's room ends that are placed by first fit, one by one.
/// Above and below them the order alone decides, so that ten million candidates take linear time.
pub const FILL_TAIL: usize = 4096;

/// Bits of an extent number in [`Candidate::order`], beside 32 of a key and 2 of a rank.
const ID_BITS: u32 = 30;

/// An extent that is to be assigned a tier: 16 bytes, so that ten million fit in memory for
/// sorting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// Priority, then the tier it is in (extents that are there stay), then the number: a total
    /// order.
    order: u64,
    pub(crate) pages: u32,
    /// Tier it lies in.
    pub(crate) rank: u8,
}

impl Candidate {
    pub(crate) fn new(key: Key, rank: u8, id: ExtentId, bytes: u64) -> Candidate {
        let stays = 3 - u64::from(rank.min(3));
        let number = (1 << ID_BITS) - 1 - u64::from(id.0);
        let order = u64::from(key) << 32 | stays << ID_BITS | number;
        Candidate { order, pages: clamped_u32(bytes.div_ceil(4096)), rank }
    }

    pub(crate) fn id(&self) -> ExtentId {
        let number = self.order & ((1 << ID_BITS) - 1);
        ExtentId(clamped_u32((1 << ID_BITS) - 1 - number))
    }

    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.pages) * 4096
    }

    /// Orders the most deserving first.
    pub(crate) fn first(&self) -> u64 {
        !self.order
    }

    /// Orders the least deserving first.
    pub(crate) fn last(&self) -> u64 {
        self.order
    }
}

/// Orders candidates into one run per tier; `room[k]` is what may lie in tier k, and what fits
/// nowhere goes to the last. Returns the end of each run.
pub(crate) fn assign(
    candidates: &mut [Candidate],
    room: &[u64],
    pace: &mut dyn Pace,
) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut start = 0;
    for bytes in &room[..room.len() - 1] {
        start += fill(&mut candidates[start..], *bytes, pace);
        ends.push(start);
    }
    ends.push(candidates.len());
    ends
}

/// Moves the most deserving candidates that fit to the front and counts them: by halves, as
/// quickselect does, so that it takes linear time and sorts only where the room ends.
fn fill(candidates: &mut [Candidate], mut room: u64, pace: &mut dyn Pace) -> usize {
    if bytes_of(candidates, pace) <= room {
        return candidates.len();
    }
    let (mut start, mut end) = (0, candidates.len());
    while end - start > FILL_TAIL {
        let half = (end - start) / 2;
        order::select(&mut candidates[start..end], half, Candidate::first, pace);
        let bytes = bytes_of(&candidates[start..start + half], pace);
        if bytes <= room {
            room -= bytes;
            start += half;
        } else {
            end = start + half;
        }
    }
    // The tail reaches beyond the end of the room, for smaller ones that still fit.
    candidates[start..end].sort_unstable_by_key(Candidate::first);
    let mut taken = start;
    for at in start..end {
        if candidates[at].bytes() <= room {
            room -= candidates[at].bytes();
            candidates.swap(at, taken);
            taken += 1;
        }
    }
    taken
}

fn bytes_of(part: &[Candidate], pace: &mut dyn Pace) -> u64 {
    let mut sum = 0;
    for piece in part.chunks(PIECE_UNITS * CHEAP_IN_UNIT) {
        sum += piece.iter().map(Candidate::bytes).sum::<u64>();
        pace.compared(piece.len());
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};
    use proptest::prelude::*;
    use tiercel_ledger::{AtOnce, Config, Ledger};

    const OS_PAGE: u64 = 4096;

    /// `name:priority:pages@tier` per candidate. Shows the names tier by tier, best first.
    fn check(candidates: &str, room_pages: &[u64], want: Expect) {
        let mut names = Vec::new();
        let mut list: Vec<_> = candidates
            .split_whitespace()
            .enumerate()
            .map(|(id, word)| {
                let (rest, rank) = word.split_once('@').expect("a tier");
                let mut parts = rest.split(':');
                names.push(parts.next().expect("a name"));
                let mut number =
                    || parts.next().expect("a number").parse::<u64>().expect("a number");
                let (key, pages) = (number() as u32, number());
                let rank = rank.parse().expect("a tier");
                Candidate::new(key, rank, ExtentId(id as u32), pages * OS_PAGE)
            })
            .collect();
        let room: Vec<_> = room_pages.iter().map(|pages| pages * OS_PAGE).collect();
        let mut start = 0;
        let ledger = Ledger::new(Config::default(), 0).expect("good");
        let runs = assign(&mut list, &room, &mut AtOnce(&ledger)).into_iter().map(|end| {
            let run = &mut list[start..end];
            run.sort_by_key(Candidate::first);
            start = end;
            run.iter().map(|c| names[c.id().0 as usize]).collect::<Vec<_>>().join("")
        });
        want.assert_eq(&runs.collect::<Vec<_>>().join("|"));
    }

    #[test]
    fn tiers_fill_in_order_of_priority() {
        check("a:1:1@1 b:9:1@1 c:5:1@0", &[2, 0], expect!["bc|a"]);
        check("a:1:2@0 b:2:2@0 c:3:2@0 d:4:2@0", &[3, 3, 0], expect!["d|c|ba"]);
        check("a:1:1@0", &[0, 0], expect!["|a"]);
        check("", &[4, 4], expect!["|"]);
    }

    #[test]
    fn what_does_not_fit_leaves_room_to_the_next() {
        check("a:9:3@0 b:8:3@0 c:7:1@0", &[4, 0], expect!["ac|b"]);
    }

    #[test]
    fn equals_stay_where_they_are() {
        check("a:5:1@1 b:5:1@0 c:5:1@1 d:5:1@0", &[2, 0], expect!["bd|ac"]);
    }

    proptest! {
        /// Compared with an obvious model: sort, then fill. Sizes are equal, so that no tail
        /// matters.
        #[test]
        fn large_inputs_fill_as_small_ones_do(
            keys in proptest::collection::vec(any::<u32>(), 5000..40_000),
            share in 0.0f64..1.0,
        ) {
            let make = |(id, key): (usize, &u32)| {
                Candidate::new(*key, 1, ExtentId(id as u32), OS_PAGE)
            };
            let mut ours: Vec<_> = keys.iter().enumerate().map(make).collect();
            let mut obvious = ours.clone();
            obvious.sort_by_key(Candidate::first);
            let fits = (keys.len() as f64 * share) as usize;
            let ledger = Ledger::new(Config::default(), 0).expect("good");
            let room = [fits as u64 * OS_PAGE, 0];
            let ends = assign(&mut ours, &room, &mut AtOnce(&ledger));
            prop_assert_eq!(ends, vec![fits, keys.len()]);
            ours[..fits].sort_by_key(Candidate::first);
            prop_assert_eq!(&ours[..fits], &obvious[..fits]);
        }
    }
}
