//! Where the kernel keeps the running task, from its description of its own types (BTF). In: the
//! bytes of /sys/kernel/btf/vmlinux. Out: [`TaskOffsets`]. Knows nothing of who reads it. Any bytes
//! are safe input.
//!
//! No crate is used, because little is needed: the offsets of two members of one struct, and the
//! address of one variable in the per-CPU section.

use tiercel_machine::number::index_u32;
use tiercel_wire::emulator::TaskOffsets;

// `struct btf_header` and `struct btf_type` of linux/btf.h.
const MAGIC: u16 = 0xeb9f;
const HEADER_BYTES: usize = 24;
const TYPE_BYTES: usize = 12;
/// Most types of a kernel; Debian's 6.12 has about 100,000.
const TYPES_MAX: usize = 1 << 22;
/// Depth to which structs within structs are searched.
const DEPTH_MAX: usize = 4;

// BTF_KIND_* of linux/btf.h.
const INT: u32 = 1;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const PROTOTYPE: u32 = 13;
const VARIABLE: u32 = 14;
const SECTION: u32 = 15;
const DECLARATION_TAG: u32 = 17;
const ENUM64: u32 = 19;

/// Linux 6.2 to 6.14 keep the running task in a struct of hot variables; later ones in a variable
/// of its own.
const HOT: &[u8] = b"pcpu_hot";
const CURRENT: &[u8] = b"current_task";
/// The section of per-CPU variables, in the order of their addresses.
const OWN_DATA: &[u8] = b".data..percpu";

/// `None` when the bytes are not BTF, or the kernel keeps its tasks in another way.
pub fn task_offsets(bytes: &[u8]) -> Option<TaskOffsets> {
    let types = Types::read(bytes)?;
    let task = types.named(STRUCT, b"task_struct")?;
    let member = |name| types.member(task, name, 0);
    let current = match types.variable(HOT) {
        Some((at, hot)) => at + u64::from(types.member(hot, CURRENT, 0)?),
        None => types.variable(CURRENT)?.0,
    };
    Some(TaskOffsets { current, thread: member(b"pid")?, process: member(b"tgid")? })
}

/// All types, by number; number 0 is `void`.
struct Types<'a> {
    bytes: &'a [u8],
    strings: &'a [u8],
    starts: Vec<u32>,
}

impl<'a> Types<'a> {
    fn read(bytes: &'a [u8]) -> Option<Types<'a>> {
        let magic = u16::from_le_bytes(bytes.get(..2)?.try_into().ok()?);
        let head = word(bytes, 4)? as usize;
        if magic != MAGIC || head < HEADER_BYTES {
            return None;
        }
        let part = |at: usize| {
            let start = head.checked_add(word(bytes, at)? as usize)?;
            bytes.get(start..start.checked_add(word(bytes, at + 4)? as usize)?)
        };
        let (all, strings) = (part(8)?, part(16)?);
        let mut types = Types { bytes: all, strings, starts: Vec::new() };
        let mut at = 0;
        while at < all.len() && types.starts.len() < TYPES_MAX {
            types.starts.push(index_u32(at));
            let (kind, count) = types.shape(at)?;
            at += TYPE_BYTES + extra_bytes(kind, count);
        }
        Some(types)
    }

    /// Kind and number of parts of the type at an offset.
    fn shape(&self, at: usize) -> Option<(u32, usize)> {
        let info = word(self.bytes, at + 4)?;
        Some((info >> 24 & 0x1f, (info & 0xffff) as usize))
    }

    fn is(&self, name_at: u32, name: &[u8]) -> bool {
        let text = self.strings.get(name_at as usize..).unwrap_or_default();
        text.strip_prefix(name).is_some_and(|rest| rest.first() == Some(&0))
    }

    /// The offset of the first type of a kind and name.
    fn named(&self, kind: u32, name: &[u8]) -> Option<usize> {
        let all = self.starts.iter().map(|at| *at as usize);
        let mut of_kind = all.filter(|at| self.shape(*at).is_some_and(|shape| shape.0 == kind));
        of_kind.find(|at| word(self.bytes, *at).is_some_and(|at| self.is(at, name)))
    }

    /// The offset of the type with a number.
    fn numbered(&self, number: u32) -> Option<usize> {
        self.starts.get((number as usize).checked_sub(1)?).map(|at| *at as usize)
    }

    /// Offset of a struct's member, bytes; members of anonymous structs count as its own.
    fn member(&self, at: usize, name: &[u8], depth: usize) -> Option<u32> {
        let (kind, count) = self.shape(at)?;
        if !matches!(kind, STRUCT | UNION) || depth == DEPTH_MAX {
            return None;
        }
        let bit_fields = word(self.bytes, at + 4)? >> 31 == 1;
        (0..count).find_map(|i| {
            let part = at + TYPE_BYTES + i * 12;
            let (name_at, number) = (word(self.bytes, part)?, word(self.bytes, part + 4)?);
            let bits = word(self.bytes, part + 8)?;
            let own = if bit_fields { bits & 0xff_ffff } else { bits } / 8;
            if self.is(name_at, name) {
                return Some(own);
            }
            let nameless = self.is(name_at, b"");
            let inner = self.numbered(number).filter(|_| nameless)?;
            self.member(inner, name, depth + 1)?.checked_add(own)
        })
    }

    /// A per-CPU variable: its offset in the section, and its type.
    fn variable(&self, name: &[u8]) -> Option<(u64, usize)> {
        let section = self.named(SECTION, OWN_DATA)?;
        let (_, count) = self.shape(section)?;
        (0..count).find_map(|i| {
            let part = section + TYPE_BYTES + i * 12;
            let variable = self.numbered(word(self.bytes, part)?)?;
            if self.shape(variable)?.0 != VARIABLE || !self.is(word(self.bytes, variable)?, name) {
                return None;
            }
            let of = self.numbered(word(self.bytes, variable + 8)?)?;
            Some((word(self.bytes, part + 4)?.into(), of))
        })
    }
}

/// Bytes that follow a type's header.
fn extra_bytes(kind: u32, count: usize) -> usize {
    match kind {
        INT | VARIABLE | DECLARATION_TAG => 4,
        ARRAY => 12,
        STRUCT | UNION | SECTION | ENUM64 => count * 12,
        ENUM | PROTOTYPE => count * 8,
        _ => 0,
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(four.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Writes BTF in the kernel's format.
    #[derive(Default)]
    struct Writer {
        types: Vec<u8>,
        strings: Vec<u8>,
    }

    impl Writer {
        fn name(&mut self, name: &str) -> u32 {
            if self.strings.is_empty() {
                self.strings.push(0);
            }
            if name.is_empty() {
                return 0;
            }
            let at = self.strings.len() as u32;
            self.strings.extend(name.bytes().chain([0]));
            at
        }

        fn add(&mut self, name: &str, kind: u32, size: u32, parts: &[[u32; 3]]) {
            let info = kind << 24 | parts.len() as u32;
            let head = [self.name(name), info, size];
            let words = head.into_iter().chain(parts.iter().flatten().copied());
            self.types.extend(words.flat_map(u32::to_le_bytes));
        }

        fn finish(self) -> Vec<u8> {
            let (types, strings) = (self.types.len() as u32, self.strings.len() as u32);
            let mut out = vec![0x9f, 0xeb, 1, 0];
            let words = [HEADER_BYTES as u32, 0, types, types, strings];
            out.extend(words.into_iter().flat_map(u32::to_le_bytes));
            [out, self.types, self.strings].concat()
        }
    }

    /// 1 int, 2 an anonymous struct, 3 pcpu_hot, 4 task_struct, 5 and 6 variables, 7 the section.
    fn kernel(hot: bool) -> Vec<u8> {
        let mut btf = Writer::default();
        btf.add("int", INT, 4, &[]);
        btf.types.extend([0; 4]);
        let (first, current) = (btf.name("first"), btf.name("current_task"));
        btf.add("", STRUCT, 16, &[[first, 1, 0], [current, 1, 64]]);
        btf.add("pcpu_hot", STRUCT, 64, &[[0, 2, 128]]);
        let (pid, tgid) = (btf.name("pid"), btf.name("tgid"));
        btf.add("task_struct", STRUCT, 9000, &[[pid, 1, 2464 * 8], [tgid, 1, 2468 * 8]]);
        let own = if hot { "pcpu_hot" } else { "current_task" };
        for (name, of) in [("other", 1), (own, if hot { 3 } else { 1 })] {
            btf.add(name, VARIABLE, of, &[]);
            btf.types.extend([0; 4]);
        }
        btf.add(".data..percpu", SECTION, 0, &[[5, 4096, 4], [6, 0x3_4000, 64]]);
        btf.finish()
    }

    #[test]
    fn both_layouts_of_the_running_task_are_found() {
        let offsets = |current| TaskOffsets { current, thread: 2464, process: 2468 };
        assert_eq!(task_offsets(&kernel(true)), Some(offsets(0x3_4000 + 16 + 8)));
        assert_eq!(task_offsets(&kernel(false)), Some(offsets(0x3_4000)));
    }

    #[test]
    fn truncated_input_is_refused() {
        let whole = kernel(true);
        for bytes in 0..whole.len() - 1 {
            assert_eq!(task_offsets(&whole[..bytes]), None, "{bytes} bytes");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_safe(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = task_offsets(&bytes);
        }

        #[test]
        fn any_damage_is_safe(at in 0usize..400, value: u8) {
            let mut bytes = kernel(true);
            let length = bytes.len();
            bytes[at % length] = value;
            let _ = task_offsets(&bytes);
        }
    }
}
