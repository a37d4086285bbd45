//! Files are parsed in children: one for each user whose files are asked for. In: frames and
//! modules, as lines of JSON on a socket. Out: names, and symbols of data, likewise. Knows nothing
//! of what an ELF file contains.
//!
//! A hostile file can make its parser crash (SIGBUS after a truncation), grow or not end. The child
//! has that user's rights, bounded memory and CPU time; the parent waits a bounded time, kills a
//! child that is late, and never asks for that file again.

use crate::elf::{DATA_SYMBOLS_MAX, ElfReader};
use crate::frame::{DataSymbol, Named, SiteFrame, hex};
use rustix::process::{Resource, Rlimit};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// How long one frame may take. Chosen, not measured: the debug information of a browser (4 GiB)
/// takes some seconds the first time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest answer that is read, bytes: [`NAMES_MAX`] names of [`TEXT_BYTES_MAX`] in three texts,
/// where JSON may write six bytes for one.
const ANSWER_BYTES_MAX: u64 = 8 << 20;
/// Names of one frame, and bytes of a function or a path. Chosen, not measured: demangled C++ names
/// of some KiB occur.
const NAMES_MAX: usize = 64;
const TEXT_BYTES_MAX: usize = 4 << 10;
/// Characters of the name of static data: of 1024 such names an answer takes 3 MiB at most.
const DATA_NAME_MAX: usize = 512;
/// Children that may fail for one user; then the rest of that user's files stay unread. Chosen, not
/// measured: one bad file costs one child.
const FAILURES_MAX: u32 = 8;
/// Users with a child at a time; one more ends the others. Chosen, not measured: a child has some
/// 100 MiB after a large program.
const USERS_MAX: usize = 8;
/// The child's private memory, bytes: several times the 400 MiB that a browser's debug information
/// takes. Mapped files do not count.
const DATA_BYTES_MAX: u64 = 2 << 30;
/// The child's CPU time over all frames. Chosen, not measured.
const CPU_SECONDS_MAX: u64 = 600;
/// A group that owns no file: the user's groups are given up.
const NO_GROUP: u32 = 65534;

/// The question: a frame, whose path need not be UTF-8.
#[derive(Serialize, Deserialize)]
struct Question {
    path: String,
    build_id: String,
    addr: u64,
    /// Of its module the data is asked for, not the name of the frame.
    #[serde(default)]
    is_data: bool,
}

/// One name of the answer.
#[derive(Serialize, Deserialize)]
struct Answer {
    function: String,
    file: Option<String>,
    line: u32,
}

/// Starts children that read symbols.
pub trait StartChild: Send + Sync + fmt::Debug {
    /// A socket to a child with the rights of a user, which ends when the socket is closed. With
    /// the child itself, where it is ours to end.
    ///
    /// # Errors
    /// When there is no child.
    fn start(&self, uid: u32) -> std::io::Result<(UnixStream, Option<Child>)>;
}

/// Children that run a program with arguments; they must end in [`serve`].
#[derive(Debug)]
pub struct Own(pub Vec<OsString>);

impl StartChild for Own {
    fn start(&self, uid: u32) -> std::io::Result<(UnixStream, Option<Child>)> {
        start_child(&self.0, uid).map(|(socket, child)| (socket, Some(child)))
    }
}

/// The children.
pub(crate) struct Children {
    starter: Arc<dyn StartChild>,
    timeout: Duration,
    users: HashMap<u32, User>,
    defective: HashSet<(u32, Arc<Path>)>,
}

#[derive(Default)]
struct User {
    running: Option<Running>,
    failures: u32,
}

struct Running {
    process: Option<Child>,
    stream: BufReader<UnixStream>,
}

impl Children {
    /// None is started before the first question.
    pub(crate) fn new(starter: Arc<dyn StartChild>) -> Children {
        Children {
            starter,
            timeout: ANSWER_TIMEOUT,
            users: HashMap::new(),
            defective: HashSet::new(),
        }
    }

    /// A frame and what was inlined into it, innermost first; `None` when nothing is known of it.
    pub(crate) fn look_up(&mut self, uid: u32, frame: &SiteFrame) -> Option<Vec<Named>> {
        let names = self.ask(uid, frame, |running| running.names(frame));
        names.filter(|names| !names.is_empty())
    }

    /// The data of a module that has names.
    pub(crate) fn data(&mut self, uid: u32, module: &SiteFrame) -> Vec<DataSymbol> {
        self.ask(uid, module, |running| running.data(module)).unwrap_or_default()
    }

    /// `None` when there is no answer.
    fn ask<T>(
        &mut self,
        uid: u32,
        frame: &SiteFrame,
        ask: impl FnOnce(&mut Running) -> std::io::Result<T>,
    ) -> Option<T> {
        if self.defective.contains(&(uid, Arc::clone(&frame.path))) {
            return None;
        }
        if !self.users.contains_key(&uid) && self.users.len() >= USERS_MAX {
            // Their failures are forgotten with them, their defective files are not.
            self.users.clear();
        }
        let user = self.users.entry(uid).or_default();
        if user.failures >= FAILURES_MAX {
            return None;
        }
        if user.running.is_none() {
            user.running = start(self.starter.as_ref(), uid, self.timeout).ok();
        }
        match user.running.as_mut().map(ask) {
            Some(Ok(answer)) => Some(answer),
            _ => {
                user.running = None; // dropping it ends it
                user.failures += 1;
                self.defective.insert((uid, Arc::clone(&frame.path)));
                None
            }
        }
    }
}

fn start(starter: &dyn StartChild, uid: u32, timeout: Duration) -> std::io::Result<Running> {
    let (socket, process) = starter.start(uid)?;
    socket.set_read_timeout(Some(timeout))?;
    socket.set_write_timeout(Some(timeout))?;
    Ok(Running { process, stream: BufReader::new(socket) })
}

/// Starts `command` with the rights of a user, as far as we have the right to.
///
/// # Errors
/// When it cannot be started.
pub fn start_child(command: &[OsString], uid: u32) -> std::io::Result<(UnixStream, Child)> {
    let (ours, theirs) = UnixStream::pair()?;
    let (program, arguments) = command.split_first().ok_or(std::io::ErrorKind::InvalidInput)?;
    let mut child = Command::new(program);
    child.args(arguments).env_clear().current_dir("/");
    child.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
    let own = rustix::process::geteuid();
    if own.is_root() && uid != 0 {
        child.uid(uid).gid(NO_GROUP);
    }
    Ok((ours, child.spawn()?))
}

impl Running {
    fn names(&mut self, frame: &SiteFrame) -> std::io::Result<Vec<Named>> {
        let answers: Vec<Answer> = self.ask(&question(frame, false))?;
        let named = |answer: Answer| Named {
            function: answer.function,
            line: answer.file.map(|file| (PathBuf::from(file), answer.line)),
            place: frame.place(),
        };
        Ok(answers.into_iter().map(named).collect())
    }

    /// Whatever the child says, at most so many, ascending and without overlaps.
    fn data(&mut self, module: &SiteFrame) -> std::io::Result<Vec<DataSymbol>> {
        let mut symbols: Vec<DataSymbol> = self.ask(&question(module, true))?;
        symbols.truncate(DATA_SYMBOLS_MAX);
        let mut from = 0;
        symbols.retain(|symbol| {
            let end = symbol.addr.checked_add(symbol.bytes);
            let is_next = symbol.addr >= from && symbol.bytes > 0 && end.is_some();
            from = if is_next { end.unwrap_or(from) } else { from };
            is_next
        });
        Ok(symbols)
    }

    fn ask<T: DeserializeOwned>(&mut self, question: &Question) -> std::io::Result<T> {
        let line = serde_json::to_string(&question)? + "\n";
        self.stream.get_mut().write_all(line.as_bytes())?;
        let mut line = String::new();
        if self.stream.by_ref().take(ANSWER_BYTES_MAX).read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_str(&line)?)
    }
}

fn question(frame: &SiteFrame, is_data: bool) -> Question {
    Question {
        path: hex::text(frame.path.as_os_str().as_bytes()),
        build_id: hex::text(&frame.build_id),
        addr: frame.addr,
        is_data,
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            // Fails only when it has ended.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// The child: takes limits, then answers frames from the socket that is its standard input, until
/// the parent closes it.
///
/// # Errors
/// When the socket fails.
pub fn serve() -> std::io::Result<()> {
    for (resource, limit) in [
        (Resource::Data, DATA_BYTES_MAX),
        (Resource::Cpu, CPU_SECONDS_MAX),
        (Resource::Core, 0),
        (Resource::Fsize, 0),
    ] {
        let limit = Some(limit);
        rustix::process::setrlimit(resource, Rlimit { current: limit, maximum: limit })?;
    }
    let stream = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    answer(BufReader::new(stream.try_clone()?), stream)
}

/// Ends this process when it works on one frame for longer than its parent waits for an answer: the
/// parent may have no right to.
struct Watchdog(mpsc::Sender<bool>);

impl Watchdog {
    fn start() -> Watchdog {
        let (sender, is_busy) = mpsc::channel();
        let watch = move || {
            while let Ok(busy) = is_busy.recv() {
                let late = Err(mpsc::RecvTimeoutError::Timeout);
                if busy && is_busy.recv_timeout(ANSWER_TIMEOUT) == late {
                    std::process::exit(1);
                }
            }
        };
        let _ = std::thread::Builder::new().spawn(watch);
        Watchdog(sender)
    }

    fn note(&self, is_busy: bool) {
        // Fails only when the thread could not be made; then the limit on CPU time is left.
        let _ = self.0.send(is_busy);
    }
}

fn answer(questions: impl BufRead, mut answers: impl Write) -> std::io::Result<()> {
    let mut reader = ElfReader::new();
    let watchdog = Watchdog::start();
    for line in questions.lines() {
        let question: Question = serde_json::from_str(&line?)?;
        watchdog.note(true);
        let line = match frame(&question) {
            Some(module) if question.is_data => serde_json::to_string(&data(&mut reader, &module))?,
            asked => serde_json::to_string(&names(&mut reader, asked.as_ref()))?,
        };
        watchdog.note(false);
        answers.write_all((line + "\n").as_bytes())?;
    }
    Ok(())
}

fn names(reader: &mut ElfReader, frame: Option<&SiteFrame>) -> Vec<Answer> {
    let names = frame.and_then(|frame| reader.look_up(frame)).unwrap_or_default();
    names.into_iter().take(NAMES_MAX).map(bounded).collect()
}

fn data(reader: &mut ElfReader, module: &SiteFrame) -> Vec<DataSymbol> {
    let cut = |name: &str| name.chars().take(DATA_NAME_MAX).collect::<String>();
    let symbols = reader.data(module).into_iter();
    symbols.map(|symbol| DataSymbol { name: cut(&symbol.name).into(), ..symbol }).collect()
}

fn frame(question: &Question) -> Option<SiteFrame> {
    let path = hex::bytes(&question.path)?;
    let build_id = hex::bytes(&question.build_id)?;
    Some(SiteFrame {
        path: Path::new(OsStr::from_bytes(&path)).into(),
        build_id,
        addr: question.addr,
    })
}

fn bounded(named: Named) -> Answer {
    let cut = |text: &str| text.chars().take(TEXT_BYTES_MAX / 4).collect::<String>();
    let (file, line) = match &named.line {
        Some((file, line)) => (Some(cut(&file.to_string_lossy())), *line),
        None => (None, 0),
    };
    Answer { function: cut(&named.function), file, line }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a frame is called when this script is the child.
    fn names_by(script: &str) -> (Children, Option<Vec<Named>>) {
        let command = ["sh", "-c", script].map(OsString::from).to_vec();
        let timeout = Duration::from_millis(100);
        let mut children = Children { timeout, ..Children::new(Arc::new(Own(command))) };
        let names = children.look_up(rustix::process::geteuid().as_raw(), &frame("/bin/x"));
        (children, names)
    }

    fn frame(path: &str) -> SiteFrame {
        SiteFrame { path: Path::new(path).into(), build_id: [].into(), addr: 0x10 }
    }

    #[test]
    fn an_answer_is_the_names() {
        let answer =
            r#"[{"function":"f","file":"a.c","line":3},{"function":"g","file":null,"line":0}]"#;
        let (_, names) = names_by(&format!("read line; echo '{answer}' >&0; read line"));
        let names = names.expect("names");
        assert_eq!(names[0].short(), "f a.c:3");
        assert_eq!(names[1].short(), "g (x+0x10)");
    }

    #[test]
    fn data_of_a_child_that_lies_is_in_order_and_bounded() {
        let answer = r#"[{"addr":10,"bytes":5,"name":"a"},{"addr":12,"bytes":9,"name":"over"},
            {"addr":18446744073709551615,"bytes":2,"name":"end"},{"addr":3,"bytes":1,"name":"back"},
            {"addr":20,"bytes":0,"name":"none"},{"addr":15,"bytes":4,"name":"b"}]"#;
        let script = format!("read line; echo '{}' >&0; read line", answer.replace('\n', ""));
        let command = ["sh", "-c", &script].map(OsString::from).to_vec();
        let mut children = Children::new(Arc::new(Own(command)));
        let data = children.data(rustix::process::geteuid().as_raw(), &frame("/bin/x"));
        let names: Vec<&str> = data.iter().map(|one| &*one.name).collect();
        assert_eq!(names, ["a", "b"]);
    }

    #[test]
    fn a_child_that_dies_lies_or_hangs_costs_names_only() {
        for script in [
            "kill -BUS $$",
            "exit 0",
            "read line; echo nonsense >&0; read line",
            "read line; exec sleep 1000",
            "read line; exec cat /dev/zero >&0",
        ] {
            let (mut children, names) = names_by(script);
            assert_eq!(names, None, "{script}");
            let user = rustix::process::geteuid().as_raw();
            assert_eq!(children.users[&user].failures, 1, "{script}");
            children.look_up(user, &frame("/bin/x"));
            assert_eq!(children.users[&user].failures, 1, "{script}: the file is asked for again");
        }
    }

    #[test]
    fn files_are_read_with_the_rights_of_their_user() {
        if !rustix::process::geteuid().is_root() {
            return; // only root serves other users
        }
        let script = r#"read line; who="$(/usr/bin/id -u) $(/usr/bin/id -G)"
            printf '[{"function":"%s","file":null,"line":0}]\n' "$who" >&0; read line"#;
        let command = ["sh", "-c", script].map(OsString::from).to_vec();
        let mut children = Children::new(Arc::new(Own(command)));
        let mut rights = |uid| {
            let names = children.look_up(uid, &frame(&format!("/bin/{uid}")));
            names.expect("an answer")[0].function.clone()
        };
        assert_eq!(rights(1234), format!("1234 {NO_GROUP}"));
        assert!(rights(0).starts_with("0 "));
    }

    #[test]
    fn after_several_failures_no_more_children_are_started() {
        let (mut children, _) = names_by("exit 0");
        let user = rustix::process::geteuid().as_raw();
        for n in 0..2 * FAILURES_MAX {
            children.look_up(user, &frame(&format!("/bin/{n}")));
        }
        assert_eq!(children.users[&user].failures, FAILURES_MAX);
    }

    #[test]
    fn questions_and_answers_survive_names_of_any_kind() {
        let path = Path::new(OsStr::from_bytes(b"/tmp/\xff \n")).into();
        let asked = SiteFrame { path, build_id: [1, 255].into(), addr: u64::MAX };
        let question = question(&asked, false);
        assert_eq!(super::frame(&question).expect("a frame"), asked);
        let mut answers = Vec::new();
        let line = serde_json::to_string(&question).expect("plain data") + "\n";
        answer(line.as_bytes(), &mut answers).expect("an answer");
        assert_eq!(answers, b"[]\n");
        let long = Named { function: "ü".repeat(1 << 20), ..Named::default() };
        assert_eq!(bounded(long).function.len(), TEXT_BYTES_MAX / 2);
    }
}
