//! The pools of a daemon, asked over its socket: by this process, by others that are hostile, and
//! by some that die.

#[allow(dead_code, reason = "other tests use the rest of it")]
mod stage;

use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use stage::{MIB, Stage};
use std::fs::File;
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tiercel_machine::NodeId;
use tiercel_pool::Capacity;
use tiercel_wire::{GrantKey, PoolAnswer, PoolAsk, PoolStatus, PoolVerb};

/// No machine has this node.
const PAPER: i32 = 900;
const CAPACITY: u64 = 64 * MIB;
/// Names the socket to a child of these tests.
const SOCKET: &str = "TIERCEL_TEST_POOL_SOCKET";
const PART: &str = "TIERCEL_TEST_POOL_PART";

fn stage() -> Stage {
    let of = |node| Capacity { node, bytes: CAPACITY, folder: None };
    Stage::with(|config| config.pools = vec![of(NodeId(0)), of(NodeId(PAPER as u16))])
}

fn say(path: &Path, bytes: &[u8]) -> (Option<PoolAnswer>, Option<OwnedFd>) {
    let kind = SocketType::SEQPACKET;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    rustix::net::send(&socket, bytes, SendFlags::NOSIGNAL).unwrap();
    let mut answer = [0u8; 64];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let into = &mut [IoSliceMut::new(&mut answer)];
    let got = rustix::net::recvmsg(&socket, into, &mut ancillary, RecvFlags::empty()).unwrap();
    let fd = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    (PoolAnswer::decode(&answer[..got.bytes]).ok(), fd)
}

fn ask(path: &Path, verb: PoolVerb) -> (PoolAnswer, Option<OwnedFd>) {
    let (answer, fd) = say(path, &PoolAsk(verb).encode());
    (answer.expect("an answer"), fd)
}

fn grant(path: &Path, node: i32, bytes: u64) -> (PoolAnswer, Option<OwnedFd>) {
    ask(path, PoolVerb::Grant { node, bytes, vpage_shift: 12 })
}

/// This test program once more, as another process, which does one part.
fn another(stage: &Stage, part: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "what_another_process_does", "--nocapture"])
        .env(SOCKET, stage.clients_path())
        .env(PART, part)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// What the other process printed between two bars.
fn word(child: &mut Child) -> String {
    let mut text = String::new();
    let out = child.stdout.as_mut().unwrap();
    let mut byte = [0u8; 1];
    while text.matches('|').count() < 2 {
        assert_eq!(out.read(&mut byte).unwrap(), 1, "it ended after `{text}`");
        text.push(char::from(byte[0]));
    }
    text.split('|').nth(1).unwrap().to_owned()
}

#[test]
fn what_another_process_does() {
    let (Some(path), Ok(part)) = (std::env::var_os(SOCKET), std::env::var(PART)) else { return };
    let path = Path::new(&path);
    match part.as_str() {
        "hostile" => {
            // Nothing that is another's can be returned, left or asked for by number.
            let keys = (0..200).map(|number| GrantKey { number, secret: 0 });
            let refused = keys.flat_map(|key| [PoolVerb::Return(key), PoolVerb::Leave(key)]);
            let refused =
                refused.filter(|verb| ask(path, *verb).0.status == PoolStatus::Refused).count();
            print!("|{refused}|");
        }
        "holder" => {
            let held: Vec<_> = (0..4).map(|_| grant(path, 0, 4 * MIB)).collect();
            let good = held.iter().filter(|(_, fd)| fd.is_some()).count();
            print!("|{good}|");
            std::io::stdout().flush().unwrap();
            let _ = std::io::stdin().read(&mut [0u8; 1]);
        }
        other => panic!("{other}"),
    }
    std::io::stdout().flush().unwrap();
}

#[test]
fn a_pool_in_a_folder_grants_files_without_a_name() {
    let folder = std::env::temp_dir().join(format!("tiercel-pools-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let of_folder = Capacity { node: NodeId(0), bytes: CAPACITY, folder: Some(folder.clone()) };
    let stage = Stage::with(|config| config.pools = vec![of_folder]);
    let (answer, fd) = grant(stage.clients_path(), 0, 8 * MIB);
    let fd = fd.expect("a file");
    assert_eq!((answer.status, answer.is_file, answer.is_emulated), (PoolStatus::Ok, true, true));
    let stat = fstat(&fd).unwrap();
    assert_eq!((stat.st_size.unsigned_abs(), stat.st_nlink), (8 * MIB, 0));
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    let (full, nothing) = grant(stage.clients_path(), 0, CAPACITY);
    assert!(full.status == PoolStatus::Exhausted && nothing.is_none());
    drop((fd, stage));
    std::fs::remove_dir(&folder).unwrap();
}

#[test]
fn segments_are_granted_sealed_and_taken_back() {
    let stage = stage();
    let path = stage.clients_path();
    for (node, emulated) in [(0, false), (PAPER, true)] {
        let (answer, fd) = grant(path, node, 8 * MIB);
        let fd = fd.expect("a memfd");
        assert_eq!((answer.status, answer.is_emulated), (PoolStatus::Ok, emulated));
        assert_eq!(fstat(&fd).unwrap().st_size.unsigned_abs(), 8 * MIB);
        assert_eq!(fstat(&fd).unwrap().st_blocks.unsigned_abs() * 512, 8 * MIB, "populated");
        assert!(fcntl_get_seals(&fd).unwrap().contains(SealFlags::SHRINK | SealFlags::SEAL));
        let pool = move |s: &tiercel_daemon::Summary| {
            s.pools.iter().any(|p| i32::from(p.node) == node && p.granted_bytes == 8 * MIB)
        };
        stage.until("it is accounted for", pool);
        File::from(fd.try_clone().unwrap()).write_all_at(b"secret", 0).unwrap();
        let guess = GrantKey { secret: answer.key.secret ^ 1, ..answer.key };
        for verb in [PoolVerb::Return(guess), PoolVerb::Leave(guess)] {
            assert_eq!(ask(path, verb).0.status, PoolStatus::Refused, "a guessed secret");
        }
        assert_eq!(ask(path, PoolVerb::Return(answer.key)).0.status, PoolStatus::Ok);
        let mut left = [1u8; 6];
        File::from(fd).read_exact_at(&mut left, 0).unwrap();
        assert_eq!(left, [0; 6], "its memory is gone although we kept it open");
        let again = ask(path, PoolVerb::Return(answer.key)).0.status;
        assert_eq!(again, PoolStatus::Refused, "once");
    }
    stage.until("all is free", |s| s.pools.iter().all(|p| p.free_bytes == CAPACITY));
}

#[test]
fn invalid_requests_are_refused() {
    let stage = stage();
    let path = stage.clients_path();
    let status = |node, bytes| grant(path, node, bytes).0.status;
    assert_eq!(status(1, MIB * 2), PoolStatus::None);
    assert_eq!(status(-1, MIB * 2), PoolStatus::None);
    assert_eq!(status(70_000, MIB * 2), PoolStatus::None);
    assert_eq!(status(0, 0), PoolStatus::Refused);
    assert_eq!(status(0, 4096), PoolStatus::Refused);
    assert_eq!(status(0, CAPACITY + 2 * MIB), PoolStatus::Exhausted);
    assert_eq!(status(0, 1 << 62), PoolStatus::Exhausted);
    let mut odd = PoolAsk(PoolVerb::Return(GrantKey { number: 1, secret: 1 })).encode();
    odd[8] = 77;
    assert_eq!(say(path, &odd).0, None, "no answer but the greeting's");
    assert_eq!(say(path, &odd[..9]).0, None);
    assert_eq!(grant(path, 0, 2 * MIB).0.status, PoolStatus::Ok, "and it serves");
}

#[test]
fn a_daemon_without_pools_says_so() {
    let stage = Stage::new();
    assert_eq!(grant(stage.clients_path(), 0, 2 * MIB).0.status, PoolStatus::None);
}

#[test]
fn another_process_gets_nothing_of_ours() {
    let stage = stage();
    let path = stage.clients_path();
    let (answer, fd) = grant(path, 0, 8 * MIB);
    let ours = File::from(fd.unwrap());
    ours.write_all_at(b"secret", 0).unwrap();
    let mut hostile = another(&stage, "hostile");
    assert_eq!(word(&mut hostile), "400");
    assert!(hostile.wait().unwrap().success());
    let mut read = [0u8; 6];
    ours.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(&read, b"secret");
    assert_eq!(ask(path, PoolVerb::Return(answer.key)).0.status, PoolStatus::Ok);
}

#[test]
fn what_the_killed_held_is_free_again() {
    let stage = stage();
    let mut holder = another(&stage, "holder");
    assert_eq!(word(&mut holder), "4");
    stage.until("it holds 16 MiB", |s| s.pools[0].granted_bytes == 16 * MIB);
    let free = grant(stage.clients_path(), 0, CAPACITY - 14 * MIB).0.status;
    assert_eq!(free, PoolStatus::Exhausted, "what it holds belongs to it alone");
    holder.kill().unwrap();
    holder.wait().unwrap();
    stage.until("all is free", |s| s.pools[0].free_bytes == CAPACITY);
    assert_eq!(grant(stage.clients_path(), 0, CAPACITY).0.status, PoolStatus::Ok);
}
