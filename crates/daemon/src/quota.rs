//! What one user's processes may use of a daemon that serves all users. In: limits of the whole.
//! Out: limits of each user. Knows nothing of who uses what.
//!
//! docs/security.md has the table of these and all other bounds.

use crate::net::socket_dir::Access;

/// Parts of a limit of which one user has one. With a quarter, three users who take all they may
/// leave as much to every other.
const PARTS: usize = 4;

/// Limits of one user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quota {
    /// Hosted processes.
    pub(crate) clients: usize,
}

impl Quota {
    /// Of a daemon that hosts `clients_max` processes in all. Where it serves one user, that user
    /// has all of it.
    pub(crate) fn new(access: Access, clients_max: usize) -> Quota {
        match access {
            Access::Owner => Quota { clients: clients_max },
            Access::AllUsers => Quota { clients: clients_max.div_ceil(PARTS) },
        }
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
    }
}
