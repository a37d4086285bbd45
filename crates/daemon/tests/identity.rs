//! Connections whose process is not what connected: inherited ones, numbers given to another
//! process, programs executed without a word. In: processes of our own. Out: what the daemon makes
//! of them. Knows nothing of how the daemon identifies a process.

#[allow(dead_code, reason = "other tests use the rest of it")]
mod stage;

use rustix::fd::AsFd;
use stage::{Stage, connect, greet, socket};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tiercel_wire::Status;
use tiercel_wire::client::SessionBuilder;

/// Names the socket, and what to do with it, to a child of these tests.
const SOCKET: &str = "TIERCEL_TEST_IDENTITY_SOCKET";
const PART: &str = "TIERCEL_TEST_IDENTITY_PART";
/// The kernel file by which root chooses the number of the next process.
const LAST_PID: &str = "/proc/sys/kernel/ns_last_pid";
/// Other tests make processes as well and may take the number first.
const ATTEMPTS: usize = 200;

/// Ends with the test, also when that fails.
struct Ended(Child);

impl Ended {
    fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.end();
    }
}

/// This test program once more, as another process, which does one part with its standard input.
fn another(stage: &Stage, part: &str, stdin: Stdio) -> Ended {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "what_another_process_does", "--nocapture"])
        .env(SOCKET, stage.clients_path())
        .env(PART, part)
        .stdin(stdin)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut child = Ended(child);
    let mut text = Vec::new();
    let mut byte = [0u8; 1];
    while !text.ends_with(b"|ready|") {
        assert_eq!(child.0.stdout.as_mut().unwrap().read(&mut byte).unwrap(), 1, "{text:?}");
        text.push(byte[0]);
    }
    child
}

#[test]
fn what_another_process_does() {
    let (Some(path), Ok(part)) = (std::env::var_os(SOCKET), std::env::var(PART)) else { return };
    let (path, stdin) = (Path::new(&path), std::io::stdin());
    let ready = || {
        print!("|ready|");
        std::io::stdout().flush().unwrap();
    };
    match part.as_str() {
        "connect" => {
            connect(stdin.as_fd(), path);
            ready();
            loop {
                std::thread::park();
            }
        }
        "attach and execute" => {
            let session = SessionBuilder::new().build().unwrap();
            let socket = socket();
            connect(&socket, path);
            assert_eq!(greet(socket.as_fd(), &session).unwrap().status, Status::Ok);
            ready();
            let _ = std::io::stdin().read(&mut [0u8; 1]);
            panic!("{}", Command::new("cat").exec());
        }
        other => panic!("{other}"),
    }
}

/// A connection of another process, which we share with it.
fn inherited(stage: &Stage) -> (OwnedFd, Ended) {
    let ours = socket();
    let theirs = ours.try_clone().unwrap();
    (ours, another(stage, "connect", Stdio::from(theirs)))
}

#[test]
fn a_hello_for_another_process_is_refused() {
    let stage = Stage::new();
    let (connection, _process) = inherited(&stage);
    let session = SessionBuilder::new().build().unwrap();
    let answer = greet(connection.as_fd(), &session);
    assert!(!answer.is_ok_and(|welcome| welcome.status == Status::Ok));
    let status = stage.status();
    assert_eq!(status.clients.attached, 0);
    assert_eq!(status.clients.refused["another process than connected"], 1);
}

#[test]
fn the_connection_of_a_process_that_ended_is_refused() {
    let stage = Stage::new();
    let (connection, mut process) = inherited(&stage);
    process.end();
    // With the right to choose, its number is given to a stranger, who must not become the client.
    let _stranger = process_of_number(process.0.id());
    let session = SessionBuilder::new().build().unwrap();
    let answer = greet(connection.as_fd(), &session);
    assert!(!answer.is_ok_and(|welcome| welcome.status == Status::Ok));
    assert_eq!(stage.status().clients.attached, 0);
}

/// A process with this number; `None` without the right to choose it.
fn process_of_number(pid: u32) -> Option<Ended> {
    for _ in 0..ATTEMPTS {
        std::fs::write(LAST_PID, (pid - 1).to_string()).ok()?;
        let child = Ended(Command::new("sleep").arg("1000").spawn().unwrap());
        if child.0.id() == pid {
            return Some(child);
        }
    }
    None
}

#[test]
fn a_program_that_is_executed_without_a_word_is_not_hosted() {
    let stage = Stage::new();
    let mut process = another(&stage, "attach and execute", Stdio::piped());
    stage.until("it is hosted", |s| s.clients.now == 1);
    process.0.stdin.as_mut().unwrap().write_all(b"x").unwrap();
    stage.until("it is not hosted", |s| s.clients.now == 0);
    assert_eq!(process.0.try_wait().unwrap(), None, "it runs");
}
