//! Pools of all nodes, with their memory. In: what owners ask. Out: grants, figures. Knows nothing
//! of how an owner asks, or how it is known to be gone.

use crate::account::{Account, Figures, Owner, SegmentId};
use crate::memory::{Memory, Segment, Vpage};
use crate::{OWNER_SEGMENTS_MAX, PoolError, READY_BYTES, SEGMENT_UNIT_BYTES};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use tiercel_machine::NodeId;

/// All pools of a machine.
pub struct Server<M: Memory> {
    memory: M,
    pools: BTreeMap<NodeId, Pool>,
    /// Bytes of each pool that are kept ready of small OS pages.
    ready_bytes: u64,
    /// A user may hold one of so many parts of a pool.
    user_parts: u64,
    next: u32,
}

struct Pool {
    account: Account,
    segments: BTreeMap<SegmentId, Box<dyn Segment>>,
    /// Those of huge OS pages.
    large: BTreeSet<SegmentId>,
    is_emulated: bool,
    /// Segments that were made, asked for, refused.
    made: u64,
    granted: u64,
    refused: u64,
    /// Why the last one could not be made ready.
    trouble: Option<PoolError>,
}

/// What an owner gets.
#[derive(Debug)]
pub struct Grant {
    /// Its number, to give it back.
    pub id: SegmentId,
    /// The memory; a file description of the owner's own.
    pub fd: OwnedFd,
    /// How much.
    pub bytes: u64,
    /// True: the node is modelled, the memory lies anywhere.
    pub is_emulated: bool,
    /// True: a file without a name; else a sealed memfd.
    pub is_file: bool,
}

/// A pool as others may see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Of which node.
    pub node: NodeId,
    /// Its bytes.
    pub figures: Figures,
    /// True: the node is modelled.
    pub is_emulated: bool,
    /// Segments made so far.
    pub made: u64,
    /// Segments granted so far.
    pub granted: u64,
    /// Asked for and refused so far.
    pub refused: u64,
    /// Why none could be made ready.
    pub trouble: Option<PoolError>,
}

impl Pool {
    /// What should be made ready next: one of each sort, and then more small OS pages.
    fn wanted(&self, ready_bytes: u64) -> Option<Vpage> {
        let can = self.trouble.is_none() && self.account.unmade_bytes() >= READY_BYTES;
        let is_large = |id: &SegmentId| self.large.contains(id);
        let large = self.account.ready(READY_BYTES).filter(is_large).count() as u64;
        let small = self.account.ready(READY_BYTES).count() as u64 - large;
        if !can || ready_bytes < READY_BYTES {
            None
        } else if small > 0 && large == 0 {
            Some(Vpage::Large)
        } else {
            ((small + 1) * READY_BYTES <= ready_bytes).then_some(Vpage::Small)
        }
    }

    /// The memory is the kernel's again.
    fn forget(&mut self, id: SegmentId) {
        self.account.freed(id);
        self.segments.remove(&id);
        self.large.remove(&id);
    }
}

impl<M: Memory> Server<M> {
    /// Pools of so many bytes, rounded down to whole units; up to `ready_bytes` of each are kept
    /// populated ahead, and besides one segment of huge OS pages.
    pub fn new(memory: M, capacities: &[(NodeId, u64)], ready_bytes: u64) -> Server<M> {
        let pool = |bytes: u64| Pool {
            account: Account::new(bytes / SEGMENT_UNIT_BYTES * SEGMENT_UNIT_BYTES),
            segments: BTreeMap::new(),
            large: BTreeSet::new(),
            is_emulated: false,
            made: 0,
            granted: 0,
            refused: 0,
            trouble: None,
        };
        let pools = capacities.iter().map(|(node, bytes)| (*node, pool(*bytes))).collect();
        Server { memory, pools, ready_bytes, user_parts: 1, next: 1 }
    }

    /// Each user may hold one of so many parts of a pool, and at least one segment of the usual
    /// size.
    #[must_use]
    pub fn shared_by_users(self, parts: u64) -> Server<M> {
        assert!(parts > 0, "a user has a part");
        Server { user_parts: parts, ..self }
    }

    /// A segment of `bytes`, a multiple of [`SEGMENT_UNIT_BYTES`], for `owner`.
    pub fn grant(
        &mut self,
        owner: Owner,
        node: NodeId,
        bytes: u64,
        vpage: Vpage,
    ) -> Result<Grant, PoolError> {
        let granted = self.try_grant(owner, node, bytes, vpage);
        if let Some(pool) = self.pools.get_mut(&node) {
            *(if granted.is_ok() { &mut pool.granted } else { &mut pool.refused }) += 1;
        }
        granted
    }

    fn try_grant(
        &mut self,
        owner: Owner,
        node: NodeId,
        bytes: u64,
        vpage: Vpage,
    ) -> Result<Grant, PoolError> {
        if bytes == 0 || !bytes.is_multiple_of(SEGMENT_UNIT_BYTES) {
            return Err(PoolError::Size(bytes));
        }
        if self.pools.values().map(|pool| pool.account.held(owner)).sum::<usize>()
            >= OWNER_SEGMENTS_MAX
        {
            return Err(PoolError::TooMany);
        }
        self.sweep();
        let pool = self.pools.get_mut(&node).ok_or(PoolError::NoPool(node))?;
        let Figures { free, capacity, .. } = pool.account.figures();
        let (user, held) = (owner.user, pool.account.of_user(owner.user));
        let most = (capacity / self.user_parts).max(READY_BYTES).min(capacity);
        if held + bytes.min(capacity) > most && free >= bytes {
            return Err(PoolError::Share { node, user, held, most });
        }
        if free < bytes {
            return Err(PoolError::Exhausted { node, asked: bytes, free });
        }
        let is_large = vpage == Vpage::Large;
        let ready = pool.account.ready(bytes).find(|id| pool.large.contains(id) == is_large);
        let id = match ready {
            Some(id) => id,
            None => {
                while pool.account.unmade_bytes() < bytes {
                    let spare = pool.account.any_ready().expect("what is free and made is ready");
                    pool.forget(spare);
                }
                self.make(node, bytes, vpage)?
            }
        };
        let pool = self.pools.get_mut(&node).ok_or(PoolError::NoPool(node))?;
        let fd = pool.segments[&id].share().map_err(|errno| PoolError::NoMemfd {
            what: "opening it once more for its owner",
            errno,
        })?;
        pool.account.granted(id, owner);
        let is_file = self.memory.is_of_files(node);
        Ok(Grant { id, fd, bytes, is_emulated: pool.is_emulated, is_file })
    }

    fn make(&mut self, node: NodeId, bytes: u64, vpage: Vpage) -> Result<SegmentId, PoolError> {
        let made = self.memory.make(node, bytes, vpage)?;
        let pool = self.pools.get_mut(&node).ok_or(PoolError::NoPool(node))?;
        let id = SegmentId(self.next);
        self.next = self.next.checked_add(1).ok_or(PoolError::TooMany)?;
        pool.account.made(id, bytes);
        pool.segments.insert(id, made.segment);
        if vpage == Vpage::Large {
            pool.large.insert(id);
        }
        pool.is_emulated = made.is_emulated;
        pool.made += 1;
        Ok(id)
    }

    /// `owner` needs it no longer. Its memory goes back to the kernel at once, even if it is still
    /// mapped.
    pub fn give_back(&mut self, owner: Owner, id: SegmentId) -> Result<(), PoolError> {
        let pool = self.holding(owner, id)?;
        if pool.segments[&id].scrub() {
            pool.account.returned(id);
        }
        self.sweep();
        Ok(())
    }

    /// `owner` needs it no longer, but a child of its may: it ends with the last mapping.
    pub fn leave(&mut self, owner: Owner, id: SegmentId) -> Result<(), PoolError> {
        self.holding(owner, id)?.account.left(id);
        self.sweep();
        Ok(())
    }

    /// The pool whose segment it is, if `owner` holds that.
    fn holding(&mut self, owner: Owner, id: SegmentId) -> Result<&mut Pool, PoolError> {
        let mut pools = self.pools.values_mut();
        pools.find(|pool| pool.account.is_held(id, owner)).ok_or(PoolError::Foreign(id.0))
    }

    /// Takes back what is granted and not mapped: its owner ran another program, or forgot it.
    /// What owners made longer is cut off.
    /// True while owners, or processes that outlive them, still hold something.
    pub fn reap(&mut self) -> bool {
        for pool in self.pools.values_mut() {
            for id in pool.account.all_held() {
                pool.segments[&id].keep_size();
                if pool.segments[&id].is_let_go() {
                    pool.account.left(id);
                }
            }
        }
        self.sweep();
        self.pools.values().any(|pool| {
            let figures = pool.account.figures();
            figures.granted + figures.left > 0 || !pool.account.lingering().is_empty()
        })
    }

    /// `owner` is gone.
    pub fn gone(&mut self, owner: Owner) {
        for pool in self.pools.values_mut() {
            pool.account.gone(owner);
        }
        self.sweep();
    }

    /// Finds segments that are no longer mapped, and how much of the returned memory is in use
    /// again.
    pub fn sweep(&mut self) {
        for pool in self.pools.values_mut() {
            for id in pool.account.lingering() {
                if pool.segments[&id].is_let_go() {
                    pool.forget(id);
                    pool.trouble = None;
                } else {
                    pool.segments[&id].keep_size();
                    pool.account.seen(id, pool.segments[&id].resident_bytes());
                }
            }
        }
    }

    /// Makes one segment ready where too little is; false when there is nothing to do, or the last
    /// try failed and nothing has changed since.
    pub fn prepare(&mut self) -> bool {
        let ready_bytes = self.ready_bytes;
        let mut pools = self.pools.iter();
        let wanted = pools.find_map(|(node, pool)| Some((*node, pool.wanted(ready_bytes)?)));
        let Some((node, vpage)) = wanted else { return false };
        let made = self.make(node, READY_BYTES, vpage);
        if let (Err(error), Some(pool)) = (&made, self.pools.get_mut(&node)) {
            pool.trouble = Some(error.clone());
        }
        made.is_ok()
    }

    /// All pools, ascending by node.
    pub fn status(&self) -> Vec<Status> {
        let one = |(node, pool): (&NodeId, &Pool)| Status {
            node: *node,
            figures: pool.account.figures(),
            is_emulated: pool.is_emulated,
            made: pool.made,
            granted: pool.granted,
            refused: pool.refused,
            trouble: pool.trouble.clone(),
        };
        self.pools.iter().map(one).collect()
    }
}
