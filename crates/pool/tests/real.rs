//! Real memfds of the running kernel: populated, sealed, taken back, seen to be let go.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags, SealFlags, fcntl_get_seals};
use tiercel_machine::NodeId;
use tiercel_pool::{
    Filled, Linux, Memory, Owner, PoolError, SEGMENT_UNIT_BYTES, SegmentId, Server, Vpage,
};

const NODE: NodeId = NodeId(0);
/// No kernel has so many nodes.
const MODELLED: NodeId = NodeId(900);

fn owner(number: u64) -> Owner {
    Owner { number, user: 1000 }
}

fn server(units: u64) -> Server<Linux> {
    let bytes = units * SEGMENT_UNIT_BYTES;
    Server::new(Linux::default(), &[(NODE, bytes), (MODELLED, bytes)], 0)
}

#[test]
fn a_segment_is_there_before_it_is_touched() {
    for vpage in [Vpage::Small, Vpage::Medium, Vpage::Large] {
        let made = Linux::default().make(NODE, 2 * SEGMENT_UNIT_BYTES, vpage).unwrap();
        assert_eq!(made.segment.resident_bytes(), 2 * SEGMENT_UNIT_BYTES, "{vpage:?}");
        assert!(made.segment.is_let_go());
    }
}

/// Who touches memory first is charged for it; the policy of the memory decides where it lies.
#[test]
fn memory_that_its_owner_fills_is_empty_until_then() {
    for node in [NODE, MODELLED] {
        let mut memory = Linux { filled: Filled::ByOwner, ..Linux::default() };
        let made = memory.make(node, 2 * SEGMENT_UNIT_BYTES, Vpage::Small).unwrap();
        assert_eq!((made.segment.resident_bytes(), made.is_emulated), (0, node == MODELLED));
        let file = File::from(made.segment.share().unwrap());
        std::os::unix::fs::FileExt::write_all_at(&file, &[1; 8192], 4096).unwrap();
        assert_eq!(made.segment.resident_bytes(), 8192);
    }
    let mut memory = Linux { filled: Filled::ByOwner, ..Linux::default() };
    let refused = memory.make(NODE, 1 << 44, Vpage::Small).err();
    assert!(
        matches!(refused, Some(PoolError::Full { asked: 0x1000_0000_0000, .. })),
        "{refused:?}"
    );
}

#[test]
fn a_modelled_node_is_marked() {
    let mut server = server(2);
    let there = server.grant(owner(1), NODE, SEGMENT_UNIT_BYTES, Vpage::Small).unwrap();
    let modelled = server.grant(owner(1), MODELLED, SEGMENT_UNIT_BYTES, Vpage::Small).unwrap();
    assert!(!there.is_emulated && modelled.is_emulated);
    let marked: Vec<bool> = server.status().iter().map(|pool| pool.is_emulated).collect();
    assert_eq!(marked, [false, true]);
}

#[test]
fn an_owner_can_neither_grow_nor_shrink_nor_unseal_it() {
    let mut server = server(1);
    let grant = server.grant(owner(1), NODE, SEGMENT_UNIT_BYTES, Vpage::Small).unwrap();
    let seals = fcntl_get_seals(&grant.fd).unwrap();
    assert!(seals.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL));
    for bytes in [0, SEGMENT_UNIT_BYTES - 4096, 2 * SEGMENT_UNIT_BYTES] {
        let refused = rustix::fs::ftruncate(&grant.fd, bytes).unwrap_err();
        assert_eq!(refused, rustix::io::Errno::PERM);
    }
}

#[test]
fn returned_memory_reads_as_zeroes_where_it_is_still_mapped() {
    let mut server = server(1);
    let grant = server.grant(owner(1), NODE, SEGMENT_UNIT_BYTES, Vpage::Small).unwrap();
    let mut kept = File::from(grant.fd.as_fd().try_clone_to_owned().unwrap());
    kept.write_all(b"a secret").unwrap();
    server.give_back(owner(1), grant.id).unwrap();
    let mut read = [1u8; 8];
    kept.seek(SeekFrom::Start(0)).unwrap();
    kept.read_exact(&mut read).unwrap();
    assert_eq!(read, [0; 8]);
    // What a hostile client fills again counts as its own.
    kept.write_all(&[1; 8192]).unwrap();
    server.sweep();
    let figures = server.status()[0].figures;
    assert!(figures.returned >= 8192 && figures.free + figures.returned == figures.capacity);
    drop((kept, grant));
    server.sweep();
    assert_eq!(server.status()[0].figures.free, SEGMENT_UNIT_BYTES);
}

#[test]
fn a_segment_never_goes_to_a_second_owner() {
    let mut server = server(1);
    let first = server.grant(owner(1), NODE, SEGMENT_UNIT_BYTES, Vpage::Small).unwrap();
    let mut kept = File::from(first.fd);
    kept.write_all(b"a secret").unwrap();
    assert_eq!(server.give_back(owner(2), first.id), Err(PoolError::Foreign(first.id.0)));
    assert_eq!(server.give_back(owner(1), SegmentId(99)), Err(PoolError::Foreign(99)));
    server.give_back(owner(1), first.id).unwrap();
    let second = server.grant(owner(2), NODE, SEGMENT_UNIT_BYTES, Vpage::Small).unwrap();
    kept.seek(SeekFrom::Start(0)).unwrap();
    kept.write_all(b"an attack").unwrap();
    let mut read = vec![1u8; usize::try_from(second.bytes).unwrap()];
    File::from(second.fd).read_exact(&mut read).unwrap();
    assert!(read.iter().all(|byte| *byte == 0));
}

#[test]
fn memory_of_the_dead_stays_taken_while_a_child_has_it() {
    let mut server = server(1);
    let grant = server.grant(owner(1), NODE, SEGMENT_UNIT_BYTES, Vpage::Small).unwrap();
    let mut child = File::from(grant.fd);
    child.write_all(b"kept").unwrap();
    server.gone(owner(1));
    assert_eq!(server.status()[0].figures.left, SEGMENT_UNIT_BYTES);
    let refused = server.grant(owner(2), NODE, SEGMENT_UNIT_BYTES, Vpage::Small).unwrap_err();
    assert!(matches!(refused, PoolError::Exhausted { free: 0, .. }), "{refused}");
    let mut read = [0u8; 4];
    child.seek(SeekFrom::Start(0)).unwrap();
    child.read_exact(&mut read).unwrap();
    assert_eq!(&read, b"kept", "what a child still uses is not zeroed");
    drop(child);
    server.grant(owner(2), NODE, SEGMENT_UNIT_BYTES, Vpage::Small).unwrap();
}

#[test]
fn what_is_left_or_forgotten_ends_with_its_last_mapping() {
    let mut server = server(2);
    let one = server.grant(owner(1), NODE, SEGMENT_UNIT_BYTES, Vpage::Small).unwrap();
    let two = server.grant(owner(1), NODE, SEGMENT_UNIT_BYTES, Vpage::Small).unwrap();
    assert_eq!(server.leave(owner(2), one.id), Err(PoolError::Foreign(one.id.0)));
    server.leave(owner(1), one.id).unwrap();
    assert!(server.reap());
    let figures = server.status()[0].figures;
    assert_eq!((figures.left, figures.granted), (SEGMENT_UNIT_BYTES, SEGMENT_UNIT_BYTES));
    drop((one, two));
    assert!(!server.reap());
    assert_eq!(server.status()[0].figures.free, 2 * SEGMENT_UNIT_BYTES);
}

#[test]
fn more_than_a_memfd_can_have_is_refused_by_name() {
    let bytes = u64::MAX / SEGMENT_UNIT_BYTES * SEGMENT_UNIT_BYTES;
    let Err(refused) = Linux::default().make(NODE, bytes, Vpage::Small) else { panic!("16 EiB?") };
    assert!(matches!(refused, PoolError::NoMemfd { what: "ftruncate", .. }), "{refused}");
}

/// A folder that goes with its last use.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("tiercel-pool-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn memory(&self) -> Linux {
        Linux { folders: [(NODE, self.0.clone())].into(), ..Linux::default() }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir(&self.0).expect("no file was left in it");
    }
}

#[test]
fn a_folder_s_files_are_memory_as_well() {
    let folder = Folder::new("files");
    let capacities = [(NODE, 2 * SEGMENT_UNIT_BYTES)];
    let mut server = Server::new(folder.memory(), &capacities, 0);
    let first = server.grant(owner(1), NODE, SEGMENT_UNIT_BYTES, Vpage::Small).unwrap();
    assert!(first.is_emulated, "no file system on a device with DAX");
    let mut kept = File::from(first.fd.try_clone().unwrap());
    kept.write_all(b"a secret").unwrap();
    server.give_back(owner(1), first.id).unwrap();
    let mut read = [1u8; 8];
    kept.seek(SeekFrom::Start(0)).unwrap();
    kept.read_exact(&mut read).unwrap();
    assert_eq!(read, [0; 8]);
    drop((kept, first));
    let second = server.grant(owner(2), NODE, 2 * SEGMENT_UNIT_BYTES, Vpage::Large).unwrap();
    assert_eq!(second.bytes, 2 * SEGMENT_UNIT_BYTES);
    let refused = server.grant(owner(2), NODE, SEGMENT_UNIT_BYTES, Vpage::Small).unwrap_err();
    assert!(matches!(refused, PoolError::Exhausted { free: 0, .. }), "{refused}");
}

#[test]
fn a_file_that_its_owner_made_longer_is_cut() {
    let folder = Folder::new("longer");
    let mut server = Server::new(folder.memory(), &[(NODE, SEGMENT_UNIT_BYTES)], 0);
    let grant = server.grant(owner(1), NODE, SEGMENT_UNIT_BYTES, Vpage::Small).unwrap();
    let size = || rustix::fs::fstat(&grant.fd).unwrap().st_size.unsigned_abs();
    rustix::fs::ftruncate(&grant.fd, 1 << 30).unwrap();
    assert!(server.reap(), "it is held");
    assert_eq!(size(), SEGMENT_UNIT_BYTES);
    server.give_back(owner(1), grant.id).unwrap();
    rustix::fs::ftruncate(&grant.fd, 1 << 30).unwrap();
    server.sweep();
    assert_eq!(size(), SEGMENT_UNIT_BYTES);
}

#[test]
fn a_file_that_its_owner_cut_short_is_empty() {
    let folder = Folder::new("shorter");
    let made = folder.memory().make(NODE, SEGMENT_UNIT_BYTES, Vpage::Small).unwrap();
    let shared = made.segment.share().unwrap();
    assert!(!made.segment.is_let_go());
    rustix::fs::ftruncate(&shared, 0).unwrap();
    assert!(made.segment.scrub() && made.segment.resident_bytes() == 0);
}

#[test]
fn a_folder_without_room_or_that_is_none_is_named() {
    let folder = Folder::new("room");
    let bytes = 1 << 60;
    let Err(full) = folder.memory().make(NODE, bytes, Vpage::Small) else { panic!("1 EiB?") };
    assert!(matches!(full, PoolError::NoFile { what: "making room", .. }), "{full}");
    let mut gone = Linux { folders: [(NODE, folder.0.join("gone"))].into(), ..Linux::default() };
    let Err(gone) = gone.make(NODE, SEGMENT_UNIT_BYTES, Vpage::Small) else { panic!("no folder") };
    assert!(gone.to_string().contains("gone gives no file"), "{gone}");
}

/// Opens the memory of `grant` once more, as the client that holds it would.
fn reopen(grant: &std::os::fd::OwnedFd, flags: OFlags) -> rustix::io::Result<std::os::fd::OwnedFd> {
    let path = format!("/proc/self/fd/{}", grant.as_raw_fd());
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())
}

#[test]
fn only_the_pool_s_own_user_can_open_a_segment_again() {
    let mut server = server(1);
    let grant = server.grant(owner(1), NODE, SEGMENT_UNIT_BYTES, Vpage::Small).unwrap();
    let mode = Mode::from_raw_mode(rustix::fs::fstat(&grant.fd).unwrap().st_mode);
    assert_eq!(mode & (Mode::RWXU | Mode::RWXG | Mode::RWXO), Mode::RUSR | Mode::WUSR);
}

/// The kernel announces a broken lease by `SIGIO` unless it is asked for another signal, and
/// `SIGIO` ends the process: here, the test.
#[test]
fn a_lease_that_a_client_breaks_does_not_end_the_process() {
    /// Enough to see that the signal is sent and survived.
    const BROKEN_MIN: u64 = 3;
    let made = Linux::default().make(NODE, SEGMENT_UNIT_BYTES, Vpage::Small).unwrap();
    let reader = {
        let granted = made.segment.share().unwrap();
        reopen(&granted, OFlags::RDONLY).unwrap()
    };
    let broken = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while broken.load(Ordering::Relaxed) < BROKEN_MIN {
                let opened = reopen(&reader, OFlags::RDWR | OFlags::NONBLOCK);
                if opened.is_err_and(|error| error == rustix::io::Errno::AGAIN) {
                    broken.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        while broken.load(Ordering::Relaxed) < BROKEN_MIN {
            made.segment.is_let_go();
        }
    });
}
