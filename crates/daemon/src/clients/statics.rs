//! Static data of one process: segments of its modules, divided into symbols.
//! In: births of mapped objects, the symbols of modules. Out: for each birth its parts: symbols,
//! and what lies between them. Knows nothing of files.
//!
//! ```text
//! segment as born    |............................................|   site 7
//! with symbols       |...|table    |....|zeros               |....|   7, 61440, 7, 61441, 7
//! ```
//! Boundaries are those of OS pages. One that holds the ends of two symbols belongs to the one that
//! has half of it or more. A segment that is small or only read stays whole until a sample hits it:
//! reading the symbols of a module costs some million instructions, and most processes have six.

use super::client_uses::ClientUses;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use tiercel_symbolize::{DataSymbol, SiteFrame};
use tiercel_wire::layout::OS_PAGE_BYTES;
use tiercel_wire::{Session, Site, SiteKind, Version, phase_hash};

/// What a segment takes, bytes: itself, its place in a table, a module's path and build-id.
const SEGMENT_BYTES: usize = 512;

/// A part of an object: a range of addresses, and its site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) addr: u64,
    pub(crate) bytes: u64,
    pub(crate) site: u32,
}

/// An object as it was born.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Born {
    pub(crate) addr: u64,
    pub(crate) bytes: u64,
    pub(crate) site: u32,
    pub(crate) version: Version,
}

/// The segments of one process.
#[derive(Debug, Default)]
pub(crate) struct Statics {
    /// By site number, of mapped objects.
    segments: HashMap<u32, Kind>,
    /// Those that wait for symbols: where they are, the largest first.
    waiting: Vec<Range<u64>>,
    /// Small segments that no sample hit yet: where they are, and their sites.
    dormant: Vec<(Range<u64>, u32)>,
}

/// Segments whose accesses wait for symbols as well: further ones are small.
const WAITING_MAX: usize = 64;

/// Smaller segments, and those that are only read, are divided only when a sample hits them. The
/// libraries of the C and C++ runtime have 16 to 80 KiB each, and libc 332 KiB of constants.
const EAGER_BYTES: u64 = 128 << 10;

/// What the objects of a site are.
#[derive(Debug)]
enum Kind {
    Segment(Box<Segment>),
    /// Of memory that others may show too.
    Shared,
    Other,
}

#[derive(Debug)]
struct Segment {
    /// Where its module is loaded.
    base: u64,
    module: SiteFrame,
    /// The object that was born there last.
    born: Born,
    /// Addresses of symbols, ascending, and their sites. `None`: they are not known yet.
    symbols: Option<Vec<(Range<u64>, u32)>>,
    /// Its user's share of memory has room for it.
    is_paid: bool,
    /// It is only read.
    is_constant: bool,
    /// Its symbols are wanted: it is large and written, or a sample hit it.
    is_wanted: bool,
}

impl Statics {
    /// The parts of a mapped object that was born; `None`: it is one.
    pub(crate) fn born(
        &mut self,
        born: Born,
        session: &Session,
        uses: &mut ClientUses,
    ) -> Option<Vec<Part>> {
        if born.site == 0 {
            return None;
        }
        let kind = self.segments.entry(born.site).or_insert_with(|| Kind::read(born, session));
        let Kind::Segment(segment) = kind else { return None };
        if !segment.is_paid {
            segment.is_paid = uses.charge_quota(SEGMENT_BYTES);
            if !segment.is_paid {
                *kind = Kind::Other;
                return None;
            }
        }
        segment.born = born;
        segment.is_wanted |= !segment.is_constant && born.bytes >= EAGER_BYTES;
        if segment.symbols.is_none() {
            let range = born.addr..born.addr.saturating_add(born.bytes);
            if !segment.is_wanted && self.dormant.len() < WAITING_MAX {
                self.dormant.push((range, born.site));
            } else if segment.is_wanted && self.waiting.len() < WAITING_MAX {
                self.waiting.push(range);
            }
        }
        segment.symbols.as_ref().map(|symbols| parts(&born, symbols))
    }

    /// Whether an object may show what others show: then the record of its birth is followed by one
    /// that says what.
    pub(crate) fn is_shared(&mut self, born: Born, session: &Session) -> bool {
        let kind = || Kind::read(born, session);
        born.site != 0
            && matches!(self.segments.entry(born.site).or_insert_with(kind), Kind::Shared)
    }

    /// Whether [`Statics::divide`] has something to do.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether a sample's address is in data whose symbols are not known yet.
    pub(crate) fn awaits(&mut self, addr: u64) -> bool {
        if let Some(at) = self.dormant.iter().position(|(range, _)| range.contains(&addr)) {
            let (range, site) = self.dormant.swap_remove(at);
            if let Some(segment) = self.segments.get_mut(&site).and_then(Kind::segment) {
                segment.is_wanted = true;
                self.waiting.push(range);
            }
        }
        self.waiting.iter().any(|range| range.contains(&addr))
    }

    /// Takes in symbols of modules, as far as `symbols_of` has them. Returns the objects that fall
    /// into parts now.
    pub(crate) fn divide(
        &mut self,
        uses: &mut ClientUses,
        mut symbols_of: impl FnMut(&SiteFrame) -> Option<Arc<[DataSymbol]>>,
    ) -> Vec<(Born, Vec<Part>)> {
        self.waiting.clear();
        let mut divided = Vec::new();
        let segments = self.segments.values_mut().filter_map(Kind::segment);
        let mut segments: Vec<_> =
            segments.filter(|one| one.is_wanted && one.symbols.is_none()).collect();
        segments.sort_by_key(|one| std::cmp::Reverse(one.born.bytes));
        for segment in segments {
            let Some(symbols) = symbols_of(&segment.module) else {
                let Born { addr, bytes, .. } = segment.born;
                self.waiting.push(addr..addr.saturating_add(bytes));
                continue;
            };
            let named = segment.name(&symbols, uses);
            if !named.is_empty() {
                let parts = parts(&segment.born, &named);
                let other = format!("other static data of {}", segment.module.module_name());
                uses.origins.name(segment.born.site, other.into());
                count_parts(uses, segment.born.site, &parts);
                divided.push((segment.born, parts));
            }
            segment.symbols = Some(named);
        }
        self.waiting.truncate(WAITING_MAX);
        divided
    }
}

impl Kind {
    fn read(born: Born, session: &Session) -> Kind {
        let Some(site) = session.site(born.site) else { return Kind::Other };
        match site.kind {
            SiteKind::Shared | SiteKind::File => Kind::Shared,
            SiteKind::Static | SiteKind::Constant => {
                let segment = Segment::read(&site, born, session);
                segment.map_or(Kind::Other, |segment| Kind::Segment(Box::new(segment)))
            }
            _ => Kind::Other,
        }
    }

    fn segment(&mut self) -> Option<&mut Segment> {
        if let Kind::Segment(segment) = self { Some(segment) } else { None }
    }
}

impl Segment {
    fn read(site: &Site, born: Born, session: &Session) -> Option<Segment> {
        let frame = site.frames.first()?;
        let module = session.module(frame.module?)?;
        let (path, build_id) = (module.path.into(), module.build_id.into());
        let module_frame = SiteFrame { path, build_id, addr: frame.offset };
        let (base, module) = (module.base, module_frame);
        let is_constant = site.kind == SiteKind::Constant;
        Some(Segment {
            base,
            module,
            born,
            symbols: None,
            is_paid: false,
            is_constant,
            is_wanted: false,
        })
    }

    /// Gives sites to the symbols that lie in it, as far as there is room.
    fn name(&self, symbols: &[DataSymbol], uses: &mut ClientUses) -> Vec<(Range<u64>, u32)> {
        let mut named: Vec<(Range<u64>, u32)> = Vec::new();
        let mut seen: HashMap<&str, u32> = HashMap::new();
        let end = self.born.addr.saturating_add(self.born.bytes);
        let mut from = self.born.addr;
        for symbol in symbols {
            // Static variables of several files may have one name.
            let number = seen.entry(&symbol.name).or_default();
            *number += 1;
            let start = self.base.wrapping_add(symbol.addr);
            let Some(range) = whole_pages(start, symbol.bytes) else { continue };
            let range = range.start.max(from)..range.end;
            if start < self.born.addr || range.end > end || range.is_empty() {
                continue;
            }
            let Some(site) = self.name_one(symbol, *number, uses) else { break };
            from = range.end;
            named.push((range, site));
        }
        named
    }

    fn name_one(&self, symbol: &DataSymbol, number: u32, uses: &mut ClientUses) -> Option<u32> {
        let SiteFrame { path, build_id, .. } = &self.module;
        let module = if build_id.is_empty() {
            path.to_string_lossy().into_owned()
        } else {
            tiercel_symbolize::hex::text(build_id)
        };
        let hash = phase_hash(&format!("static {module} {number} {}", symbol.name));
        let frame = SiteFrame { addr: symbol.addr, ..self.module.clone() };
        let name = format!("static: {} in {}", symbol.name, self.module.module_name());
        uses.name_site(hash, frame, name.into())
    }
}

/// An object that was counted as born at one site is one of several.
fn count_parts(uses: &mut ClientUses, site: u32, parts: &[Part]) {
    for part in parts.iter().filter(|part| part.site != site) {
        let whole = uses.use_of(site);
        whole.born_bytes = whole.born_bytes.saturating_sub(part.bytes);
        uses.born(part.site, 1, part.bytes, false);
    }
}

/// The OS pages of which a range has half or more.
fn whole_pages(start: u64, bytes: u64) -> Option<Range<u64>> {
    let half = OS_PAGE_BYTES / 2;
    let end = start.checked_add(bytes)?.checked_add(half)?;
    let round = |addr: u64| addr / OS_PAGE_BYTES * OS_PAGE_BYTES;
    Some(round(start.checked_add(half - 1)?)..round(end))
}

/// An object and the symbols in it as parts, ascending.
fn parts(born: &Born, symbols: &[(Range<u64>, u32)]) -> Vec<Part> {
    let end = born.addr + born.bytes;
    let (mut parts, mut from) = (Vec::new(), born.addr);
    let mut add = |range: Range<u64>, site| {
        if !range.is_empty() {
            parts.push(Part { addr: range.start, bytes: range.end - range.start, site });
        }
    };
    for (range, site) in symbols.iter().filter(|(range, _)| range.end > born.addr) {
        let range = range.start.clamp(from, end)..range.end.min(end);
        if range.is_empty() {
            continue;
        }
        add(from..range.start, born.site);
        from = range.end;
        add(range, *site);
    }
    add(from..end, born.site);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::Account;
    use proptest::prelude::*;
    use std::path::Path;
    use tiercel_wire::client::SessionBuilder;
    use tiercel_wire::layout::SITES_NAMED;
    use tiercel_wire::{Frame, Module};

    fn born(pages: u64) -> Born {
        let (addr, bytes) = (0x10_0000, pages * OS_PAGE_BYTES);
        Born { addr, bytes, site: 7, version: Version::default() }
    }

    #[test]
    fn an_os_page_belongs_to_the_symbol_that_has_half_of_it() {
        let check = |start: u64, bytes: u64, from: u64, to: u64| {
            assert_eq!(whole_pages(start, bytes), Some(from..to), "{start:#x} {bytes:#x}");
        };
        check(0x1000, 0x1000, 0x1000, 0x2000);
        check(0x1800, 0x1000, 0x1000, 0x3000);
        check(0x1801, 0x1000, 0x2000, 0x3000);
        check(0x17ff, 0x1000, 0x1000, 0x2000);
        assert_eq!(whole_pages(u64::MAX, 0x1000), None);
    }

    fn session() -> Session {
        let made = SessionBuilder::new().build().unwrap();
        let (module, path) = (Some(0), Path::new("/bin/app").into());
        let frames = vec![Frame { module, offset: 0x4000 }];
        let kind = SiteKind::Static;
        made.put_module(0, &Module { base: 0xfc000, build_id: vec![1], path }).unwrap();
        made.put_site(7, &Site { hash: 5, frames, kind }).unwrap();
        Session::open(made.fd().unwrap()).unwrap()
    }

    fn symbol(addr: u64, bytes: u64, name: &str) -> DataSymbol {
        DataSymbol { addr, bytes, name: name.into() }
    }

    #[test]
    fn a_small_segment_stays_whole_until_a_sample_hits_it() {
        let mut uses = ClientUses::new(Account::new(1 << 20, 1 << 20).allowance());
        let (mut statics, session) = (Statics::default(), session());
        let symbols = || Some(vec![symbol(0x5000, 0x2000, "table")].into());
        statics.born(born(16), &session, &mut uses);
        assert!(!statics.is_waiting());
        assert!(statics.divide(&mut uses, |_| symbols()).is_empty());
        assert!(!statics.awaits(0x11_0000) && statics.awaits(0x10_8000) && statics.is_waiting());
        assert_eq!(statics.divide(&mut uses, |_| symbols()).len(), 1);
        assert!(!statics.awaits(0x10_8000), "its symbols are known");
    }

    #[test]
    fn a_segment_falls_into_its_symbols_when_they_are_known() {
        let mut uses = ClientUses::new(Account::new(1 << 20, 1 << 20).allowance());
        let (mut statics, session) = (Statics::default(), session());
        assert_eq!(statics.born(born(32), &session, &mut uses), None, "not known yet");
        assert!(statics.is_waiting() && statics.awaits(0x10_8000) && !statics.awaits(0x12_0000));
        assert!(statics.divide(&mut uses, |_| None).is_empty() && statics.is_waiting());
        let symbols = [
            symbol(0x3000, 0x1000, "before"),
            symbol(0x5000, 0x2000, "table"),
            symbol(0x7000, 0x2000, "table"),
            symbol(0x23000, 0x2000, "across"),
            symbol(u64::MAX - 5, 0x2000, "mad"),
        ];
        let divided = statics.divide(&mut uses, |_| Some(symbols.to_vec().into()));
        let [(whole, parts)] = &divided[..] else { panic!("{divided:?}") };
        assert_eq!(*whole, born(32));
        let first = u32::try_from(SITES_NAMED).unwrap();
        let sizes: Vec<_> = parts.iter().map(|part| (part.bytes >> 12, part.site)).collect();
        assert_eq!(sizes, [(1, 7), (2, first), (2, first + 1), (27, 7)]);
        assert_ne!(uses.hash(first), uses.hash(first + 1), "two variables of one name");
        assert!(!statics.is_waiting() && !statics.awaits(0x10_8000));
        // Loaded again it has the same sites at once; a part that was cut off has its own.
        assert_eq!(statics.born(born(32), &session, &mut uses).as_ref(), Some(parts));
        let tail = Born { addr: 0x10_2000, bytes: 0x2000, ..born(1) };
        let parts = statics.born(tail, &session, &mut uses).unwrap();
        assert_eq!(parts.iter().map(|part| part.site).collect::<Vec<_>>(), [first, first + 1]);
    }

    proptest! {
        #[test]
        fn parts_cover_an_object_once(
            pages in 32u64..96,
            symbols in proptest::collection::vec((0u64..80 << 12, 1u64..20 << 12), 0..12),
        ) {
            let mut uses = ClientUses::new(Account::new(1 << 20, 1 << 20).allowance());
            let (mut statics, session) = (Statics::default(), session());
            statics.born(born(pages), &session, &mut uses);
            let mut all: Vec<DataSymbol> =
                symbols.iter().map(|&(addr, bytes)| symbol(addr, bytes, "s")).collect();
            all.sort_by_key(|one| one.addr);
            for (whole, parts) in statics.divide(&mut uses, |_| Some(all.clone().into())) {
                let mut from = whole.addr;
                for part in parts {
                    prop_assert_eq!(part.addr, from);
                    prop_assert!(part.bytes > 0 && part.bytes % OS_PAGE_BYTES == 0);
                    from += part.bytes;
                }
                prop_assert_eq!(from, whole.addr + whole.bytes);
            }
        }
    }
}
