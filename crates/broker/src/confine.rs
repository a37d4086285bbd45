//! What each process of a split daemon gives up. In: a process with privileges. Out: one that has
//! those it needs. Knows nothing of what it does with them.

use caps::{CapSet, Capability, CapsHashSet};
use nix::sched::CloneFlags;
use nix::unistd::{Gid, Uid, User};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

/// The front's user, if the machine has one of this name; else [`OVERFLOW_ID`].
const USER: &str = "tiercel";
/// Owns no file: the kernel's `overflowuid`.
const OVERFLOW_ID: u32 = 65534;

/// What the broker keeps.
const KEPT: [Capability; 6] = [
    Capability::CAP_SYS_NICE,   // move_pages of other users' processes
    Capability::CAP_SYS_PTRACE, // their /proc/PID/pagemap, exe and auxv; move_pages
    Capability::CAP_PERFMON,    // perf_event_open
    Capability::CAP_BPF,        // the bpf sampler
    Capability::CAP_SETUID,     // opens those files as their owner; children that read symbols
    Capability::CAP_SETGID,
];

/// System calls of the front: sockets, threads, memory, files that everyone may read. None that
/// runs a program, sees or stops another process, or makes a kernel object of a rarer kind.
#[rustfmt::skip]
const CALLS: &[libc::c_long] = &[
    // Files
    libc::SYS_read, libc::SYS_write, libc::SYS_readv, libc::SYS_writev, libc::SYS_pread64,
    libc::SYS_pwrite64, libc::SYS_openat, libc::SYS_close, libc::SYS_fstat, libc::SYS_newfstatat,
    libc::SYS_statx, libc::SYS_fstatfs, libc::SYS_lseek, libc::SYS_getdents64,
    libc::SYS_readlinkat, libc::SYS_unlinkat, libc::SYS_faccessat, libc::SYS_faccessat2,
    libc::SYS_dup, libc::SYS_dup3, libc::SYS_pipe2, libc::SYS_fcntl, libc::SYS_flock,
    libc::SYS_ioctl, libc::SYS_getcwd, libc::SYS_umask,
    // Memory, and that of the pools
    libc::SYS_mmap, libc::SYS_munmap, libc::SYS_mprotect, libc::SYS_mremap, libc::SYS_madvise,
    libc::SYS_brk, libc::SYS_mincore, libc::SYS_memfd_create, libc::SYS_ftruncate,
    libc::SYS_fchmod, libc::SYS_fallocate, libc::SYS_set_mempolicy, libc::SYS_get_mempolicy,
    libc::SYS_mbind, libc::SYS_move_pages, libc::SYS_mlock, libc::SYS_munlock,
    // Sockets and waiting
    libc::SYS_socket, libc::SYS_socketpair, libc::SYS_connect, libc::SYS_accept4,
    libc::SYS_recvmsg, libc::SYS_sendmsg, libc::SYS_recvfrom, libc::SYS_sendto,
    libc::SYS_getsockopt, libc::SYS_setsockopt, libc::SYS_getsockname, libc::SYS_getpeername,
    libc::SYS_shutdown, libc::SYS_ppoll, libc::SYS_epoll_create1, libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait, libc::SYS_eventfd2,
    // Threads, signals, time
    libc::SYS_clone, libc::SYS_clone3, libc::SYS_futex, libc::SYS_set_robust_list,
    libc::SYS_set_tid_address, libc::SYS_rseq, libc::SYS_membarrier, libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity, libc::SYS_rt_sigaction, libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn, libc::SYS_sigaltstack, libc::SYS_tgkill, libc::SYS_gettid,
    libc::SYS_getpid, libc::SYS_getuid, libc::SYS_geteuid, libc::SYS_getgid, libc::SYS_getegid,
    libc::SYS_prctl, libc::SYS_getrusage, libc::SYS_prlimit64, libc::SYS_sysinfo,
    libc::SYS_uname, libc::SYS_getcpu, libc::SYS_getrandom, libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep, libc::SYS_nanosleep, libc::SYS_restart_syscall, libc::SYS_wait4,
    libc::SYS_waitid, libc::SYS_exit, libc::SYS_exit_group,
    // The older names of the same that x86-64 still has, which its C library uses
    #[cfg(target_arch = "x86_64")] libc::SYS_open,
    #[cfg(target_arch = "x86_64")] libc::SYS_stat,
    #[cfg(target_arch = "x86_64")] libc::SYS_lstat,
    #[cfg(target_arch = "x86_64")] libc::SYS_access,
    #[cfg(target_arch = "x86_64")] libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")] libc::SYS_unlink,
    #[cfg(target_arch = "x86_64")] libc::SYS_poll,
    #[cfg(target_arch = "x86_64")] libc::SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")] libc::SYS_dup2,
    #[cfg(target_arch = "x86_64")] libc::SYS_time,
];

/// Why a process could not give up what it does not need. It must not serve then.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// A capability could not be given up.
    #[error("cannot give up capabilities: {0}")]
    Capabilities(#[from] caps::errors::CapsError),
    /// The front's user could not be entered.
    #[error("cannot become user {uid}: {error}; start the daemon as root")]
    User {
        /// The user.
        uid: u32,
        /// What the kernel said.
        error: nix::Error,
    },
    /// The filter of system calls is not accepted.
    #[error("cannot filter system calls: {0}; the kernel needs CONFIG_SECCOMP_FILTER")]
    Filter(String),
}

/// The broker's part: gives up all capabilities but those it needs, for good.
///
/// # Errors
/// When the kernel refuses.
pub fn keep_only_capabilities() -> Result<(), ConfineError> {
    let kept: CapsHashSet = KEPT.into_iter().collect();
    let has_setpcap = caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)?;
    // Without CAP_SETPCAP, as in a service with a bounding set of its own, the set stays as it is.
    for capability in caps::all().difference(&kept).filter(|_| has_setpcap) {
        // A newer kernel may not have one that the library knows.
        let _ = caps::drop(None, CapSet::Bounding, *capability);
    }
    let permitted = caps::read(None, CapSet::Permitted)?;
    let kept: CapsHashSet = kept.intersection(&permitted).copied().collect();
    caps::clear(None, CapSet::Ambient)?;
    caps::clear(None, CapSet::Inheritable)?;
    caps::set(None, CapSet::Effective, &kept)?;
    caps::set(None, CapSet::Permitted, &kept)?;
    rustix::thread::set_no_new_privs(true).map_err(|error| ConfineError::Filter(error.to_string()))
}

/// What the front becomes.
#[derive(Clone, Copy, Debug)]
pub struct Front {
    uid: Uid,
    gid: Gid,
}

impl Front {
    /// Finds the front's user, and leaves the namespaces of the network, of System V objects and of
    /// the host's name where that is permitted. Before the first thread.
    pub fn prepare() -> Front {
        let apart = CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWUTS;
        // A service without CAP_SYS_ADMIN cannot; its unit does it instead (`PrivateNetwork=`).
        let _ = nix::sched::unshare(apart);
        let user = User::from_name(USER).ok().flatten();
        user.map_or(
            Front { uid: Uid::from_raw(OVERFLOW_ID), gid: Gid::from_raw(OVERFLOW_ID) },
            |user| Front { uid: user.uid, gid: user.gid },
        )
    }

    /// Gives up, in every thread and for good: root, its groups, every capability, and all system
    /// calls but those of a server. A call that is not in the list fails with EPERM.
    ///
    /// # Errors
    /// When the kernel refuses any of it.
    pub fn enter(self) -> Result<(), ConfineError> {
        let refused = |error| ConfineError::User { uid: self.uid.as_raw(), error };
        nix::unistd::setgroups(&[]).map_err(refused)?;
        nix::unistd::setresgid(self.gid, self.gid, self.gid).map_err(refused)?;
        // With the last user id that is root's the kernel takes the capabilities.
        nix::unistd::setresuid(self.uid, self.uid, self.uid).map_err(refused)?;
        let filter = filter().map_err(|error| ConfineError::Filter(error.to_string()))?;
        seccompiler::apply_filter_all_threads(&filter)
            .map_err(|error| ConfineError::Filter(error.to_string()))
    }
}

fn filter() -> Result<BpfProgram, seccompiler::BackendError> {
    /// EPERM of include/uapi/asm-generic/errno-base.h.
    const EPERM: u32 = 1;
    let architecture = TargetArch::try_from(std::env::consts::ARCH)?;
    let allowed = CALLS.iter().map(|&call| (call, Vec::new())).collect();
    let filter = SeccompFilter::new(
        allowed,
        SeccompAction::Errno(EPERM),
        SeccompAction::Allow,
        architecture,
    )?;
    filter.try_into()
}
