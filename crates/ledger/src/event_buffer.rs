//! Events of objects that a listener consumes one by one, at no cost to anyone else.
//! In: births, growth, deaths and accesses as the ledger applies them. Out: [`LedgerEvent`]s, in
//! order. Knows nothing of who listens. Rows keep only what lives: a listener remembers the dead
//! elsewhere.

use tiercel_wire::Sample;

/// A change of the objects of a process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LedgerEvent {
    /// The process.
    pub pid: u32,
    /// Its time on the daemon's clock, nanoseconds.
    pub at_ns: u64,
    /// The change.
    pub event: Event,
}

/// A change of objects, or an access to one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// An object was born in a range without objects.
    Born {
        /// First byte.
        addr: u64,
        /// Bytes.
        bytes: u64,
        /// Index into the process's site table, 0 = unknown.
        site: u32,
        /// A block of small slots, not one allocation.
        is_block: bool,
        /// Made by mmap, served by the kernel.
        is_mapped: bool,
        /// Most of its memory was never used before: the kernel zeroes it at first touch.
        is_fresh: bool,
    },
    /// The object that ends where this range begins now covers the range too.
    Grown {
        /// First byte of the range.
        addr: u64,
        /// Bytes of it.
        bytes: u64,
    },
    /// The range holds no object any longer: objects died, or lost a part.
    Gone {
        /// First byte.
        addr: u64,
        /// Bytes.
        bytes: u64,
        /// Number of the life that ended, by which accesses that are learned of later name it.
        life: u64,
    },
    /// An access was attributed.
    Accessed {
        /// It, or a part of it: what was seen of several lives is shared among them.
        sample: Sample,
        /// Number of the life that it belongs to, which has ended; `None`: it belongs to the object
        /// that lives at its address.
        life: Option<u64>,
    },
    /// Lives with lower numbers get no access any more.
    Forgotten {
        /// The number.
        before: u64,
    },
    /// The process entered a phase.
    Phase {
        /// The phase's number in the program.
        number: u64,
    },
}

/// Events that were not taken yet. A batch of records makes about as many events as it has records;
/// a resync makes two for each object.
#[derive(Default)]
pub(crate) struct EventBuffer {
    pub(crate) events: Vec<LedgerEvent>,
}

impl EventBuffer {
    /// Takes in an event of a process. An object that dies extent by extent, from either end, makes
    /// one event.
    pub(crate) fn consume(&mut self, pid: u32, at_ns: u64, event: Event) {
        if let Event::Gone { addr, bytes, life } = event
            && let Some(last) = self.events.last_mut()
            && last.pid == pid
            && let Event::Gone { addr: at, bytes: so_far, life: same } = &mut last.event
            && *same == life
        {
            if addr + bytes == *at {
                (*at, *so_far) = (addr, bytes + *so_far);
                return;
            }
            if *at + *so_far == addr {
                *so_far += bytes;
                return;
            }
        }
        self.events.push(LedgerEvent { pid, at_ns, event });
    }
}
