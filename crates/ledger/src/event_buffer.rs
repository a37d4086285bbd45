//! Events of objects that a listener consumes one by one, at no cost to anyone else.
//! In: births, growth and deaths as the ledger applies them. Out: [`LedgerEvent`]s, in order. Knows
//! nothing of who listens. Rows keep only what lives: a listener remembers the dead elsewhere.

/// A change of the objects of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerEvent {
    /// The process.
    pub pid: u32,
    /// Its time on the daemon's clock, milliseconds; never later than the ledger's own.
    pub at_ms: u64,
    /// The change.
    pub event: Event,
}

/// A change of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Time of the events that follow, on the daemon's clock, milliseconds.
    pub(crate) at_ms: u64,
    pub(crate) events: Vec<LedgerEvent>,
}

impl EventBuffer {
    /// Takes in an event of a process. An object that dies extent by extent, from either end, makes
    /// one event.
    pub(crate) fn consume(&mut self, pid: u32, event: Event) {
        let at_ms = self.at_ms;
        if let Event::Gone { addr, bytes } = event
            && let Some(last) = self.events.last_mut()
            && (last.pid, last.at_ms) == (pid, at_ms)
            && let Event::Gone { addr: at, bytes: so_far } = &mut last.event
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
        self.events.push(LedgerEvent { pid, at_ms, event });
    }
}
