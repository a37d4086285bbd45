//! The binary, the runtime and small C programs, built once; processes that end with their test.
//! In: arguments, sources. Out: commands, answers. Knows nothing of what is tested.
#![allow(dead_code)] // Each test file uses a part of it.

use rustix::fs::FlockOperation;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// What is awaited takes milliseconds on a quiet machine, and seconds on a very busy one.
pub const DEADLINE: Duration = Duration::from_secs(300);

/// The command, with a runtime beside it.
pub fn tiercel() -> Command {
    tiercel_under(&[])
}

/// The same, started by `before`, a command that runs its arguments.
pub fn tiercel_under(before: &[&str]) -> Command {
    runtime();
    // Shells ignore SIGINT for what they run in the background, and so would all below.
    let mut command = Command::new("env");
    command.arg("--default-signal=INT").args(before).arg(env!("CARGO_BIN_EXE_tiercel"));
    command.env_remove("LD_PRELOAD").env_remove("TIERCEL_SOCKET");
    // Nothing is learned from another test, and nothing is left in the developer's folder.
    command.env("XDG_DATA_HOME", "").env("HOME", "");
    command
}

/// `tiercel run ARGS`.
pub fn run(args: &[&str]) -> Output {
    tiercel().arg("run").args(args).output().unwrap()
}

/// The runtime, built where the command looks for it.
pub fn runtime() -> &'static Path {
    static RUNTIME: OnceLock<PathBuf> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let folder = Path::new(env!("CARGO_BIN_EXE_tiercel")).parent().unwrap();
        let out = folder.parent().unwrap().join("runtime");
        std::fs::create_dir_all(&out).unwrap();
        // Several tests, and several runs of tests, may get here at once.
        let lock = std::fs::File::create(out.join("lock")).unwrap();
        rustix::fs::flock(&lock, FlockOperation::LockExclusive).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../runtime");
        let mut make = Command::new("make");
        make.arg("-C").arg(source).arg(format!("OUT={}", out.display()));
        // Flags of a make above us are not for this one.
        let built = make.env_remove("MAKEFLAGS").output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        out.join("libtiercel.so")
    })
}

/// Compiles a C program into `folder`.
pub fn compile(folder: &Path, name: &str, source: &str, flags: &[&str]) -> PathBuf {
    let file = folder.join(format!("{name}.c"));
    std::fs::write(&file, source).unwrap();
    compile_file(folder, &file, flags)
}

/// Compiles a C program of the tree into `folder`, which all users may read.
pub fn compile_file(folder: &Path, file: &Path, flags: &[&str]) -> PathBuf {
    let out = folder.join(file.file_stem().unwrap());
    let mut cc = Command::new("cc");
    // Compilers know that malloc followed by free is nothing.
    cc.args(["-g", "-O1", "-fno-builtin", "-Wall", "-Werror", "-o"]).arg(&out).arg(file);
    cc.args(flags);
    assert!(cc.status().unwrap().success());
    out
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A process that is killed when its test ends.
pub struct Process {
    pub child: Child,
}

impl Process {
    pub fn start(command: &mut Command) -> Process {
        Process { child: command.spawn().unwrap() }
    }

    pub fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(self.pid(), signal).unwrap();
    }

    /// Waits for the end, bounded.
    pub fn end(&mut self) -> std::process::ExitStatus {
        drop(self.child.stdin.take());
        wait("the process to end", || self.child.try_wait().unwrap())
    }

    /// The next line of its standard output.
    pub fn line(&mut self) -> String {
        let stdout = self.child.stdout.as_mut().unwrap();
        // One byte at a time: nothing may be read ahead and lost between two calls.
        let mut reader = BufReader::with_capacity(1, stdout);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        line
    }

    pub fn rest(&mut self) -> String {
        let mut rest = String::new();
        self.child.stdout.as_mut().unwrap().read_to_string(&mut rest).unwrap();
        rest
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Asks until there is an answer, bounded.
pub fn wait<T>(what: &str, mut answer: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = answer() {
            return found;
        }
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// A daemon of its own folder.
pub struct Daemon {
    pub folder: tempfile::TempDir,
    pub process: Process,
}

impl Daemon {
    pub fn start(args: &[&str]) -> Daemon {
        Daemon::start_under(&[], args)
    }

    /// Started by `before`, a command that runs its arguments.
    pub fn start_under(before: &[&str], args: &[&str]) -> Daemon {
        let folder = tempfile::tempdir().unwrap();
        let process = serve(before, &folder.path().join("t"), args);
        Daemon { folder, process }
    }

    pub fn dir(&self) -> PathBuf {
        self.folder.path().join("t")
    }

    /// Another one in the same place.
    pub fn restart(&mut self) {
        self.process = serve(&[], &self.dir(), &[]);
    }

    /// A command that attaches to it.
    pub fn hosted(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("LD_PRELOAD", runtime()).env("TIERCEL_SOCKET", self.dir().join("daemon.sock"));
        command
    }

    pub fn control(&self) -> PathBuf {
        self.dir().join("daemon.control")
    }

    pub fn ask(&self, args: &[&str]) -> Output {
        tiercel().args(args).arg("--socket").arg(self.control()).output().unwrap()
    }

    pub fn status(&self) -> serde_json::Value {
        let output = self.ask(&["status", "--json"]);
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    pub fn until(&self, what: &str, holds: impl Fn(&serde_json::Value) -> bool) {
        let end = Instant::now() + DEADLINE;
        loop {
            let status = self.status();
            if holds(&status) {
                return;
            }
            assert!(Instant::now() < end, "waited in vain for: {what}; {status:#}");
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }
}

fn serve(before: &[&str], dir: &Path, args: &[&str]) -> Process {
    let mut command = tiercel_under(before);
    command.arg("daemon").arg("--dir").arg(dir).args(args);
    // As dist/tiercel.service.
    command.env("MALLOC_ARENA_MAX", "1");
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let process = Process::start(&mut command);
    let control = dir.join("daemon.control");
    wait("the daemon to listen", || std::os::unix::net::UnixStream::connect(&control).ok());
    process
}
