//! The one place that talks to the kernel: `move_pages` and the OS page size.
//! In: process, addresses, target node. Out: one status per address.
//! Knows nothing of moves or outcomes. [`Kernel`] is a trait so that tests can be a failing kernel.

use tiercel_machine::NodeId;

/// A kernel error number (positive, as in errno).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

/// What a status is before the kernel writes it: an address the kernel never got to keeps it.
pub const STATUS_UNTOUCHED: i32 = i32::MIN;

/// linux/mempolicy.h: move only OS pages that this process alone maps. (MPOL_MF_MOVE_ALL needs
/// CAP_SYS_NICE and would move memory that others use too.)
const MPOL_MF_MOVE: libc::c_int = 1 << 1;

/// The system calls a mover needs.
pub trait Kernel {
    /// `move_pages(2)` for OS pages that belong to `pid`, with MPOL_MF_MOVE (only OS pages that no
    /// other process maps). With a target: moves there; without: asks where they are. Each status
    /// becomes a node number or a negated errno, or stays as it was where the kernel stopped early.
    /// Returns how many OS pages the kernel says it did not move. `addrs` and `status` have the
    /// same length.
    fn move_pages(
        &mut self,
        pid: u32,
        addrs: &[u64],
        target: Option<NodeId>,
        status: &mut [i32],
    ) -> Result<u64, Errno>;

    /// Bytes of an OS page.
    fn os_page_bytes(&self) -> u64;
}

/// The running kernel.
#[derive(Debug, Default)]
pub struct Linux {
    /// The same target for every address, as the call wants it; kept to save an allocation per
    /// call.
    targets: Vec<libc::c_int>,
}

impl Kernel for Linux {
    fn move_pages(
        &mut self,
        pid: u32,
        addrs: &[u64],
        target: Option<NodeId>,
        status: &mut [i32],
    ) -> Result<u64, Errno> {
        assert_eq!(addrs.len(), status.len());
        let targets = match target {
            Some(node) => {
                self.targets.clear();
                self.targets.resize(addrs.len(), libc::c_int::from(node.0));
                self.targets.as_ptr()
            }
            None => std::ptr::null(),
        };
        // SAFETY: the kernel reads `addrs.len()` addresses (u64 has the size of a pointer on the
        // 64-bit systems this builds for, checked below) and as many targets unless null, and
        // writes as many statuses; all three live and are long enough, as asserted. The addresses
        // are the other process's and are only looked up, never dereferenced here.
        let result = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                libc::c_long::from(pid),
                addrs.len(),
                addrs.as_ptr(),
                targets,
                status.as_mut_ptr(),
                MPOL_MF_MOVE,
            )
        };
        u64::try_from(result).map_err(|_| Errno::last())
    }

    fn os_page_bytes(&self) -> u64 {
        // SAFETY: sysconf reads a constant of the system.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        u64::try_from(bytes).expect("_SC_PAGESIZE is always known")
    }
}

const _: () = assert!(size_of::<u64>() == size_of::<*const libc::c_void>());

impl Errno {
    /// ESRCH: the process is gone, or what could act on it is.
    pub const GONE: Errno = Errno(libc::ESRCH);

    pub(crate) fn last() -> Errno {
        Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    }
}

impl std::fmt::Display for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}
