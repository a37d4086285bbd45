//! A number from 0 to 15 for each OS page of a piece: where they are all equal, one number.
//! In: numbers. Out: the same, and the OS pages that have one. Knows nothing of what they mean.

use tiercel_machine::number::{index_u8, index_u32};

use super::planes::{self, ALL, NONE, Plane};

/// Bits of a code.
const BITS: usize = 4;
/// Tables of planes that are allocated at once: 16 KiB.
const CHUNK: usize = 64;

/// The codes of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codes {
    /// All OS pages have this one.
    Same(u8),
    /// They are in a table of [`Tables`].
    Table(u32),
}

type Table = [Plane; BITS];

/// The planes of the pieces whose OS pages differ.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    chunks: Vec<Box<[Table]>>,
    free: Vec<u32>,
}

impl Tables {
    /// Bytes allocated.
    pub(crate) fn bytes(&self) -> usize {
        let chunk = CHUNK * size_of::<Table>();
        self.chunks.len() * (chunk + size_of::<Box<[Table]>>()) + self.free.capacity() * 4
    }

    pub(crate) fn get(&self, codes: Codes, page: usize) -> u8 {
        match codes {
            Codes::Same(code) => code,
            Codes::Table(id) => {
                let table = self.table(id).iter().enumerate();
                table.map(|(bit, plane)| u8::from(planes::has(plane, page)) << bit).sum()
            }
        }
    }

    /// The OS pages that have a code.
    pub(crate) fn having(&self, codes: Codes, code: u8) -> Plane {
        match codes {
            Codes::Same(same) if same == code => ALL,
            Codes::Same(_) => NONE,
            Codes::Table(id) => {
                let [a, b, c, d] = self.table(id);
                let flip: [u64; BITS] =
                    std::array::from_fn(|bit| if code >> bit & 1 == 1 { 0 } else { !0 });
                std::array::from_fn(|w| {
                    (a[w] ^ flip[0]) & (b[w] ^ flip[1]) & (c[w] ^ flip[2]) & (d[w] ^ flip[3])
                })
            }
        }
    }

    /// Gives these OS pages a code.
    pub(crate) fn set(&mut self, codes: &mut Codes, pages: &Plane, code: u8) {
        match *codes {
            Codes::Same(same) if same == code => {}
            _ if *pages == ALL => {
                self.release(*codes);
                *codes = Codes::Same(code);
            }
            Codes::Same(same) => {
                let id = self.allocate(same);
                *codes = Codes::Table(id);
                self.write(id, pages, code);
            }
            Codes::Table(id) => self.write(id, pages, code),
        }
    }

    /// Clears the highest bit of all codes but 15.
    pub(crate) fn clear_high(&mut self, codes: &mut Codes) {
        match *codes {
            Codes::Same(code) => *codes = Codes::Same(if code < 15 { code & 7 } else { code }),
            Codes::Table(id) => {
                let [a, b, c, d] = self.table_mut(id);
                *d = std::array::from_fn(|w| d[w] & a[w] & b[w] & c[w]);
            }
        }
    }

    /// Gives the table back if all codes have become equal.
    pub(crate) fn settle(&mut self, codes: &mut Codes) {
        if let Codes::Table(id) = *codes {
            let code = self.get(*codes, 0);
            let same = |(bit, plane): (usize, &Plane)| {
                *plane == if code >> bit & 1 == 1 { ALL } else { NONE }
            };
            if self.table(id).iter().enumerate().all(same) {
                self.release(*codes);
                *codes = Codes::Same(code);
            }
        }
    }

    /// Gives the table back, if there is one.
    pub(crate) fn release(&mut self, codes: Codes) {
        if let Codes::Table(id) = codes {
            self.free.push(id);
        }
    }

    fn allocate(&mut self, code: u8) -> u32 {
        if self.free.is_empty() {
            let first = self.chunks.len() * CHUNK;
            self.chunks.push(vec![[NONE; BITS]; CHUNK].into_boxed_slice());
            self.free.extend((first..first + CHUNK).rev().map(index_u32));
        }
        let id = self.free.pop().expect("a chunk was added");
        *self.table_mut(id) =
            std::array::from_fn(|bit| if code >> bit & 1 == 1 { ALL } else { NONE });
        id
    }

    fn write(&mut self, id: u32, pages: &Plane, code: u8) {
        for (bit, plane) in self.table_mut(id).iter_mut().enumerate() {
            *plane = match code >> bit & 1 {
                1 => planes::or(plane, pages),
                _ => planes::without(plane, pages),
            };
        }
    }

    fn table(&self, id: u32) -> &Table {
        &self.chunks[id as usize / CHUNK][id as usize % CHUNK]
    }

    fn table_mut(&mut self, id: u32) -> &mut Table {
        &mut self.chunks[id as usize / CHUNK][id as usize % CHUNK]
    }

    /// The codes that occur, as a set of bits.
    pub(crate) fn present(&self, codes: Codes) -> u16 {
        match codes {
            Codes::Same(code) => 1 << code,
            Codes::Table(_) => (0..16usize)
                .filter(|code| !planes::is_none(&self.having(codes, index_u8(*code))))
                .fold(0, |set, code| set | 1 << code),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn codes_are_what_was_set(
            sets in proptest::collection::vec((0usize..512, 0u32..10, 0u8..16), 0..40)
        ) {
            let mut tables = Tables::default();
            let mut codes = Codes::Same(15);
            let mut model = [15u8; 512];
            for (page, log, code) in sets {
                let count = 1usize << log.min(9);
                let first = page / count * count;
                tables.set(&mut codes, &planes::run(first, count), code);
                model[first..first + count].fill(code);
                tables.settle(&mut codes);
                let same = model.iter().all(|one| *one == model[0]);
                prop_assert_eq!(matches!(codes, Codes::Same(_)), same);
            }
            for (page, code) in model.iter().enumerate() {
                prop_assert_eq!(tables.get(codes, page), *code);
                prop_assert!(planes::has(&tables.having(codes, *code), page));
                prop_assert_eq!(tables.present(codes) >> code & 1, 1);
            }
            tables.clear_high(&mut codes);
            for (page, code) in model.iter().enumerate() {
                let expected = if *code == 15 { 15 } else { code & 7 };
                prop_assert_eq!(tables.get(codes, page), expected);
            }
        }
    }
}
