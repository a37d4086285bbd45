//! The offer: a file beside the daemon's socket from which processes learn when to attach, and how
//! their sessions begin.
//! In: terms, and what a session is given when it is welcomed. Out: the file; what processes count
//! in it. Knows nothing of sockets.
//!
//! A process attaches without waiting for an answer. Until it has one, its control page is what the
//! offer holds, and the rows of its plan are those of the offer.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::bits::{half, high32, index, low32};
use crate::client::SessionBuilder;
use crate::greeting::{get, get_u64, put, put_u64};
use crate::layout::{
    CONTROL, CONTROL_AT, MAGIC, OFFER_BYTES, OS_PAGE_BYTES, PLAN_AT, PLAN_OFFERED, PLAN_ROW_BYTES,
    PLAN_ROWS_MAX, WIRE_VERSION, control, offer,
};
use crate::session::Session;

/// When a process attaches, and what it brings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// It attaches when it has allocated so many bytes; 0: as it starts.
    pub attach_bytes: u64,
    /// Or at the first birth so long after its start, milliseconds.
    pub attach_ms: u32,
    /// Userfaultfds that its hello should bring.
    pub userfaultfds: u32,
    /// It counts itself.
    pub is_counted: bool,
}

/// What processes counted: claims.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Programs that started, and forked children that allocated.
    pub began: u64,
    /// Of those, how many attached.
    pub attached: u64,
    /// Of those, how many tried in vain.
    pub failed: u64,
    /// What the first of them tried, and the error.
    pub failure: Option<String>,
}

/// The offer of a daemon.
pub struct Offer {
    file: File,
    terms: [u8; offer::BEGAN],
    /// What a new session holds.
    session: Session,
}

impl Offer {
    /// An offer in an empty file.
    pub fn new(file: File, terms: &Terms) -> io::Result<Offer> {
        let client = SessionBuilder::new().range(0, 0).build()?;
        let session = Session::open(client.fd()?).map_err(io::Error::other)?;
        file.set_len(OFFER_BYTES)?;
        Ok(Offer { file, terms: encode(terms), session })
    }

    /// What new sessions begin with. It is offered by [`Offer::publish`].
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Offers what the session holds. Counts are kept.
    pub fn publish(&self) -> io::Result<()> {
        let plan =
            self.session.control_word(control::PLAN).load(std::sync::atomic::Ordering::Relaxed);
        let rows = index(low32(plan).into()).min(PLAN_ROWS_MAX);
        let generation = high32(plan);
        let table = index(u64::from(generation % 2)) * PLAN_ROWS_MAX * PLAN_ROW_BYTES;
        let table_at = PLAN_AT + table as u64;
        if rows > 0 {
            let table = self.session.copy_front(index(table_at), rows * PLAN_ROW_BYTES);
            self.file.write_all_at(&table, table_at)?;
        }
        let mut page = self.session.copy_front(CONTROL, index(OS_PAGE_BYTES));
        put(&mut page, control::ANSWER, 0);
        if rows > 0 {
            let word = u64::from(PLAN_OFFERED.wrapping_add(generation)) << 32 | rows as u64;
            put_u64(&mut page, control::PLAN, word);
        }
        self.file.write_all_at(&page, CONTROL_AT)?;
        // Last: before, the file is none that a process believes.
        self.file.write_all_at(&self.terms, 0)
    }

    /// What processes counted so far.
    pub fn counts(&self) -> io::Result<Counts> {
        let mut bytes = [0; offer::BYTES];
        self.file.read_exact_at(&mut bytes, 0)?;
        let errno = get(&bytes, offer::FAILED_ERRNO).cast_signed();
        let step = match get(&bytes, offer::FAILED_STEP) {
            1 => Some("connecting to the daemon"),
            2 => Some("memory shared with the daemon"),
            3 => Some("greeting the daemon"),
            _ => None,
        };
        Ok(Counts {
            began: get_u64(&bytes, offer::BEGAN),
            attached: get_u64(&bytes, offer::ATTACHED),
            failed: get_u64(&bytes, offer::FAILED),
            failure: step.map(|step| format!("{step}: {}", io::Error::from_raw_os_error(errno))),
        })
    }
}

fn encode(terms: &Terms) -> [u8; offer::BEGAN] {
    let mut bytes = [0; offer::BEGAN];
    put(&mut bytes, offer::MAGIC, MAGIC);
    put(&mut bytes, offer::VERSION, WIRE_VERSION);
    put_u64(&mut bytes, offer::ATTACH_BYTES, terms.attach_bytes);
    put(&mut bytes, offer::ATTACH_MS, terms.attach_ms);
    put(&mut bytes, offer::USERFAULTFDS, terms.userfaultfds);
    put(&mut bytes, offer::IS_COUNTED, half(usize::from(terms.is_counted)));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planned::PlanRow;
    use std::sync::atomic::Ordering;

    fn offer(terms: &Terms) -> Offer {
        Offer::new(tempfile::tempfile().unwrap(), terms).unwrap()
    }

    #[test]
    fn an_offer_begins_with_its_terms_and_counts_nothing() {
        let terms =
            Terms { attach_bytes: 1 << 20, attach_ms: 7, is_counted: true, ..Terms::default() };
        let offer = offer(&terms);
        offer.publish().unwrap();
        let mut bytes = [0; offer::BYTES];
        offer.file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(get_u64(&bytes, offer::ATTACH_BYTES), 1 << 20);
        assert_eq!((get(&bytes, offer::ATTACH_MS), get(&bytes, offer::IS_COUNTED)), (7, 1));
        assert_eq!(offer.counts().unwrap(), Counts::default());
    }

    #[test]
    fn what_processes_claim_is_read_back() {
        let offer = offer(&Terms::default());
        let mut bytes = [0; 32];
        put_u64(&mut bytes, 0, 9);
        put_u64(&mut bytes, 8, 4);
        put_u64(&mut bytes, 16, 1);
        put(&mut bytes, 24, 2);
        put(&mut bytes, 28, libc::EPERM.cast_unsigned());
        offer.file.write_all_at(&bytes, offer::BEGAN as u64).unwrap();
        offer.publish().unwrap();
        let counts = offer.counts().unwrap();
        assert_eq!((counts.began, counts.attached, counts.failed), (9, 4, 1));
        assert!(counts.failure.unwrap().starts_with("memory shared with the daemon: Operation"));
    }

    #[test]
    fn rows_of_a_plan_are_offered_under_a_generation_of_their_own() {
        let mut offer = offer(&Terms::default());
        let row = PlanRow { site: 5, size_class: 12, arena: 1, share: 255, ..PlanRow::default() };
        for generation in 1..=2u32 {
            offer.session().set_plan(&[row], Some(1)).unwrap();
            offer.session().set_small_arena(3);
            offer.publish().unwrap();
            let mut page = [0; 4096];
            offer.file.read_exact_at(&mut page, CONTROL_AT).unwrap();
            let word = get_u64(&page, control::PLAN);
            assert_eq!(word, u64::from(PLAN_OFFERED + generation) << 32 | 1);
            assert_eq!(get(&page, control::SMALL_ARENA), 3);
            let table = u64::from(generation % 2) * (PLAN_ROWS_MAX * PLAN_ROW_BYTES) as u64;
            let mut site = [0; 8];
            offer.file.read_exact_at(&mut site, PLAN_AT + table).unwrap();
            assert_eq!(u64::from_le_bytes(site), 5);
        }
        let plan = offer.session.control_word(control::PLAN).load(Ordering::Relaxed);
        assert_eq!(plan >> 32, 2, "the session's own is unchanged");
    }
}
