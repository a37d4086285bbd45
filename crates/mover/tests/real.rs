//! The kernel mover on the running kernel. Works on any machine with `move_pages`; every move goes
//! to the node where the memory is already, so nothing depends on how many nodes there are.

use std::io::{PipeReader, PipeWriter, Read, Write};

use tiercel_ledger::movement::{Failure, Move, Outcome, Reason};
use tiercel_machine::{NodeId, Standing};
use tiercel_mover::{KernelMover, Mover, Range, Residency, ResidencyError};

const OS_PAGES: u64 = 64;
const TOUCHED: u64 = 48;

/// A process with 64 OS pages of which it touched 48. It ends when dropped.
struct Child {
    pid: u32,
    range: Range,
    os_page: u64,
    /// The child waits for the end of this.
    _leash: PipeWriter,
}

impl Child {
    fn new() -> Child {
        // SAFETY: reads a constant.
        let os_page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
        let bytes = OS_PAGES * os_page;
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new private mapping anywhere; nothing else knows it.
        let memory =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes as usize, protection, flags, -1, 0) };
        assert_ne!(memory, libc::MAP_FAILED);
        let range = Range { addr: memory as u64, bytes };
        let (mut leash, kept) = std::io::pipe().unwrap();
        let (mut ready, signal) = std::io::pipe().unwrap();
        // SAFETY: the child calls only write to its memory, close, read, write and _exit: all safe
        // after fork in a process with threads.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            drop(kept);
            touch_and_wait(memory.cast(), os_page, signal, &mut leash);
        }
        drop((leash, signal));
        ready.read_exact(&mut [0]).unwrap();
        // SAFETY: the mapping made above, which this process never touched and never will.
        unsafe { libc::munmap(memory, bytes as usize) };
        Child { pid: pid as u32, range, os_page, _leash: kept }
    }

    fn request(&self, to: u16) -> Move {
        Move {
            pid: self.pid,
            addr: self.range.addr,
            bytes: self.range.bytes,
            from: None,
            to: NodeId(to),
            reason: Reason::Asked,
            gain_ns_per_s: 0.0,
            cost_ns: 0.0,
        }
    }

    fn residency(&self) -> Result<Residency, ResidencyError> {
        KernelMover::new().residency(self.pid, &[self.range]).remove(0)
    }

    /// The node most of its memory is on: where it stays in these tests.
    fn home(&self) -> u16 {
        self.residency().unwrap().nodes.iter().max_by_key(|(_, bytes)| *bytes).unwrap().0.0
    }
}

fn touch_and_wait(
    memory: *mut u8,
    os_page: u64,
    mut signal: PipeWriter,
    leash: &mut PipeReader,
) -> ! {
    for index in 0..TOUCHED {
        // SAFETY: inside the mapping of OS_PAGES OS pages that this process inherited.
        unsafe { memory.add((index * os_page) as usize).write_volatile(1) };
    }
    let _ = signal.write(&[1]);
    let _ = leash.read(&mut [0]);
    // SAFETY: ends the child without running the parent's exit handlers.
    unsafe { libc::_exit(0) }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: our own child, not yet waited for, or long gone (an error then, which is fine).
        unsafe {
            libc::kill(self.pid as libc::pid_t, libc::SIGKILL);
            libc::waitpid(self.pid as libc::pid_t, std::ptr::null_mut(), 0);
        }
    }
}

fn execute(asked: Move) -> Outcome {
    KernelMover::new().execute(&[asked]).remove(0)
}

#[test]
fn another_process_is_seen_as_it_is() {
    let child = Child::new();
    let seen = child.residency().unwrap();
    let present: u64 = seen.nodes.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(present, TOUCHED * child.os_page);
    assert_eq!(seen.absent_bytes, (OS_PAGES - TOUCHED) * child.os_page);
    assert_eq!(seen.queried_bytes, child.range.bytes);
}

#[test]
fn memory_in_place_stays_and_absent_memory_is_distinguished() {
    let child = Child::new();
    let present = child.residency().unwrap().nodes;
    let outcome = execute(child.request(child.home()));
    assert_eq!(outcome.resident_bytes, TOUCHED * child.os_page);
    assert_eq!(outcome.absent_bytes, (OS_PAGES - TOUCHED) * child.os_page);
    assert_eq!(outcome.failed, []);
    let elsewhere: u64 = present.iter().skip(1).map(|(_, bytes)| bytes).sum();
    assert_eq!(outcome.moved_bytes, elsewhere);
}

#[test]
fn a_node_that_does_not_exist() {
    let child = Child::new();
    let outcome = execute(child.request(1023));
    assert_eq!(outcome.failed, [(Failure::NoNode, TOUCHED * child.os_page)]);
    assert_eq!(outcome.absent_bytes, (OS_PAGES - TOUCHED) * child.os_page);
}

#[test]
fn a_vanished_process() {
    let child = Child::new();
    let asked = child.request(child.home());
    drop(child);
    let range = Range::of(&asked);
    let pid = asked.pid;
    assert_eq!(execute(asked).failed, [(Failure::Vanished, range.bytes)]);
    let answer = KernelMover::new().residency(pid, &[range]).remove(0);
    assert_eq!(answer, Err(ResidencyError::Vanished));
}

/// As another user in a thread of its own: the raw system call changes the credentials of one
/// thread only.
#[test]
fn another_users_process() {
    // SAFETY: reads a number.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("not checked: becoming another user needs root");
        return;
    }
    let child = Child::new();
    let asked = child.request(child.home());
    let as_other_user = std::thread::spawn(move || {
        const OVERFLOW_UID: libc::c_long = 65534;
        // SAFETY: three numbers; glibc's wrapper would change every thread, the system call does
        // not.
        let done =
            unsafe { libc::syscall(libc::SYS_setresuid, OVERFLOW_UID, OVERFLOW_UID, OVERFLOW_UID) };
        assert_eq!(done, 0);
        let answer = KernelMover::new().residency(asked.pid, &[Range::of(&asked)]).remove(0);
        (answer, execute(asked))
    });
    let (answer, outcome) = as_other_user.join().unwrap();
    assert_eq!(answer, Err(ResidencyError::Permission));
    assert_eq!(outcome.failed, [(Failure::Permission, child.range.bytes)]);
}

#[test]
fn support_names_a_remedy_for_every_problem() {
    let findings = tiercel_mover::support();
    let names: Vec<&str> = findings.iter().map(|finding| finding.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "memory-nodes",
            "move-pages",
            "other-processes",
            "mems-allowed",
            "numa-balancing",
            "kernel-demotion",
            "copy-device"
        ]
    );
    for finding in findings {
        assert_eq!(finding.standing == Standing::Ok, finding.remedy.is_empty(), "{finding:?}");
    }
}
