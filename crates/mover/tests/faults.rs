//! The kernel mover on a kernel that fails in every way a kernel can.
//! In: OS pages as words, one each. Out: outcomes as text. Each edge to the kernel has its failing
//! twin here.

use std::fmt::Write;

use expect_test::{Expect, expect};
use proptest::prelude::*;
use tiercel_ledger::movement::{Move, Outcome, Reason};
use tiercel_machine::NodeId;
use tiercel_mover::{Errno, Kernel, KernelMover, MAX_QUERIED_OS_PAGES, Mover, Range};

const OS_PAGE: u64 = 4096;
/// On a border of 2 MiB, so that whole huge pieces can be written down.
const BASE: u64 = 512 << 20;
const PID: u32 = 7;

/// An OS page of the failing kernel.
#[derive(Clone, Debug, PartialEq)]
enum Page {
    /// Movable, on a node.
    On(u16),
    /// Part of a huge page on a node: it moves as a whole by its head, and its tail is busy.
    Huge(u16, u64),
    /// Busy for so many more attempts, on node 0.
    Busy(u32),
    /// On node 0 and mapped by another process.
    Shared,
    /// On node 0; isolates but never migrates: the call ends short.
    Pinned,
    /// On node 0; the kernel says it moved and it did not.
    Liar,
    /// Never touched.
    Absent,
    /// Reads the shared zero page.
    Zero,
    /// On node 0; freed when an attempt comes.
    Freed,
    /// On node 0; an error code that no kernel has.
    Odd,
}

#[derive(Debug, Default)]
struct Faulty {
    pages: Vec<Page>,
    /// OS pages that still fit on node 1; `None`: any number.
    room: Option<u64>,
    /// What every moving call fails with.
    move_error: Option<i32>,
    /// What every asking call fails with, from the n-th on.
    ask_error: Option<(u32, i32)>,
    asked: u32,
    moved: u32,
    addresses_tried: usize,
}

impl Kernel for Faulty {
    fn move_pages(
        &mut self,
        pid: u32,
        addrs: &[u64],
        target: Option<NodeId>,
        status: &mut [i32],
    ) -> Result<u64, Errno> {
        assert_eq!(pid, PID);
        let Some(target) = target else {
            self.asked += 1;
            if let Some((from, errno)) = self.ask_error
                && self.asked >= from
            {
                return Err(Errno(errno));
            }
            addrs.iter().zip(status).for_each(|(addr, status)| *status = self.place(*addr));
            return Ok(0);
        };
        self.moved += 1;
        self.addresses_tried += addrs.len();
        if let Some(errno) = self.move_error {
            return Err(Errno(errno));
        }
        self.migrate(addrs, target.0, status)
    }

    fn os_page_bytes(&self) -> u64 {
        OS_PAGE
    }
}

impl Faulty {
    fn index(addr: u64) -> usize {
        ((addr - BASE) / OS_PAGE) as usize
    }

    fn place(&self, addr: u64) -> i32 {
        match self.pages[Faulty::index(addr)] {
            Page::On(node) | Page::Huge(node, _) => i32::from(node),
            Page::Absent => -libc::ENOENT,
            Page::Zero => -libc::EFAULT,
            _ => 0,
        }
    }

    fn migrate(&mut self, addrs: &[u64], target: u16, status: &mut [i32]) -> Result<u64, Errno> {
        let mut pinned = false;
        for (at, addr) in addrs.iter().enumerate() {
            let index = Faulty::index(*addr);
            let full = self.room == Some(0);
            status[at] = match self.pages[index].clone() {
                Page::On(node) | Page::Huge(node, _) if node == target => i32::from(node),
                Page::On(_) if full => return Err(Errno(libc::ENOMEM)),
                Page::On(_) => {
                    self.room = self.room.map(|room| room - 1);
                    self.pages[index] = Page::On(target);
                    i32::from(target)
                }
                Page::Huge(_, 0) => {
                    for tail in 0..512 {
                        self.pages[index + tail] = Page::Huge(target, tail as u64);
                    }
                    i32::from(target)
                }
                Page::Huge(..) => -libc::EBUSY,
                Page::Busy(0) => {
                    self.pages[index] = Page::On(target);
                    i32::from(target)
                }
                Page::Busy(left) => {
                    self.pages[index] = Page::Busy(left - 1);
                    // As the kernel: an OS page that cannot be isolated flushes the queue, and a
                    // queue with a pinned OS page in it ends the call.
                    if pinned {
                        return Ok((addrs.len() - at) as u64);
                    }
                    -libc::EBUSY
                }
                Page::Shared => -libc::EACCES,
                Page::Pinned => {
                    pinned = true;
                    continue;
                }
                Page::Liar => i32::from(target),
                Page::Freed => {
                    self.pages[index] = Page::Absent;
                    -libc::ENOENT
                }
                Page::Odd => -libc::EIO,
                Page::Absent => -libc::ENOENT,
                Page::Zero => -libc::EFAULT,
            };
        }
        Ok(u64::from(pinned))
    }
}

fn parse(words: &str) -> Vec<Page> {
    let page = |word: &str| match (word.split_at(1), word) {
        ((_, _), "s") => Page::Shared,
        ((_, _), "p") => Page::Pinned,
        ((_, _), "l") => Page::Liar,
        ((_, _), ".") => Page::Absent,
        ((_, _), "z") => Page::Zero,
        ((_, _), "f") => Page::Freed,
        ((_, _), "o") => Page::Odd,
        (("b", times), _) => Page::Busy(times.parse().unwrap()),
        _ => Page::On(word.parse().unwrap()),
    };
    words.split_whitespace().map(page).collect()
}

fn request(first: u64, count: u64, to: u16) -> Move {
    Move {
        pid: PID,
        addr: BASE + first * OS_PAGE,
        bytes: count * OS_PAGE,
        from: None,
        to: NodeId(to),
        reason: Reason::Promote,
        gain_ns_per_s: 0.0,
        cost_ns: 0.0,
    }
}

/// Outcomes in OS pages.
fn text(outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    for outcome in outcomes {
        let pages = |bytes: u64| bytes / OS_PAGE;
        write!(
            text,
            "moved {} resident {} absent {}",
            pages(outcome.moved_bytes),
            pages(outcome.resident_bytes),
            pages(outcome.absent_bytes)
        )
        .unwrap();
        for (failure, bytes) in &outcome.failed {
            write!(text, " {failure:?} {}", pages(*bytes)).unwrap();
        }
        text.push('\n');
        let failed: u64 = outcome.failed.iter().map(|(_, bytes)| bytes).sum();
        assert_eq!(
            outcome.resident_bytes + outcome.absent_bytes + failed,
            outcome.asked.bytes,
            "every byte is accounted for once"
        );
    }
    text
}

/// Moves everything to node 1 on this kernel.
fn check_on(kernel: Faulty, expected: &Expect) {
    let count = kernel.pages.len() as u64;
    let outcomes = KernelMover::with_kernel(kernel).execute(&[request(0, count, 1)]);
    expected.assert_eq(&text(&outcomes));
}

fn check(pages: &str, expected: &Expect) {
    check_on(Faulty { pages: parse(pages), ..Faulty::default() }, expected);
}

#[test]
fn what_can_move_moves() {
    check(
        "0 0 1 . z 2",
        &expect![[r#"
        moved 3 resident 4 absent 2
    "#]],
    );
}

#[test]
fn busy_is_tried_again_a_bounded_number_of_times() {
    check(
        "b1 0",
        &expect![[r#"
        moved 2 resident 2 absent 0
    "#]],
    );
    check(
        "b3 b4 b99 0",
        &expect![[r#"
        moved 2 resident 2 absent 0 Busy 2
    "#]],
    );
}

#[test]
fn a_short_move_holds_up_only_its_neighbours() {
    let mut pages = vec![Page::Pinned, Page::Busy(99)];
    pages.resize(200, Page::On(0));
    check_on(
        Faulty { pages, ..Faulty::default() },
        &expect![[r#"
        moved 192 resident 192 absent 0 Busy 8
    "#]],
    );
}

#[test]
fn memory_of_several_processes_stays() {
    check(
        "s 0",
        &expect![[r#"
        moved 1 resident 1 absent 0 Shared 1
    "#]],
    );
}

#[test]
fn a_lying_kernel_is_found_out() {
    check(
        "l l 0",
        &expect![[r#"
        moved 1 resident 1 absent 0 Misplaced 2
    "#]],
    );
}

#[test]
fn memory_freed_meanwhile_is_absent() {
    check(
        "f 0",
        &expect![[r#"
        moved 1 resident 1 absent 1
    "#]],
    );
}

#[test]
fn an_unknown_status_is_counted() {
    check(
        "o 0",
        &expect![[r#"
        moved 1 resident 1 absent 0 Other 1
    "#]],
    );
}

#[test]
fn a_full_node_ends_promotion_and_keeps_what_moved() {
    let kernel = Faulty { pages: parse("0 0 0 0 1 ."), room: Some(2), ..Faulty::default() };
    let moves = [request(0, 3, 1), request(3, 3, 1)];
    let mut mover = KernelMover::with_kernel(kernel);
    expect![[r#"
        moved 2 resident 2 absent 0 NoMemory 1
        moved 0 resident 1 absent 1 NoMemory 1
    "#]]
    .assert_eq(&text(&mover.execute(&moves)));
}

#[test]
fn a_full_node_is_not_asked_again_until_something_leaves_it() {
    let kernel = || Faulty { pages: parse("0 0 1 0"), room: Some(0), ..Faulty::default() };
    let mut full = kernel();
    let mut mover = KernelMover::with_kernel(Borrowed(&mut full));
    let moves = [request(0, 1, 1), request(3, 1, 2), request(1, 1, 1)];
    expect![[r#"
        moved 0 resident 0 absent 0 NoMemory 1
        moved 0 resident 0 absent 0 NoMemory 1
        moved 0 resident 0 absent 0 NoMemory 1
    "#]]
    .assert_eq(&text(&mover.execute(&moves)));
    assert_eq!(full.moved, 2, "one call for each full target");
}

#[test]
fn errors_of_the_whole_call() {
    let on = |move_error| Faulty { pages: parse("0 1 ."), move_error, ..Faulty::default() };
    let cases = [
        (libc::EPERM, expect!["moved 0 resident 1 absent 1 Permission 1\n"]),
        (libc::EACCES, expect!["moved 0 resident 1 absent 1 Permission 1\n"]),
        (libc::ENODEV, expect!["moved 0 resident 1 absent 1 NoNode 1\n"]),
        (libc::ENOMEM, expect!["moved 0 resident 1 absent 1 NoMemory 1\n"]),
        (libc::ESRCH, expect!["moved 0 resident 1 absent 1 Vanished 1\n"]),
        (libc::EINVAL, expect!["moved 0 resident 1 absent 1 Vanished 1\n"]),
    ];
    for (errno, expected) in cases {
        check_on(on(Some(errno)), &expected);
    }
}

#[test]
fn a_process_that_vanishes_before_or_meanwhile() {
    for from in [1, 2] {
        let ask_error = Some((from, libc::ESRCH));
        let kernel = Faulty { pages: parse("0 0"), ask_error, ..Faulty::default() };
        check_on(
            kernel,
            &expect![[r#"
            moved 0 resident 0 absent 0 Vanished 2
        "#]],
        );
    }
}

#[test]
fn a_huge_page_is_one_address() {
    let huge = |count: u64| (0..count * 512).map(|i| Page::Huge(0, i % 512));
    let pages: Vec<Page> = huge(16).chain([Page::On(0)]).collect();
    let mut kernel = Faulty { pages, ..Faulty::default() };
    let mut mover = KernelMover::with_kernel(Borrowed(&mut kernel));
    let outcomes = mover.execute(&[request(0, 16 * 512 + 1, 1)]);
    expect![[r#"
        moved 8193 resident 8193 absent 0
    "#]]
    .assert_eq(&text(&outcomes));
    // The first batch finds out with one head and sends the tails of the other seven in vain.
    assert_eq!(kernel.addresses_tried, 1 + 7 * 512 + 8 + 1);
}

#[test]
fn small_pages_in_a_huge_piece_move_in_the_second_round() {
    let mut kernel = Faulty { pages: vec![Page::On(0); 512], ..Faulty::default() };
    let mut mover = KernelMover::with_kernel(Borrowed(&mut kernel));
    let outcomes = mover.execute(&[request(0, 512, 1)]);
    assert_eq!(outcomes[0].moved_bytes, 512 * OS_PAGE);
    assert_eq!((kernel.moved, kernel.addresses_tried), (2, 512));
}

#[test]
fn moves_of_one_target_share_a_call() {
    let mut kernel = Faulty { pages: vec![Page::On(0); 300], ..Faulty::default() };
    let moves: Vec<Move> = (0..300).map(|i| request(i, 1, 1)).collect();
    let outcomes = KernelMover::with_kernel(Borrowed(&mut kernel)).execute(&moves);
    assert!(outcomes.iter().all(|outcome| outcome.moved_bytes == OS_PAGE));
    assert_eq!((kernel.moved, kernel.asked), (1, 2));
}

#[test]
fn absurd_moves_fail_and_cost_nothing() {
    let mut kernel = Faulty::default();
    let mut mover = KernelMover::with_kernel(Borrowed(&mut kernel));
    let outcomes = mover.execute(&[Move { bytes: 1 << 60, ..request(0, 0, 1) }, request(0, 0, 1)]);
    assert_eq!(outcomes[0].failed.len(), 1);
    assert_eq!((outcomes[1].resident_bytes, outcomes[1].failed.len()), (0, 0));
    assert_eq!((kernel.moved, kernel.asked), (0, 0));
}

#[test]
fn residency_of_a_range_adds_up() {
    let kernel = Faulty { pages: parse("0 0 1 . z"), ..Faulty::default() };
    let answers = KernelMover::with_kernel(kernel).residency(
        PID,
        &[
            Range { addr: BASE, bytes: 5 * OS_PAGE },
            Range { addr: BASE + 2 * OS_PAGE, bytes: OS_PAGE },
        ],
    );
    expect![[r#"
        [
            Ok(
                Residency {
                    nodes: [
                        (
                            NodeId(
                                0,
                            ),
                            8192,
                        ),
                        (
                            NodeId(
                                1,
                            ),
                            4096,
                        ),
                    ],
                    absent_bytes: 8192,
                    queried_bytes: 20480,
                },
            ),
            Ok(
                Residency {
                    nodes: [
                        (
                            NodeId(
                                1,
                            ),
                            4096,
                        ),
                    ],
                    absent_bytes: 0,
                    queried_bytes: 4096,
                },
            ),
        ]
    "#]]
    .assert_debug_eq(&answers);
}

#[test]
fn a_large_range_is_sampled_and_scaled() {
    let count = 100_000;
    let pages = (0..count).map(|i| if i % 4 == 3 { Page::On(1) } else { Page::On(0) }).collect();
    let kernel = Faulty { pages, ..Faulty::default() };
    let range = Range { addr: BASE, bytes: count * OS_PAGE };
    let answer = KernelMover::with_kernel(kernel).residency(PID, &[range]).remove(0).unwrap();
    assert_eq!(answer.queried_bytes, MAX_QUERIED_OS_PAGES * OS_PAGE);
    let bytes: Vec<u64> = answer.nodes.iter().map(|(_, bytes)| *bytes).collect();
    assert_eq!(bytes.iter().sum::<u64>(), range.bytes);
    let share = bytes[1] as f64 / range.bytes as f64;
    assert!((share - 0.25).abs() < 0.08, "share {share} of a regular pattern");
}

#[test]
fn a_large_range_in_one_place_takes_few_queries() {
    for page in [Page::On(1), Page::Absent] {
        let kernel = Faulty { pages: vec![page; 1000], ..Faulty::default() };
        let range = Range { addr: BASE, bytes: 1000 * OS_PAGE };
        let answer = KernelMover::with_kernel(kernel).residency(PID, &[range]).remove(0).unwrap();
        assert_eq!(answer.queried_bytes, 8 * OS_PAGE);
        let found: u64 = answer.nodes.iter().map(|(_, bytes)| bytes).sum();
        assert_eq!(found + answer.absent_bytes, range.bytes);
    }
}

proptest! {
    /// Against the obvious model: what can move is on the target afterwards, nothing else is, and
    /// the outcome says exactly that. Cut into moves anywhere.
    #[test]
    fn outcomes_match_residency(
        pages in proptest::collection::vec(any_page(), 1..700),
        cut in 0usize..700,
    ) {
        let cut = cut.min(pages.len()) as u64;
        let count = pages.len() as u64;
        let mut kernel = Faulty { pages: pages.clone(), ..Faulty::default() };
        let moves = [request(0, cut, 1), request(cut, count - cut, 1)];
        let outcomes = KernelMover::with_kernel(Borrowed(&mut kernel)).execute(&moves);
        text(&outcomes);
        let on_target = |page: &Page| *page == Page::On(1);
        let resident: u64 = outcomes.iter().map(|outcome| outcome.resident_bytes).sum();
        let moved: u64 = outcomes.iter().map(|outcome| outcome.moved_bytes).sum();
        let there = |pages: &[Page]| pages.iter().filter(|page| on_target(page)).count() as u64;
        prop_assert_eq!(resident, there(&kernel.pages) * OS_PAGE);
        prop_assert_eq!(moved, (there(&kernel.pages) - there(&pages)) * OS_PAGE);
        let no_blockers = !pages.contains(&Page::Pinned);
        let left = kernel.pages.iter().filter(|page| **page == Page::On(0)).count();
        prop_assert!(!no_blockers || left == 0, "{left} movable OS pages left");
    }
}

fn any_page() -> impl Strategy<Value = Page> {
    prop_oneof![
        20 => (0u16..3).prop_map(Page::On),
        1 => (0u32..6).prop_map(Page::Busy),
        1 => Just(Page::Shared),
        1 => Just(Page::Pinned),
        1 => Just(Page::Liar),
        1 => Just(Page::Absent),
        1 => Just(Page::Zero),
        1 => Just(Page::Freed),
        1 => Just(Page::Odd),
    ]
}

/// A kernel that the test looks at afterwards.
struct Borrowed<'a>(&'a mut Faulty);

impl Kernel for Borrowed<'_> {
    fn move_pages(
        &mut self,
        pid: u32,
        addrs: &[u64],
        target: Option<NodeId>,
        status: &mut [i32],
    ) -> Result<u64, Errno> {
        self.0.move_pages(pid, addrs, target, status)
    }

    fn os_page_bytes(&self) -> u64 {
        self.0.os_page_bytes()
    }
}
