//! Accounting of one node's pool. In: grants, returns, deaths. Out: who holds how much, and whether
//! there is room. Pure: it holds no memory, only figures.

use std::collections::BTreeMap;

/// Who holds segments: a process, under a number that is never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    /// The process.
    pub number: u64,
    /// Its user.
    pub user: u32,
}

/// Number of a segment, unique in a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId(pub u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Populated, without an owner.
    Ready,
    /// Its owner's.
    Granted(Owner),
    /// Given back and emptied; a process of this user may still map it and fill it again.
    Returned(u32),
    /// Its owner is gone; a child of it, of this user, may still map it.
    Left(u32),
}

impl State {
    /// The user whose it is, or was and still may be.
    fn user(self) -> Option<u32> {
        match self {
            State::Ready => None,
            State::Granted(owner) => Some(owner.user),
            State::Returned(user) | State::Left(user) => Some(user),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// What it takes of the pool.
    bytes: u64,
    state: State,
}

/// What one pool has granted. `ready + granted + returned + left <= capacity`, but where returned
/// memory was filled again behind our back.
#[derive(Clone, Debug)]
pub struct Account {
    capacity_bytes: u64,
    entries: BTreeMap<SegmentId, Entry>,
}

/// What a pool holds, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// All of it.
    pub capacity: u64,
    /// May still be handed out.
    pub free: u64,
    /// Populated ahead; part of `free`.
    pub ready: u64,
    /// Granted to owners.
    pub granted: u64,
    /// Given back, and filled again by a process that kept it mapped.
    pub returned: u64,
    /// Of owners that are gone, still mapped by their children.
    pub left: u64,
}

impl Account {
    /// Of an empty pool.
    pub fn new(capacity_bytes: u64) -> Account {
        Account { capacity_bytes, entries: BTreeMap::new() }
    }

    /// What it holds.
    pub fn figures(&self) -> Figures {
        let mut figures = Figures { capacity: self.capacity_bytes, ..Figures::default() };
        for entry in self.entries.values() {
            *match entry.state {
                State::Ready => &mut figures.ready,
                State::Granted(_) => &mut figures.granted,
                State::Returned(_) => &mut figures.returned,
                State::Left(_) => &mut figures.left,
            } += entry.bytes;
        }
        let taken = figures.granted + figures.returned + figures.left;
        figures.free = self.capacity_bytes.saturating_sub(taken);
        figures
    }

    /// Capacity that is neither granted nor populated, bytes.
    pub fn unmade_bytes(&self) -> u64 {
        let figures = self.figures();
        figures.free.saturating_sub(figures.ready)
    }

    /// Memory of `bytes` was made ready.
    pub fn made(&mut self, id: SegmentId, bytes: u64) {
        assert!(bytes <= self.unmade_bytes(), "made within the capacity");
        let before = self.entries.insert(id, Entry { bytes, state: State::Ready });
        assert!(before.is_none(), "numbers are given once");
    }

    /// Ready segments of exactly so many bytes.
    pub fn ready(&self, bytes: u64) -> impl Iterator<Item = SegmentId> {
        let entries = self.entries.iter();
        entries.filter(move |(_, e)| e.state == State::Ready && e.bytes == bytes).map(|(id, _)| *id)
    }

    /// Any ready segment.
    pub fn any_ready(&self) -> Option<SegmentId> {
        self.entries.iter().find(|(_, e)| e.state == State::Ready).map(|(id, _)| *id)
    }

    /// A ready segment gets an owner.
    pub fn granted(&mut self, id: SegmentId, owner: Owner) {
        let entry = self.entries.get_mut(&id).expect("a segment of this pool");
        assert_eq!(entry.state, State::Ready, "only what is ready is granted");
        entry.state = State::Granted(owner);
    }

    /// True when `owner` holds it.
    pub fn is_held(&self, id: SegmentId, owner: Owner) -> bool {
        self.entries.get(&id).is_some_and(|e| e.state == State::Granted(owner))
    }

    /// Bytes that processes of a user hold, or have returned or left and may still use.
    pub fn of_user(&self, user: u32) -> u64 {
        let theirs = self.entries.values().filter(|entry| entry.state.user() == Some(user));
        theirs.map(|entry| entry.bytes).sum()
    }

    /// How many segments `owner` holds.
    pub fn held(&self, owner: Owner) -> usize {
        self.entries.values().filter(|e| e.state == State::Granted(owner)).count()
    }

    /// Its owner gave it back, and it was emptied.
    pub fn returned(&mut self, id: SegmentId) {
        let entry = self.entries.get_mut(&id).expect("a segment of this pool");
        let State::Granted(owner) = entry.state else { panic!("only what is granted comes back") };
        *entry = Entry { bytes: 0, state: State::Returned(owner.user) };
    }

    /// Its owner needs it no longer, or was seen not to have it any more; a child may map it.
    pub fn left(&mut self, id: SegmentId) {
        let entry = self.entries.get_mut(&id).expect("a segment of this pool");
        let State::Granted(owner) = entry.state else { panic!("only what is granted is left") };
        entry.state = State::Left(owner.user);
    }

    /// All that owners hold.
    pub fn all_held(&self) -> Vec<SegmentId> {
        let held = |e: &Entry| matches!(e.state, State::Granted(_));
        self.entries.iter().filter(|(_, e)| held(e)).map(|(id, _)| *id).collect()
    }

    /// An owner is gone; whatever it held is now on its way back.
    pub fn gone(&mut self, owner: Owner) {
        for entry in self.entries.values_mut().filter(|e| e.state == State::Granted(owner)) {
            entry.state = State::Left(owner.user);
        }
    }

    /// Those that are on their way back.
    pub fn lingering(&self) -> Vec<SegmentId> {
        let on_way = |e: &Entry| matches!(e.state, State::Returned(_) | State::Left(_));
        self.entries.iter().filter(|(_, e)| on_way(e)).map(|(id, _)| *id).collect()
    }

    /// A returned segment was seen to hold so many bytes.
    pub fn seen(&mut self, id: SegmentId, bytes: u64) {
        if let Some(entry) = self.entries.get_mut(&id)
            && matches!(entry.state, State::Returned(_))
        {
            entry.bytes = bytes;
        }
    }

    /// The memory is the kernel's again.
    pub fn freed(&mut self, id: SegmentId) {
        let entry = self.entries.remove(&id).expect("a segment of this pool");
        assert!(!matches!(entry.state, State::Granted(_)), "what is held is not freed");
    }
}
