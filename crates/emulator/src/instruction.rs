// SPDX-License-Identifier: GPL-2.0-or-later
//! The few instructions whose kind matters to time.
//! In: an instruction's bytes. Out: [`Kind`]. Knows nothing of what they cost.

/// What an instruction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Anything else.
    Ordinary,
    /// Changes what all addresses mean: writes CR3.
    AddressSpace,
    /// Changes what some addresses mean: `invlpg`, `invpcid`.
    Invalidate,
    /// Waits in a loop: `pause`.
    Pause,
    /// Reads the time-stamp counter.
    Timestamp,
    /// `cpuid`, model-specific registers: trap or serialise.
    Slow,
    /// Talks to a device: `in`, `out`.
    Port,
    /// The guest says that what follows shall be timed in detail.
    Begin,
    /// The guest says that what follows need not.
    End,
    /// A program's region of interest begins.
    RegionBegin,
    /// It ends.
    RegionEnd,
    /// Work of Tiercel's own begins that is timed in detail and is no region of the program.
    OwnBegin,
    /// It ends.
    OwnEnd,
}

/// No operations, distinguished by the address they name. `crates/lab` writes the first two,
/// `workloads/roi.h` the next two, `crates/sampler` the last two.
const MARKS: [([u8; 7], Kind); 6] = [
    ([0x0f, 0x1f, 0x80, 0x01, b'L', b'C', b'T'], Kind::Begin),
    ([0x0f, 0x1f, 0x80, 0x02, b'L', b'C', b'T'], Kind::End),
    ([0x0f, 0x1f, 0x80, 0x01, b'E', b'I', b'T'], Kind::RegionBegin),
    ([0x0f, 0x1f, 0x80, 0x02, b'E', b'I', b'T'], Kind::RegionEnd),
    ([0x0f, 0x1f, 0x80, 0x03, b'E', b'I', b'T'], Kind::OwnBegin),
    ([0x0f, 0x1f, 0x80, 0x04, b'E', b'I', b'T'], Kind::OwnEnd),
];

/// Most bytes of an instruction.
pub const MAX_BYTES: usize = 15;

/// What the bytes say.
pub fn kind(bytes: &[u8]) -> Kind {
    if let Some((_, kind)) = MARKS.iter().find(|(mark, _)| bytes.starts_with(mark)) {
        return *kind;
    }
    let mut repeated = false;
    let mut rest = bytes;
    while let Some((&first, after)) = rest.split_first() {
        match first {
            0xf3 => repeated = true,
            0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0x40..=0x4f => {}
            _ => break,
        }
        rest = after;
    }
    let field = |byte: u8| byte >> 3 & 7;
    match *rest {
        [0x90, ..] if repeated => Kind::Pause,
        [0xe4..=0xe7 | 0xec..=0xef | 0x6c..=0x6f, ..] => Kind::Port,
        [0x0f, 0x22, which, ..] if field(which) == 3 => Kind::AddressSpace,
        [0x0f, 0x01, which, ..] if field(which) == 7 && which < 0xc0 => Kind::Invalidate,
        [0x0f, 0x38, 0x82, ..] => Kind::Invalidate,
        [0x0f, 0x01, 0xf9, ..] | [0x0f, 0x31, ..] => Kind::Timestamp,
        [0x0f, 0xa2 | 0x30 | 0x32, ..] => Kind::Slow,
        _ => Kind::Ordinary,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_by_their_bytes() {
        let cases: [(&[u8], Kind); 18] = [
            (&[0x0f, 0x1f, 0x80, 0x01, 0x4c, 0x43, 0x54], Kind::Begin),
            (&[0x0f, 0x1f, 0x80, 0x01, 0x45, 0x49, 0x54], Kind::RegionBegin),
            (&[0x0f, 0x1f, 0x80, 0x02, 0x45, 0x49, 0x54], Kind::RegionEnd),
            (&[0x0f, 0x1f, 0x80, 0x03, 0x45, 0x49, 0x54], Kind::OwnBegin),
            (&[0x0f, 0x1f, 0x80, 0x04, 0x45, 0x49, 0x54], Kind::OwnEnd),
            (&[0x0f, 0x1f, 0x80, 0x00, 0x00, 0x00, 0x00], Kind::Ordinary),
            (&[0xf3, 0x90], Kind::Pause),
            (&[0x90], Kind::Ordinary),
            (&[0x0f, 0x22, 0xd8], Kind::AddressSpace),
            (&[0x0f, 0x22, 0xc0], Kind::Ordinary),
            (&[0x0f, 0x01, 0x38], Kind::Invalidate),
            (&[0x66, 0x0f, 0x38, 0x82, 0x03], Kind::Invalidate),
            (&[0x0f, 0x31], Kind::Timestamp),
            (&[0x0f, 0x01, 0xf9], Kind::Timestamp),
            (&[0x0f, 0x30], Kind::Slow),
            (&[0x66, 0xef], Kind::Port),
            (&[0x48, 0x8b, 0x07], Kind::Ordinary),
            (&[], Kind::Ordinary),
        ];
        for (bytes, expect) in cases {
            assert_eq!(kind(bytes), expect, "{bytes:x?}");
        }
    }
}
