//! Processes that move their own memory: asked for what waits, believed by residency, and the
//! kernel moves the rest.
//! In: a kernel and a process over the same OS pages. Out: outcomes.

use std::sync::{Arc, Mutex};

use tiercel_ledger::movement::{Move, Reason};
use tiercel_machine::NodeId;
use tiercel_mover::{Errno, Kernel, KernelMover, Mover, Range, SelfMover};

const OS_PAGE: u64 = 4096;
const PID: u32 = 7;

/// The node of each OS page from address 0 on.
type Pages = Arc<Mutex<Vec<u16>>>;

struct Memory {
    pages: Pages,
    /// OS pages the kernel itself had to move.
    by_kernel: Arc<Mutex<usize>>,
}

impl Kernel for Memory {
    fn move_pages(
        &mut self,
        _pid: u32,
        addrs: &[u64],
        target: Option<NodeId>,
        status: &mut [i32],
    ) -> Result<u64, Errno> {
        let mut pages = self.pages.lock().unwrap();
        for (addr, status) in addrs.iter().zip(status) {
            let page = &mut pages[(addr / OS_PAGE) as usize];
            if let Some(target) = target {
                *page = target.0;
                *self.by_kernel.lock().unwrap() += 1;
            }
            *status = i32::from(*page);
        }
        Ok(0)
    }

    fn os_page_bytes(&self) -> u64 {
        OS_PAGE
    }
}

/// Moves what lies below an address, or says that it did.
struct Process {
    pages: Pages,
    below: u64,
    is_liar: bool,
    asked: Arc<Mutex<Vec<Range>>>,
}

impl SelfMover for Process {
    fn move_own(&mut self, ranges: &[Range], to: NodeId) -> bool {
        self.asked.lock().unwrap().extend(ranges);
        let mut pages = self.pages.lock().unwrap();
        for range in ranges.iter().filter(|_| !self.is_liar) {
            for addr in (range.addr..range.addr + range.bytes).step_by(OS_PAGE as usize) {
                if addr < self.below {
                    pages[(addr / OS_PAGE) as usize] = to.0;
                }
            }
        }
        true
    }
}

/// Moves eight OS pages, of which the third is there already, to node 1: what was asked of the
/// process, and how many the kernel moved.
fn check(below: u64, is_liar: bool) -> (Vec<Range>, usize) {
    let pages: Pages = Arc::new(Mutex::new(vec![0, 0, 1, 0, 0, 0, 0, 0]));
    let (by_kernel, asked) = (Arc::default(), Arc::default());
    let kernel = Memory { pages: Arc::clone(&pages), by_kernel: Arc::clone(&by_kernel) };
    let mut mover = KernelMover::with_kernel(kernel).with_self_movers();
    let process = Process { pages, below, is_liar, asked: Arc::clone(&asked) };
    mover.self_movers().unwrap().came(PID, process);
    let request = Move {
        pid: PID,
        addr: 0,
        bytes: 8 * OS_PAGE,
        from: Some(NodeId(0)),
        to: NodeId(1),
        reason: Reason::Promote,
        gain_ns_per_s: 0.0,
        cost_ns: 0.0,
    };
    let outcome = mover.execute(&[request]).remove(0);
    assert_eq!((outcome.moved_bytes, outcome.resident_bytes), (7 * OS_PAGE, 8 * OS_PAGE));
    let asked = asked.lock().unwrap().clone();
    let by_kernel = *by_kernel.lock().unwrap();
    assert_eq!(outcome.own_bytes, outcome.moved_bytes - by_kernel as u64 * OS_PAGE);
    (asked, by_kernel)
}

#[test]
fn what_waits_is_asked_for_and_the_kernel_moves_what_is_left() {
    let waiting = vec![
        Range { addr: 0, bytes: 2 * OS_PAGE },
        Range { addr: 3 * OS_PAGE, bytes: 5 * OS_PAGE },
    ];
    assert_eq!(check(8 * OS_PAGE, false), (waiting.clone(), 0));
    assert_eq!(check(4 * OS_PAGE, false), (waiting, 4));
}

#[test]
fn a_process_that_lies_is_not_believed() {
    assert_eq!(check(8 * OS_PAGE, true).1, 7);
}

#[test]
fn a_process_that_left_is_not_asked() {
    let mover = KernelMover::new().with_self_movers();
    let self_movers = mover.self_movers().unwrap();
    let (pages, asked) = (Pages::default(), Arc::default());
    self_movers.came(PID, Process { pages, below: 0, is_liar: false, asked: Arc::clone(&asked) });
    self_movers.left(PID);
    assert_eq!(Arc::strong_count(&asked), 1, "it is forgotten");
}
