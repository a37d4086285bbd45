//! A process to observe: a forked child that touches OS pages on command.
//! In: commands through a pipe. Out: their completion. Knows nothing of samplers.

use std::fs::File;
use std::io::{Read, Write};
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Bytes of an OS page here.
pub const OS_PAGE: u64 = 4096;

/// A child with a buffer of private anonymous memory; killed and reaped when dropped.
pub struct Child {
    /// Process id.
    pub pid: u32,
    /// Its buffer, bytes.
    pub buffer: Range<u64>,
    /// The numbers, in the child, of the userfaultfds that it opened, as the runtime would.
    uffds: [i32; 2],
    commands: File,
    answers: File,
}

#[allow(dead_code)] // Tests and bench each use their part.
impl Child {
    /// Forks a child with `os_pages` of untouched memory.
    pub fn new(os_pages: u64) -> Child {
        let (their_commands, commands) = pipe();
        let (answers, their_answers) = pipe();
        let bytes = os_pages * OS_PAGE;
        // SAFETY: after fork the child only makes system calls and touches its own mapping, as the
        // child of a multi-threaded process must.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork");
        if pid == 0 {
            serve(their_commands.as_raw_fd(), their_answers.as_raw_fd(), bytes);
        }
        drop((their_commands, their_answers));
        let mut child = Child { pid: pid as u32, buffer: 0..0, uffds: [-1; 2], commands, answers };
        let base = child.answer();
        child.buffer = base..base + bytes;
        child.uffds = [child.answer() as i32, child.answer() as i32];
        child
    }

    /// Duplicates of its userfaultfds; replaces SCM_RIGHTS.
    pub fn userfaultfds(&self) -> Vec<OwnedFd> {
        self.uffds.iter().filter_map(|number| fetch(self.pid, *number)).collect()
    }

    /// Writes one byte into each of the OS pages.
    pub fn write(&mut self, os_pages: Range<u64>) {
        self.command(0, os_pages);
    }

    /// Reads one byte of each of the OS pages.
    pub fn read(&mut self, os_pages: Range<u64>) {
        self.command(1, os_pages);
    }

    /// Pins it to one CPU.
    pub fn stay(&self) {
        // SAFETY: a cpu_set_t is a plain bit set, for which zero is the empty one.
        let mut allowed: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        let bytes = size_of::<libc::cpu_set_t>();
        let pid = self.pid as i32;
        // SAFETY: `allowed` is valid for reads and writes of its size.
        let pinned = unsafe {
            assert_eq!(libc::sched_getaffinity(pid, bytes, &raw mut allowed), 0, "affinity");
            let cpus = 0..libc::CPU_SETSIZE as usize;
            let first = cpus.clone().find(|cpu| libc::CPU_ISSET(*cpu, &allowed)).expect("a CPU");
            cpus.filter(|cpu| *cpu != first).for_each(|cpu| libc::CPU_CLR(cpu, &mut allowed));
            libc::sched_setaffinity(pid, bytes, &raw const allowed)
        };
        assert_eq!(pinned, 0, "affinity");
    }

    /// Keeps it busy until it is dropped: random writes (or reads) all over the buffer, `ratio` in
    /// the first half for each one in the second.
    pub fn hammer(&mut self, writes: bool, ratio: u64) {
        let what = if writes { 4 } else { 5 };
        self.commands.write_all(&encode(what, 0..ratio)).expect("the child listens");
    }

    /// Keeps it busy until it is dropped: random writes (or reads) in consecutive areas from the
    /// start of the buffer, each given by its number of 64 KiB units and its relative accesses per
    /// byte. It sleeps after every 1024 accesses.
    pub fn stir(&mut self, writes: bool, areas: [(u64, u64); 3], pause: Duration) {
        let pack = |values: [u64; 4]| values.iter().rev().fold(0, |all, v| all << 16 | v & 0xffff);
        let pause_us = pause.as_micros() as u64;
        let sizes = pack([areas[0].0, areas[1].0, areas[2].0, pause_us]);
        let weights = pack([areas[0].1, areas[1].1, areas[2].1, 0]);
        let what = if writes { 6 } else { 7 };
        self.commands.write_all(&encode(what, sizes..weights)).expect("the child listens");
    }

    /// Whether its buffer can be `mremap`ped as one; it may be longer afterwards.
    pub fn moves_whole(&mut self) -> bool {
        self.commands.write_all(&encode(3, 0..0)).expect("the child listens");
        self.answer() == 0
    }

    /// Maps its buffer anew, at the same address; whether that worked.
    pub fn maps_anew(&mut self) -> bool {
        self.commands.write_all(&encode(3, 0..1)).expect("the child listens");
        self.answer() == 0
    }

    /// CPU time it has used.
    pub fn cpu(&self) -> Duration {
        let clock = (!(self.pid as i32) << 3) | 2; // CPUCLOCK_SCHED of a process
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is a valid timespec for the call to fill.
        assert_eq!(unsafe { libc::clock_gettime(clock, &mut time) }, 0, "a child's CPU clock");
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    /// Ends it and reaps it.
    pub fn exit(&mut self) {
        let _ = self.commands.write_all(&encode(2, 0..0));
        // SAFETY: our own child; its status is not needed.
        unsafe { libc::waitpid(self.pid as i32, std::ptr::null_mut(), 0) };
    }

    fn command(&mut self, what: u64, os_pages: Range<u64>) {
        self.commands.write_all(&encode(what, os_pages)).expect("the child listens");
        assert_eq!(self.answer(), 0);
    }

    fn answer(&mut self) -> u64 {
        let mut answer = [0u8; 8];
        self.answers.read_exact(&mut answer).expect("the child answers");
        u64::from_ne_bytes(answer)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: our own child; signals and waits cannot harm us.
        unsafe {
            libc::kill(self.pid as i32, libc::SIGKILL);
            libc::waitpid(self.pid as i32, std::ptr::null_mut(), 0);
        }
    }
}

fn encode(what: u64, os_pages: Range<u64>) -> [u8; 24] {
    let mut out = [0u8; 24];
    for (slot, value) in out.chunks_exact_mut(8).zip([what, os_pages.start, os_pages.end]) {
        slot.copy_from_slice(&value.to_ne_bytes());
    }
    out
}

/// Duplicates a descriptor of the child.
fn fetch(pid: u32, number: i32) -> Option<OwnedFd> {
    if number < 0 {
        return None;
    }
    // SAFETY: plain system calls; we own the descriptors that they return.
    unsafe {
        let pidfd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        assert!(pidfd >= 0, "pidfd_open");
        let pidfd = OwnedFd::from_raw_fd(pidfd as i32);
        let fd = libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), number, 0);
        (fd >= 0).then(|| OwnedFd::from_raw_fd(fd as i32))
    }
}

fn pipe() -> (File, File) {
    let mut ends = [0i32; 2];
    // SAFETY: two new descriptors, owned by us from here on.
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1]))
    }
}

/// The child's main loop. It uses only system calls and its own buffer: no allocation, lock or
/// panic.
fn serve(commands: i32, answers: i32, bytes: u64) -> ! {
    const USER_MODE_ONLY: libc::c_int = 1;
    // SAFETY: see above; the buffer is ours alone, and every touched OS page is in it.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // Aligned to huge OS pages, so that pieces are where tests expect them.
        let align = 2usize << 20;
        let room = libc::mmap(std::ptr::null_mut(), bytes as usize + align, prot, flags, -1, 0);
        let base = room.byte_add(align - room.addr() % align);
        libc::madvise(base, bytes as usize, libc::MADV_NOHUGEPAGE);
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
        let say = |value: u64| libc::write(answers, (&raw const value).cast(), 8);
        say(base as u64);
        say(libc::syscall(libc::SYS_userfaultfd, flags) as u64);
        say(libc::syscall(libc::SYS_userfaultfd, flags) as u64);
        let mut command = [0u64; 3];
        while libc::read(commands, command.as_mut_ptr().cast(), 24) == 24 {
            let [what, first, end] = command;
            if what >= 6 {
                stir(base.cast(), what == 6, first, end);
            }
            if what >= 4 {
                hammer(base.cast(), bytes, what == 4, end);
            }
            for os_page in first..end.min(bytes / OS_PAGE) {
                let at = base.cast::<u8>().add((os_page * OS_PAGE) as usize);
                match what {
                    0 => at.write_volatile(1),
                    _ => {
                        at.read_volatile();
                    }
                }
            }
            if what == 2 {
                libc::_exit(0);
            }
            let mut answer = 0;
            if what == 3 && end == 1 {
                let fixed = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
                let again = libc::mmap(base, bytes as usize, prot, fixed, -1, 0);
                libc::madvise(base, bytes as usize, libc::MADV_NOHUGEPAGE);
                answer = u64::from(again != base);
            } else if what == 3 {
                // Growing, as realloc does; EFAULT means that this is more than one mapping.
                let grown = libc::mremap(base, bytes as usize, bytes as usize * 2, 0);
                let split = *libc::__errno_location() == libc::EFAULT;
                answer = u64::from(grown == libc::MAP_FAILED && split);
            }
            say(answer);
        }
        libc::_exit(0);
    }
}

/// # Safety
/// `base..base + bytes` is ours alone, `bytes` a power of two.
unsafe fn hammer(base: *mut u8, bytes: u64, writes: bool, ratio: u64) -> ! {
    let (half, mut state) = (bytes / 2, 1u64);
    loop {
        // xorshift64; the upper half chooses the offset, the lower the half of the buffer.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let second = (state & 0xffff_ffff) % (ratio + 1) == 0;
        let at = (state >> 32) % half + if second { half } else { 0 };
        // SAFETY: `at` is below `bytes`.
        unsafe {
            if writes {
                base.add(at as usize).write_volatile(1);
            } else {
                base.add(at as usize).read_volatile();
            }
        }
    }
}

/// # Safety
/// `base` and as many bytes as the areas have are ours alone.
unsafe fn stir(base: *mut u8, writes: bool, sizes: u64, weights: u64) -> ! {
    let field = |packed: u64, nth: usize| packed >> (16 * nth) & 0xffff;
    let bytes: [u64; 3] = std::array::from_fn(|nth| field(sizes, nth) << 16);
    let shares: [u64; 3] = std::array::from_fn(|nth| field(sizes, nth) * field(weights, nth));
    let starts = [0, bytes[0], bytes[0] + bytes[1]];
    let all: u64 = shares.iter().sum();
    let pause_ns = field(sizes, 3) as i64 * 1000;
    let pause = libc::timespec { tv_sec: 0, tv_nsec: pause_ns };
    let mut state = 1u64;
    for turn in 1u64.. {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let roll = (state & 0xffff_ffff) % all;
        let area = usize::from(roll >= shares[0]) + usize::from(roll >= shares[0] + shares[1]);
        let at = starts[area] + (state >> 32) % bytes[area];
        // SAFETY: `at` is in its area.
        unsafe {
            if writes {
                base.add(at as usize).write_volatile(1);
            } else {
                base.add(at as usize).read_volatile();
            }
            if pause_ns > 0 && turn.is_multiple_of(1024) {
                libc::nanosleep(&raw const pause, std::ptr::null_mut());
            }
        }
    }
    unreachable!("it runs until it is killed")
}
