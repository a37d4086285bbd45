//! What one user's processes may use of a daemon that serves all users. In: limits of the whole.
//! Out: limits of each user, and accounts of what is in use. Knows nothing of who uses what.
//!
//! docs/security.md has the table of these and all other bounds.

use crate::net::socket_dir::Access;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tiercel_ledger::Bounds;

/// Parts of a limit of which one user has one. With a quarter, three users who take all they may
/// leave as much to every other.
const PARTS: usize = 4;

/// Bytes for the sites of processes that are there, and again for those of processes that have
/// left: some ten thousand each, at about 1 KiB for a site with its stack.
const SITE_BYTES: usize = 12 << 20;

/// Sites whose history the ledger keeps for all users, at 120 bytes: 15 MiB.
const HISTORIES: usize = 1 << 17;

/// Deaths before their births that it remembers for all users, at 60 bytes: 8 MiB.
const EARLY_DEATHS: usize = 1 << 17;

/// Limits of one user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quota {
    access: Access,
    /// Hosted processes.
    pub(crate) clients: usize,
}

impl Quota {
    /// Of a daemon that hosts `clients_max` processes in all. Where it serves one user, that user
    /// has all of it.
    pub(crate) fn new(access: Access, clients_max: usize) -> Quota {
        Quota { access, clients: share(access, clients_max) }
    }

    /// What the ledger may keep for one user and for all, of `extents_max` in all.
    pub(crate) fn of_ledger(self, extents_max: u32) -> (Bounds, Bounds) {
        let all = match self.access {
            Access::Owner => Bounds::default(),
            Access::AllUsers => {
                Bounds { extents: extents_max, sites: bound(HISTORIES), early: bound(EARLY_DEATHS) }
            }
        };
        let part = |of: u32| bound(share(self.access, of as usize));
        let one =
            Bounds { extents: part(all.extents), sites: part(all.sites), early: part(all.early) };
        (one, all)
    }

    /// Bytes of a budget that one user may be promised without touching them.
    pub(crate) fn promised_bytes(self, budget_bytes: u64) -> u64 {
        match self.access {
            Access::Owner => budget_bytes,
            Access::AllUsers => budget_bytes / PARTS as u64,
        }
    }

    /// An account of the bytes of all users' sites.
    pub(crate) fn site_account(self) -> Account {
        match self.access {
            Access::Owner => Account::new(4 * SITE_BYTES, 4 * SITE_BYTES),
            Access::AllUsers => Account::new(SITE_BYTES, share(self.access, SITE_BYTES)),
        }
    }
}

fn share(access: Access, of: usize) -> usize {
    match access {
        Access::Owner => of,
        Access::AllUsers => of.div_ceil(PARTS),
    }
}

fn bound(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

/// Bytes in use by all users, of which each has a share.
#[derive(Debug)]
pub(crate) struct Account {
    all: Arc<Sum>,
    share_max: usize,
}

#[derive(Debug)]
struct Sum {
    used: AtomicUsize,
    max: usize,
}

/// One user's share of an [`Account`]. Clones are the same share.
#[derive(Clone, Debug)]
pub(crate) struct Allowance {
    own: Arc<Sum>,
    all: Arc<Sum>,
}

impl Account {
    pub(crate) fn new(max: usize, share_max: usize) -> Account {
        Account { all: Sum::new(max), share_max }
    }

    /// A share for one more user.
    pub(crate) fn allowance(&self) -> Allowance {
        Allowance { own: Sum::new(self.share_max), all: Arc::clone(&self.all) }
    }
}

impl Allowance {
    /// Takes bytes, if there are so many left.
    pub(crate) fn take(&self, bytes: usize) -> bool {
        if !self.own.take(bytes) {
            return false;
        }
        let is_taken = self.all.take(bytes);
        if !is_taken {
            self.own.give_back(bytes);
        }
        is_taken
    }

    /// Gives bytes back that were taken.
    pub(crate) fn give_back(&self, bytes: usize) {
        self.own.give_back(bytes);
        self.all.give_back(bytes);
    }
}

impl Sum {
    fn new(max: usize) -> Arc<Sum> {
        Arc::new(Sum { used: AtomicUsize::new(0), max })
    }

    fn take(&self, bytes: usize) -> bool {
        let more = |used: usize| used.checked_add(bytes).filter(|used| *used <= self.max);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_a_quarter_of_a_daemon_for_all() {
        assert_eq!(Quota::new(Access::AllUsers, 4096).clients, 1024);
        assert_eq!(Quota::new(Access::AllUsers, 1).clients, 1);
        assert_eq!(Quota::new(Access::Owner, 4096).clients, 4096);
        let (one, all) = Quota::new(Access::AllUsers, 1).of_ledger(32 << 20);
        assert_eq!((one.extents, all.extents), (8 << 20, 32 << 20));
        let (one, all) = Quota::new(Access::Owner, 1).of_ledger(32 << 20);
        assert_eq!(one, all);
    }

    #[test]
    fn one_user_leaves_the_shares_of_the_others() {
        let account = Account::new(100, 25);
        let (greedy, other) = (account.allowance(), account.allowance());
        assert!(greedy.take(20) && !greedy.take(6) && greedy.take(5));
        assert!(other.take(25) && !other.take(1));
        greedy.give_back(5);
        assert!(greedy.take(5) && !greedy.take(1));
        let more: Vec<Allowance> = (0..3).map(|_| account.allowance()).collect();
        let taken: Vec<bool> = more.iter().map(|share| share.take(25)).collect();
        assert_eq!(taken, [true, true, false], "and all have no more than there is");
        assert!(more[2].clone().own.take(25), "what was refused is not counted");
    }
}
