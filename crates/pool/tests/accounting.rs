//! The accounting against a slow, obvious model: whatever owners ask, in whatever order, nothing is
//! handed out twice, nothing is lost, and no more is out than the pool holds.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use tiercel_machine::NodeId;
use tiercel_pool::{
    Made, Memory, Owner, PoolError, READY_BYTES, SEGMENT_UNIT_BYTES, Segment, SegmentId, Server,
    Vpage,
};

const NODE: NodeId = NodeId(0);

fn process(number: u64) -> Owner {
    Owner { number, user: 1000 }
}

/// What became of a segment that the modelled kernel made.
#[derive(Debug, Default)]
struct Modelled {
    /// A process has it mapped.
    is_mapped: bool,
    /// What it holds.
    resident_bytes: u64,
}

struct ModelledSegment(Arc<Mutex<Modelled>>);

impl Segment for ModelledSegment {
    fn share(&self) -> Result<OwnedFd, i32> {
        self.0.lock().unwrap().is_mapped = true;
        let (one, _) = std::io::pipe().map_err(|e| e.raw_os_error().unwrap())?;
        Ok(one.into())
    }

    fn scrub(&self) -> bool {
        self.0.lock().unwrap().resident_bytes = 0;
        true
    }

    fn resident_bytes(&self) -> u64 {
        self.0.lock().unwrap().resident_bytes
    }

    fn is_let_go(&self) -> bool {
        !self.0.lock().unwrap().is_mapped
    }
}

impl Drop for ModelledSegment {
    fn drop(&mut self) {
        self.0.lock().unwrap().resident_bytes = 0;
    }
}

/// A modelled kernel, which may have less memory than the pools were promised.
#[derive(Clone, Default)]
struct Kernel {
    made: Rc<RefCell<Vec<Arc<Mutex<Modelled>>>>>,
    has_bytes: u64,
}

impl Kernel {
    fn resident(&self) -> u64 {
        self.made.borrow().iter().map(|one| one.lock().unwrap().resident_bytes).sum()
    }
}

impl Memory for Kernel {
    fn make(&mut self, node: NodeId, bytes: u64, _vpage: Vpage) -> Result<Made, PoolError> {
        if self.resident() + bytes > self.has_bytes {
            return Err(PoolError::NoMemory { node, bytes, what: "populating it", errno: 12 });
        }
        let paper = Modelled { is_mapped: false, resident_bytes: bytes };
        let paper = Arc::new(Mutex::new(paper));
        self.made.borrow_mut().push(Arc::clone(&paper));
        Ok(Made { segment: Box::new(ModelledSegment(paper)), is_emulated: false })
    }
}

#[derive(Clone, Debug)]
enum Step {
    Grant {
        owner: u64,
        units: u64,
    },
    Return {
        owner: u64,
        which: usize,
    },
    /// The owner dies; `orphan`: a child of it keeps everything mapped.
    Die {
        owner: u64,
        orphan: bool,
    },
    /// The last child of a dead owner lets go, or a returned segment is unmapped.
    LetGo {
        which: usize,
    },
    /// A returned segment is written to by a process that kept it mapped.
    Refill {
        which: usize,
    },
    Prepare,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..3u64, 0..40u64).prop_map(|(owner, units)| Step::Grant { owner, units }),
        3 => (0..3u64, 0..9usize).prop_map(|(owner, which)| Step::Return { owner, which }),
        1 => (0..3u64, any::<bool>()).prop_map(|(owner, orphan)| Step::Die { owner, orphan }),
        3 => (0..9usize).prop_map(|which| Step::LetGo { which }),
        1 => (0..9usize).prop_map(|which| Step::Refill { which }),
        2 => Just(Step::Prepare),
    ]
}

/// One granted segment, as the model has it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Held(u64),
    Returned,
    Left,
}

#[derive(Default)]
struct Model {
    /// By segment number: fate, bytes, which of the kernel's.
    out: BTreeMap<u32, (Fate, u64, usize)>,
}

impl Model {
    fn pick(&self, which: usize, wanted: impl Fn(Fate) -> bool) -> Option<u32> {
        let all: Vec<u32> =
            self.out.iter().filter(|(_, (fate, ..))| wanted(*fate)).map(|(id, _)| *id).collect();
        (!all.is_empty()).then(|| all[which % all.len()])
    }

    fn taken(&self, kernel: &Kernel) -> u64 {
        let bytes = |(fate, bytes, made): &(Fate, u64, usize)| match fate {
            Fate::Returned => kernel.made.borrow()[*made].lock().unwrap().resident_bytes,
            _ => *bytes,
        };
        self.out.values().map(bytes).sum()
    }

    fn forget_unmapped(&mut self, kernel: &Kernel) {
        let mapped = |made: usize| kernel.made.borrow()[made].lock().unwrap().is_mapped;
        self.out.retain(|_, (fate, _, made)| matches!(fate, Fate::Held(_)) || mapped(*made));
    }
}

/// Which of the kernel's segments was granted just now: the only mapped one the model does not
/// have.
fn newly_granted(kernel: &Kernel, model: &Model) -> usize {
    let known: Vec<usize> = model.out.values().map(|(_, _, made)| *made).collect();
    let made = kernel.made.borrow();
    let mut fresh =
        (0..made.len()).filter(|n| made[*n].lock().unwrap().is_mapped && !known.contains(n));
    let one = fresh.next().expect("it is mapped");
    assert_eq!(fresh.next(), None, "one segment was granted");
    one
}

fn grant(
    server: &mut Server<Kernel>,
    kernel: &Kernel,
    model: &mut Model,
    owner: u64,
    units: u64,
    capacity: u64,
) {
    let bytes = units * SEGMENT_UNIT_BYTES;
    model.forget_unmapped(kernel);
    let free = capacity.saturating_sub(model.taken(kernel));
    match server.grant(process(owner), NODE, bytes, Vpage::Small) {
        Ok(grant) => {
            assert!(bytes > 0 && bytes <= free, "{bytes} of {free} free");
            assert_eq!(grant.bytes, bytes);
            let which = newly_granted(kernel, model);
            let before = model.out.insert(grant.id.0, (Fate::Held(owner), bytes, which));
            assert!(before.is_none(), "a number twice");
        }
        Err(PoolError::Size(asked)) => assert_eq!((asked, bytes), (0, 0)),
        Err(PoolError::Exhausted { asked, free: said, .. }) => {
            assert_eq!((asked, said), (bytes, free));
            assert!(bytes > free);
        }
        Err(PoolError::NoMemory { .. }) => assert!(kernel.has_bytes < capacity * 2),
        Err(other) => panic!("{other}"),
    }
}

fn run(steps: &[Step], capacity: u64, has_bytes: u64) {
    let kernel = Kernel { has_bytes, ..Kernel::default() };
    let ready = 2 * READY_BYTES;
    let mut server = Server::new(kernel.clone(), &[(NODE, capacity)], ready);
    let mut model = Model::default();
    for step in steps {
        match *step {
            Step::Grant { owner, units } => {
                grant(&mut server, &kernel, &mut model, owner, units, capacity);
            }
            Step::Return { owner, which } => {
                let Some(id) = model.pick(which, |fate| matches!(fate, Fate::Held(_))) else {
                    continue;
                };
                let (fate, ..) = model.out[&id];
                let answer = server.give_back(process(owner), SegmentId(id));
                assert_eq!(answer.is_ok(), fate == Fate::Held(owner), "{id} {fate:?} {owner}");
                if answer.is_ok() {
                    model.out.get_mut(&id).unwrap().0 = Fate::Returned;
                }
            }
            Step::Die { owner, orphan } => {
                for (fate, _, made) in model.out.values_mut() {
                    if *fate == Fate::Held(owner) {
                        *fate = Fate::Left;
                        kernel.made.borrow()[*made].lock().unwrap().is_mapped = orphan;
                    }
                }
                server.gone(process(owner));
            }
            Step::LetGo { which } => {
                if let Some(id) = model.pick(which, |fate| !matches!(fate, Fate::Held(_))) {
                    kernel.made.borrow()[model.out[&id].2].lock().unwrap().is_mapped = false;
                }
            }
            Step::Refill { which } => {
                if let Some(id) = model.pick(which, |fate| fate == Fate::Returned) {
                    let (_, bytes, made) = model.out[&id];
                    kernel.made.borrow()[made].lock().unwrap().resident_bytes = bytes;
                }
            }
            Step::Prepare => {
                server.prepare();
            }
        }
        server.sweep();
        model.forget_unmapped(&kernel);
        let figures = server.status()[0].figures;
        let taken = model.taken(&kernel);
        assert_eq!(figures.granted + figures.returned + figures.left, taken);
        assert_eq!(figures.free, capacity.saturating_sub(taken));
        assert!(figures.ready <= ready + READY_BYTES && figures.granted + figures.left <= capacity);
        assert_eq!(kernel.resident(), taken + figures.ready, "memory that is not accounted for");
    }
}

/// Filling huge OS pages takes longest, and who asks waits for it.
#[test]
fn each_sort_is_made_ready() {
    let kernel = Kernel { has_bytes: 10 * READY_BYTES, ..Kernel::default() };
    let mut server = Server::new(kernel.clone(), &[(NODE, 4 * READY_BYTES)], 2 * READY_BYTES);
    while server.prepare() {}
    let made = || kernel.made.borrow().len();
    assert_eq!((made(), server.status()[0].figures.ready), (3, 3 * READY_BYTES));
    for vpage in [Vpage::Large, Vpage::Small, Vpage::Small] {
        server.grant(process(1), NODE, READY_BYTES, vpage).expect("it is there");
    }
    assert_eq!(made(), 3, "all were ready");
    assert!(server.prepare() && !server.prepare(), "there is room for one more");
    server.grant(process(1), NODE, READY_BYTES, Vpage::Large).expect("in its place");
    assert_eq!((made(), kernel.resident()), (5, 4 * READY_BYTES));
}

proptest! {
    #[test]
    fn nothing_is_lost_or_given_twice(
        steps in proptest::collection::vec(step(), 0..80),
        units in 1..120u64,
        has_all: bool,
    ) {
        let capacity = units * SEGMENT_UNIT_BYTES;
        run(&steps, capacity, if has_all { capacity * 100 } else { capacity / 2 });
    }
}

#[test]
fn what_is_ready_gives_way_to_a_grant_of_another_size() {
    let kernel = Kernel { has_bytes: 4 * READY_BYTES, ..Kernel::default() };
    let mut server = Server::new(kernel, &[(NODE, 2 * READY_BYTES)], 2 * READY_BYTES);
    while server.prepare() {}
    assert_eq!(server.status()[0].figures.ready, 2 * READY_BYTES);
    let large = server.grant(process(1), NODE, 2 * READY_BYTES, Vpage::Small).unwrap();
    assert_eq!(large.bytes, 2 * READY_BYTES);
    let refused = server.grant(process(2), NODE, SEGMENT_UNIT_BYTES, Vpage::Small).unwrap_err();
    assert_eq!(refused, PoolError::Exhausted { node: NODE, asked: SEGMENT_UNIT_BYTES, free: 0 });
}

#[test]
fn one_that_cannot_be_made_ready_is_not_tried_for_ever() {
    let kernel = Kernel { has_bytes: READY_BYTES - 1, ..Kernel::default() };
    let mut server = Server::new(kernel, &[(NODE, 4 * READY_BYTES)], READY_BYTES);
    assert!(!server.prepare());
    let status = &server.status()[0];
    assert!(matches!(status.trouble, Some(PoolError::NoMemory { errno: 12, .. })), "{status:?}");
    assert!(!server.prepare());
}

#[test]
fn a_user_has_a_part_of_each_pool_whatever_its_processes_do() {
    let kernel = Kernel { has_bytes: 100 * READY_BYTES, ..Kernel::default() };
    let capacity = 8 * READY_BYTES;
    let mut server = Server::new(kernel.clone(), &[(NODE, capacity)], 0).shared_by_users(4);
    let ask = |server: &mut Server<Kernel>, number, user, units| {
        let owner = Owner { number, user };
        server.grant(owner, NODE, units * READY_BYTES, Vpage::Small).map(|grant| grant.id)
    };
    let whole = ask(&mut server, 1, 7, 8).unwrap_err();
    let most = 2 * READY_BYTES;
    assert_eq!(whole, PoolError::Share { node: NODE, user: 7, held: 0, most });
    let first = ask(&mut server, 1, 7, 1).unwrap();
    ask(&mut server, 2, 7, 1).unwrap();
    let refused = ask(&mut server, 3, 7, 1).unwrap_err();
    assert_eq!(refused, PoolError::Share { node: NODE, user: 7, held: most, most });
    // Neither leaving nor returning it makes room while it is mapped and filled.
    server.leave(Owner { number: 1, user: 7 }, first).unwrap();
    server.gone(Owner { number: 2, user: 7 });
    assert!(ask(&mut server, 3, 7, 1).is_err());
    assert!((10..13).all(|user| ask(&mut server, user.into(), user, 2).is_ok()), "all others");
    for made in kernel.made.borrow().iter() {
        made.lock().unwrap().is_mapped = false;
    }
    assert!(ask(&mut server, 3, 7, 2).is_ok());
}

#[test]
fn a_node_without_a_pool_is_named() {
    let mut server = Server::new(Kernel::default(), &[(NODE, READY_BYTES)], 0);
    let refused = server.grant(process(1), NodeId(3), READY_BYTES, Vpage::Small).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "there is no pool of node 3; start the daemon with --pool 3=SIZE"
    );
}
