//! One process as the kernel shows it: its mappings, where its OS pages are, whether it lives.
//! In: a process id. Out: changes of [`Regions`]. Knows nothing of accesses and moves.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tiercel_ledger::regions::{GroupId, Regions};
use tiercel_machine::NodeId;
use tiercel_mover::{Errno, Kernel, Linux};
use tiercel_sampler::huge_runs;

use super::maps;

/// Longest /proc/PID/maps that is read: 65,530 mappings, the kernel's default limit, of 128 bytes.
const MAPS_BYTES_MAX: u64 = 8 << 20;

/// See the module.
pub struct Watched {
    pub pid: u32,
    /// Refers to this process and no later one of its number.
    handle: OwnedFd,
    kernel: Linux,
    pub os_page_bytes: u64,
    /// Whose budget its memory counts to.
    pub group: GroupId,
}

impl Watched {
    /// # Errors
    /// ESRCH when there is no such process, EPERM when it is another user's.
    pub fn new(pid: u32) -> Result<Watched, Errno> {
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::GONE)?;
        let handle = pidfd_open(raw, PidfdFlags::empty()).map_err(|e| Errno(e.raw_os_error()))?;
        let mut kernel = Linux::default();
        let os_page_bytes = kernel.os_page_bytes();
        kernel.move_pages(pid, &[], None, &mut [])?;
        let group = GroupId(0);
        Ok(Watched { pid, handle, kernel, os_page_bytes, group })
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        let mut ended = [PollFd::new(&self.handle, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut ended, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// Reads what is mapped.
    pub fn read_maps(&mut self, regions: &mut Regions) {
        if let Some(text) = self.read("maps") {
            regions.set_mappings(self.pid, self.group, &maps::areas(&text));
        }
    }

    /// Looks where it has huge OS pages. Kernels before 6.7 do not say, and then it is all or
    /// nothing, whichever most is.
    pub fn read_huge(&mut self, regions: &mut Regions) {
        let Some(text) = self.read("maps") else { return };
        let areas = maps::areas(&text);
        let ranges: Vec<_> =
            areas.iter().filter(|one| !one.of_file).map(|one| one.start..one.end).collect();
        let huge = huge_runs(self.pid, &ranges).unwrap_or_else(|_| {
            let is_huge = self.read("smaps_rollup").is_some_and(|text| maps::is_huge(&text));
            if is_huge { ranges } else { Vec::new() }
        });
        regions.set_huge(self.pid, &huge);
    }

    fn read(&self, name: &str) -> Option<String> {
        use std::io::Read;
        let file = std::fs::File::open(format!("/proc/{}/{name}", self.pid)).ok()?;
        let mut text = String::new();
        file.take(MAPS_BYTES_MAX).read_to_string(&mut text).ok()?;
        Some(text)
    }

    /// Looks up where OS pages are from an address on.
    pub fn locate_range(&mut self, regions: &mut Regions, addr: u64, pages: usize) {
        let addrs: Vec<u64> =
            (0..pages as u64).map(|nth| addr + nth * self.os_page_bytes).collect();
        let mut status = vec![-1; pages];
        if self.kernel.move_pages(self.pid, &addrs, None, &mut status).is_err() {
            return;
        }
        let node = |status: &i32| u16::try_from(*status).ok().map(NodeId);
        let nodes: Vec<Option<NodeId>> = status.iter().map(node).collect();
        regions.set_residency(self.pid, addr, &nodes);
    }
}
