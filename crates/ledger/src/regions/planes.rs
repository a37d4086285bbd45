//! 512 bits, and the histories of 512 OS pages.
//! In: bits. Out: levels, for all OS pages at once. Knows nothing of what a bit says.

use super::LEVEL_MAX;

/// Words of a plane: one bit for each OS page of a piece.
pub(crate) const WORDS: usize = 8;

/// A bit for each OS page of a piece.
pub(crate) type Plane = [u64; WORDS];

pub(crate) const NONE: Plane = [0; WORDS];
pub(crate) const ALL: Plane = [!0; WORDS];

/// One plane for each window of a history.
pub(crate) type History = [Plane; LEVEL_MAX as usize];

/// The bits of `count` OS pages from `first` on; `count` is a power of two and divides `first`.
pub(crate) fn run(first: usize, count: usize) -> Plane {
    let mut plane = NONE;
    if count >= 64 {
        plane[first / 64..(first + count) / 64].fill(!0);
    } else {
        plane[first / 64] = ((1 << count) - 1) << (first % 64);
    }
    plane
}

/// The OS pages `from..to` of a piece.
pub(crate) fn between(from: usize, to: usize) -> Plane {
    let below = |page: usize, word: usize| match page.saturating_sub(word * 64) {
        bits @ 0..64 => (1u64 << bits) - 1,
        _ => !0,
    };
    std::array::from_fn(|word| below(to, word) & !below(from, word))
}

pub(crate) fn and(a: &Plane, b: &Plane) -> Plane {
    std::array::from_fn(|w| a[w] & b[w])
}

pub(crate) fn or(a: &Plane, b: &Plane) -> Plane {
    std::array::from_fn(|w| a[w] | b[w])
}

pub(crate) fn without(a: &Plane, b: &Plane) -> Plane {
    std::array::from_fn(|w| a[w] & !b[w])
}

pub(crate) fn has(plane: &Plane, page: usize) -> bool {
    plane[page / 64] >> (page % 64) & 1 == 1
}

pub(crate) fn is_none(plane: &Plane) -> bool {
    plane.iter().fold(0, |any, word| any | word) == 0
}

pub(crate) fn count(plane: &Plane) -> u32 {
    plane.iter().map(|word| word.count_ones()).sum()
}

/// The first bit from `page` on.
pub(crate) fn first_from(plane: &Plane, page: usize) -> Option<usize> {
    let (mut word, mut mask) = (page / 64, !0u64 << (page % 64));
    while word < WORDS {
        let bits = plane[word] & mask;
        if bits != 0 {
            return Some(word * 64 + bits.trailing_zeros() as usize);
        }
        (word, mask) = (word + 1, !0);
    }
    None
}

/// OS pages by level: a plane for each of 0 to 8.
pub(crate) fn by_level(history: &History) -> [Plane; LEVEL_MAX as usize + 1] {
    let mut levels = [NONE; LEVEL_MAX as usize + 1];
    for w in 0..WORDS {
        let [b0, b1, b2, b3] = sum(std::array::from_fn(|plane| history[plane][w]));
        let low = [!b1 & !b0, !b1 & b0, b1 & !b0, b1 & b0];
        let below_four = !b2 & !b3;
        for (level, bits) in low.into_iter().enumerate() {
            levels[level][w] = bits & below_four;
            levels[level + 4][w] = bits & b2;
        }
        levels[8][w] = b3;
    }
    levels
}

/// How many bits of one OS page are set.
pub(crate) fn level(history: &History, page: usize) -> u8 {
    history.iter().map(|plane| u8::from(has(plane, page))).sum()
}

/// Adds 64 columns of 8 bits: their sums, a bit of each in a word, the lowest first.
fn sum(p: [u64; 8]) -> [u64; 4] {
    let (s1, c1) = add(p[0], p[1], p[2]);
    let (s2, c2) = add(p[3], p[4], p[5]);
    let (s3, c3) = add(p[6], p[7], s1);
    let (ones, c4) = (s2 ^ s3, s2 & s3);
    let (t, d1) = add(c1, c2, c3);
    let (twos, d2) = (t ^ c4, t & c4);
    [ones, twos, d1 ^ d2, d1 & d2]
}

fn add(a: u64, b: u64, c: u64) -> (u64, u64) {
    (a ^ b ^ c, a & b | c & (a ^ b))
}

/// Sets all bits of each run of `pages` OS pages that has one.
pub(crate) fn spread(plane: &Plane, pages: usize) -> Plane {
    let mut out = NONE;
    for first in (0..super::PIECE_PAGES).step_by(pages) {
        let bits = run(first, pages);
        if !is_none(&and(plane, &bits)) {
            out = or(&out, &bits);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn levels_are_what_counting_gives(words in proptest::array::uniform8(any::<[u64; 8]>())) {
            let levels = by_level(&words);
            for page in 0..super::super::PIECE_PAGES {
                let level = level(&words, page);
                for (other, plane) in levels.iter().enumerate() {
                    prop_assert_eq!(has(plane, page), other == usize::from(level));
                }
            }
        }
    }

    #[test]
    fn any_run_of_os_pages_is_a_plane() {
        for (from, to) in [(0, 0), (0, 512), (3, 64), (63, 65), (64, 128), (500, 512)] {
            let plane = between(from, to);
            assert!((0..512).all(|page| has(&plane, page) == (from..to).contains(&page)));
        }
    }

    #[test]
    fn runs_and_searches() {
        assert_eq!(run(0, 512), ALL);
        assert_eq!((0..512).filter(|page| has(&run(48, 16), *page)).collect::<Vec<_>>().len(), 16);
        assert!(has(&run(48, 16), 48) && has(&run(48, 16), 63) && !has(&run(48, 16), 64));
        assert_eq!(first_from(&run(130, 1), 0), Some(130));
        assert_eq!(first_from(&run(130, 1), 131), None);
        assert_eq!(spread(&run(17, 1), 16), run(16, 16));
        assert_eq!(count(&spread(&run(511, 1), 512)), 512);
    }
}
