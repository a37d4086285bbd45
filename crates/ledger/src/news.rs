//! What a listener hears of objects one by one, while nobody else has to pay for it.
//! In: births, growth and ends as the ledger books them. Out: [`News`], in order.
//! Knows nothing of who listens. Rows stay what they are: what is over is remembered elsewhere.

use crate::ledger::Ledger;

/// Something that happened to the objects of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct News {
    /// The process.
    pub pid: u32,
    /// When, daemon's clock, milliseconds; never later than the ledger's own.
    pub at_ms: u64,
    /// What.
    pub event: Event,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An object lives in a range where none lived.
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
        /// Nothing had most of its memory before: the kernel zeroes it when it is touched.
        is_fresh: bool,
    },
    /// The object that ends where this range begins has the range as well.
    Grown {
        /// First byte of the range.
        addr: u64,
        /// Bytes of it.
        bytes: u64,
    },
    /// Nothing lives in this range any longer: objects ended with it, or lost a part.
    Gone {
        /// First byte.
        addr: u64,
        /// Bytes.
        bytes: u64,
    },
    /// The process entered a phase.
    Phase {
        /// The program's number of it.
        number: u64,
    },
}

/// What was not taken yet. A batch of records makes about as many; a resync as many as there are
/// objects, twice.
#[derive(Default)]
pub(crate) struct Newsroom {
    pub(crate) at_ms: u64,
    items: Vec<News>,
}

impl Ledger {
    /// From now on news are kept until they are taken.
    pub fn listen(&mut self) {
        self.news.get_or_insert_default();
    }

    /// The news since the last call, oldest first; none unless somebody listens. `buffer` is left
    /// behind in their place.
    pub fn take_news(&mut self, buffer: &mut Vec<News>) {
        buffer.clear();
        if let Some(room) = &mut self.news {
            std::mem::swap(&mut room.items, buffer);
        }
    }

    /// What follows happened then.
    #[inline]
    pub(crate) fn date(&mut self, at_ms: u64) {
        let now_ms = self.now_ms;
        if let Some(room) = &mut self.news {
            room.at_ms = at_ms.min(now_ms);
        }
    }

    #[inline]
    pub(crate) fn tell(&mut self, slot: u16, event: Event) {
        if self.news.is_some() {
            self.keep(slot, event);
        }
    }

    fn keep(&mut self, slot: u16, event: Event) {
        let pid = self.process(slot).pid;
        let Some(room) = &mut self.news else { return };
        let news = News { pid, at_ms: room.at_ms, event };
        // An object leaves extent by extent, from either end: one piece of news.
        if let Event::Gone { addr, bytes } = event
            && let Some(last) = room.items.last_mut()
            && let Event::Gone { addr: at, bytes: so_far } = &mut last.event
            && (last.pid, last.at_ms) == (pid, room.at_ms)
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
        room.items.push(news);
    }
}
