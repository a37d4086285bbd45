//! `tiercel run` with real programs: they must not notice, and the user gets a summary.

mod common;

use common::{Process, compile, run, runtime, stderr, stdout, tiercel};
use rustix::process::Signal;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

const TABLES: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
__attribute__((noinline)) char *make_table(size_t bytes) { return malloc(bytes); }
int main(void) {
    char *table = make_table(8 << 20);
    memset(table, 1, 8 << 20);
    printf("%d\n", table[4096]);
    return 3;
}
"#;

/// Prints the rights of the mapping that has a large object.
const HEAP: &str = r#"
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    void *object = malloc(1 << 20);
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512], rights[5];
    unsigned long from, to;
    while (fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %4s", &from, &to, rights) == 3 &&
            from <= (unsigned long)object && (unsigned long)object < to)
            puts(rights);
    return 0;
}
"#;

/// Shared memory would lose waiters of futexes, locks and what devices write, when it moves.
#[test]
fn a_heap_that_moves_is_private_memory_also_beside_pools() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), "heap", HEAP, &[]);
    let program = program.to_str().unwrap();
    let pools = ["--backing", "vmem", "--pool", "0=128MiB", "--quiet", "--", program];
    let output = run(&pools);
    assert_eq!(stdout(&output), "rw-p\n", "{}", stderr(&output));
}

#[test]
fn a_pool_that_no_program_uses_is_named() {
    let said = stderr(&run(&["-v", "--pool", "0=64MiB", "--", "true"]));
    let expect = "pool       node 0: none of 64MiB was used, because no program registered";
    assert!(said.contains(expect), "{said}");
}

#[test]
fn the_exit_status_is_the_programs() {
    for status in [0, 1, 7, 124, 125, 255] {
        let output = run(&["--quiet", "--", "sh", "-c", &format!("exit {status}")]);
        assert_eq!(output.status.code(), Some(status));
        assert_eq!(stderr(&output), "");
    }
}

/// A full disk and a closed pipe.
#[test]
fn the_exit_status_survives_a_broken_standard_error() {
    let full = || Stdio::from(std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    let closed = || Stdio::from(std::io::pipe().unwrap().1);
    let folder = tempfile::tempdir().unwrap();
    let profile = folder.path().join("x.profile");
    let record = ["record", "-o", profile.to_str().unwrap(), "--"];
    let run = ["run", "-v", "--"];
    let run_json = ["run", "--json", "--"];
    for args in [&run[..], &run_json, &record] {
        for broken in [full(), closed()] {
            let mut command = tiercel();
            command.args(args).args(["sh", "-c", "exit 7"]).stderr(broken);
            assert_eq!(command.status().unwrap().code(), Some(7), "{args:?}");
        }
    }
    let mut command = tiercel();
    command.args(["run", "--", "no-such-program-anywhere"]).stderr(full());
    assert_eq!(command.status().unwrap().code(), Some(127));
}

#[test]
fn death_by_a_signal_is_passed_on() {
    for signal in [Signal::TERM, Signal::KILL, Signal::SEGV, Signal::INT, Signal::PIPE] {
        let number = signal.as_raw();
        let output = run(&["--quiet", "--", "sh", "-c", &format!("kill -{number} $$")]);
        assert_eq!(output.status.signal(), Some(number), "{:?}", output.status);
    }
}

#[test]
fn programs_that_cannot_start_are_named() {
    let output = run(&["--", "no-such-program-anywhere"]);
    assert_eq!(output.status.code(), Some(127));
    assert!(stderr(&output).contains("no-such-program-anywhere"), "{}", stderr(&output));
    let output = run(&["--", "/etc/passwd"]);
    assert_eq!(output.status.code(), Some(126));
}

/// Shells and `execvp` run it with sh; the kernel refuses it.
#[test]
fn a_script_without_an_interpreter_is_run_by_the_shell() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&path, mode).unwrap();
        path
    };
    let script = write("script", b"echo \"$0 $1\"\nexit 3\n");
    let output = run(&["--quiet", "--", script.to_str().unwrap(), "a b"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert_eq!(stdout(&output), format!("{} a b\n", script.display()));
    let mut command = tiercel();
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    command.args(["run", "--quiet", "--", "script"]).env("PATH", path);
    assert_eq!(command.output().unwrap().status.code(), Some(3), "found in PATH");
    let binary = write("binary", b"\x7fELF\0\0\0\n");
    let output = run(&["--quiet", "--", binary.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(126), "{}", stderr(&output));
}

#[test]
fn a_summary_that_cannot_be_written_stops_before_the_program_starts() {
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().join("started");
    let mut command = tiercel();
    command.args(["run", "--output", "/no/such/x", "--", "touch"]).arg(&mark);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    let said = stderr(&output);
    assert!(said.starts_with("tiercel: cannot write the summary /no/such/x"), "{said}");
    assert!(!mark.exists(), "the program was started");
    // What is there is replaced, also by less.
    let file = folder.path().join("summary");
    std::fs::write(&file, "x".repeat(1 << 16)).unwrap();
    let status = tiercel().args(["run", "--output"]).arg(&file).args(["--", "true"]).status();
    assert!(status.unwrap().success());
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(!text.contains('x') || !text.contains(&"x".repeat(9)), "{text}");
}

/// What reads a program's standard error finds the program's alone, unless it asks.
#[test]
fn without_a_terminal_nothing_is_printed_and_on_one_three_lines() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), "tables", TABLES, &[]);
    let output = run(&["--", program.to_str().unwrap()]);
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(3), ""));
    // util-linux's script gives its child a terminal.
    let binary = env!("CARGO_BIN_EXE_tiercel");
    let words = format!("{binary} run -- {}", program.display());
    let mut on_terminal = Command::new("script");
    on_terminal.args(["--quiet", "--return", "--command", &words, "/dev/null"]);
    let output = on_terminal.stdin(Stdio::null()).output().unwrap();
    let said = stdout(&output);
    assert_eq!(output.status.code(), Some(3), "{said}");
    let lines: Vec<&str> = said.lines().filter(|line| line.starts_with("tiercel: ")).collect();
    assert_eq!(lines.len(), 3, "{said}");
    for (line, begins) in lines.iter().zip(["hot", "enough", "next"]) {
        assert!(line.starts_with(&format!("tiercel: {begins} ")), "{said}");
    }
    let output = run(&["--rows", "1", "--", program.to_str().unwrap()]);
    assert!(stderr(&output).contains("tiercel: overhead "), "{}", stderr(&output));
}

#[test]
fn a_modelled_machine_is_named_where_the_user_named_none() {
    let tiers = tiercel_machine::Machine::discover(Path::new("/")).unwrap().0.tiers().len();
    let named = "moves are modelled on cascadelake-optane; --machine names another";
    let said = stderr(&run(&["-v", "--", "true"]));
    assert_eq!(said.contains(named), tiers < 2, "{said}");
    let said = stderr(&run(&["-v", "--machine", "spr-cxl", "--", "true"]));
    assert!(!said.contains(named), "{said}");
}

#[test]
fn of_several_runs_one_is_chosen_by_a_process() {
    let start = |status: &str| {
        let mut command = tiercel();
        let script = format!("echo $$; read x; exit {status}");
        command.args(["run", "--quiet", "--", "sh", "-c", &script]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Process::start(&mut command)
    };
    let (mut one, mut other) = (start("5"), start("6"));
    let shells = [one.line(), other.line()];
    let said = stderr(&tiercel().arg("status").output().unwrap());
    for expect in ["choose one with --pid", "read x; exit 5", "read x; exit 6"] {
        assert!(said.contains(expect), "{said}");
    }
    assert!(!said.contains(".control"), "{said}");
    let host = other.child.id().to_string();
    for pid in [shells[1].trim(), &host] {
        let output = tiercel().args(["status", "--json", "--pid", pid]).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
    }
    let output = tiercel().args(["status", "--pid", "1"]).output().unwrap();
    assert!(stderr(&output).contains("hosts process 1"), "{}", stderr(&output));
    assert_eq!((one.end().code(), other.end().code()), (Some(5), Some(6)));
}

#[test]
fn a_bad_configuration_stops_before_the_program_starts() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("bad.toml");
    std::fs::write(&config, "fast = \"25%\"\n[policy]\nprioritize = \"lru\"\n").unwrap();
    let config = config.to_str().unwrap();
    let mark = folder.path().join("started");
    for (args, said) in [
        (vec!["--config", config], "line 3, column 1"),
        (vec!["--config", "/nowhere/x.toml"], "/nowhere/x.toml"),
        (vec!["--fast", "125%"], "125%"),
        (vec!["--fast", "25"], "a share of the peak is `25%`"),
        (vec!["--prioritise", "luck"], "luck"),
        (vec!["--trigger", "time=0"], "trigger.time.ticks"),
        (vec!["--tick", "1ns"], "1ns"),
        (vec!["--machine", "no-such-machine"], "no-such-machine"),
        (vec!["--no-such-option"], "--no-such-option"),
    ] {
        let mut command = tiercel();
        command.arg("run").args(&args).args(["--", "touch"]).arg(&mark);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{args:?}");
        assert!(stderr(&output).contains(said), "{args:?}: {}", stderr(&output));
        assert!(!mark.exists(), "{args:?}: the program was started");
    }
}

#[test]
fn corrections_of_the_machine_are_taken_from_the_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("tiercel.toml");
    let host = |node: &str| {
        let text = format!("[machine]\nname = \"spr-cxl\"\n[[machine.node]]\n{node}\n");
        std::fs::write(&config, text).unwrap();
        let mut command = tiercel();
        command.args(["run", "--json", "--config"]).arg(&config).args(["--", "true"]);
        command.output().unwrap()
    };
    let output = host("id = 0\nname = \"nearby\"");
    let value: serde_json::Value = serde_json::from_str(&stderr(&output)).unwrap();
    assert_eq!(value["summary"]["nodes"]["0"], "nearby");
    let output = host("id = 77\nkind = \"cxl\"");
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("node 77: there is no such node"), "{}", stderr(&output));
}

#[test]
fn streams_are_the_programs_own() {
    let mut command = tiercel();
    command.args(["run", "-v", "--", "cat"]).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"hello\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(stdout(&output), "hello\n", "nothing of ours on standard output");
    assert!(stderr(&output).contains("no memory was moved"), "{}", stderr(&output));
}

#[test]
fn a_signal_to_us_reaches_the_program() {
    for (signal, name) in [(Signal::TERM, "TERM"), (Signal::INT, "INT"), (Signal::USR1, "USR1")] {
        let script = format!("trap 'exit 42' {name}; echo ready; while read x; do :; done");
        let mut command = tiercel();
        command.args(["run", "--quiet", "--", "sh", "-c", &script]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::start(&mut command);
        assert_eq!(process.line(), "ready\n");
        process.signal(signal);
        let held = process.child.stdin.take();
        assert_eq!(process.end().code(), Some(42), "{name}");
        drop(held);
    }
}

#[test]
fn what_was_ignored_stays_ignored() {
    runtime();
    let script = "trap '' HUP; exec \"$0\" run --quiet -- sh -c 'kill -HUP $$ $PPID; exit 3'";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_tiercel")]);
    assert_eq!(command.status().unwrap().code(), Some(3));
}

#[test]
fn the_table_names_function_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), "tables", TABLES, &[]);
    let output = run(&["-v", "--fast", "25%", "--", program.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(stdout(&output), "1\n");
    let text = stderr(&output);
    let row = text.lines().find(|line| line.contains("make_table")).expect(&text);
    assert!(row.contains("tables.c:5") && row.contains("8MiB"), "{row}");
    assert!(text.contains("no memory was moved"), "{text}");
}

/// Each compressed section claims to have 32 TiB. A parser that believes it is aborted.
#[test]
fn a_hostile_file_costs_its_names_only() {
    const SHF_COMPRESSED: u64 = 0x800;
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), "tables", TABLES, &["-gz=zlib"]);
    let mut elf = std::fs::read(&program).unwrap();
    let word = |elf: &[u8], at: usize| u64::from_le_bytes(elf[at..at + 8].try_into().unwrap());
    let (headers, count) = (word(&elf, 40) as usize, usize::from(elf[60]));
    let mut patched = 0;
    for header in (0..count).map(|n| headers + 64 * n) {
        if word(&elf, header + 8) & SHF_COMPRESSED != 0 {
            let at = word(&elf, header + 24) as usize;
            elf[at + 8..at + 16].copy_from_slice(&(1u64 << 45).to_le_bytes());
            patched += 1;
        }
    }
    assert!(patched > 0, "the compiler made no compressed section");
    std::fs::write(&program, elf).unwrap();
    let output = run(&["-v", "--", program.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(stderr(&output).contains("tables+0x"), "{}", stderr(&output));
}

#[test]
fn json_goes_where_it_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), "tables", TABLES, &[]);
    let file = folder.path().join("summary.json");
    let mut command = tiercel();
    command.args(["run", "--json", "--output"]).arg(&file).arg("--").arg(&program);
    let output = command.output().unwrap();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(3), ""));
    let text = std::fs::read_to_string(&file).unwrap();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["exit_status"], 3);
    assert_eq!(value["summary"]["clients"]["attached"], 1);
    assert_eq!(value["summary"]["modelled"], true);
    assert!(value["summary"]["objects"]["peak_bytes"].as_u64().unwrap() >= 8 << 20);
    let sites = value["sites"].as_array().unwrap();
    assert!(sites.iter().any(|site| site["name"].as_str().unwrap().contains("make_table")));
}

/// One byte of Latin-1, and a path that the runtime cuts in the middle of a character.
#[test]
fn a_path_that_is_not_utf8_costs_neither_the_status_nor_the_summary() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), "tables", TABLES, &[]);
    let latin = folder.path().join(OsStr::from_bytes(b"fran\xe7ois"));
    // The last 224 bytes are kept (TCL_PATH_MAX), of which 203 are "/", 100 characters and "/t":
    // the first that is kept is the second of a character.
    let long = folder.path().join("é".repeat(100)).join("é".repeat(100));
    for folder in [latin, long] {
        std::fs::create_dir_all(&folder).unwrap();
        let moved = folder.join("t");
        std::fs::copy(&program, &moved).unwrap();
        let output = tiercel().args(["run", "--json", "--"]).arg(&moved).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
        let value: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
        let paths =
            value["sites"].as_array().unwrap().iter().map(|site| &site["frames"][0]["path"]);
        let is_cut =
            |path: &serde_json::Value| path.as_str().is_some_and(|p| p.contains('\u{fffd}'));
        assert!(paths.clone().any(is_cut), "{:?}", paths.collect::<Vec<_>>());
        let output = tiercel().args(["run", "-v", "--"]).arg(&moved).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    }
}

#[test]
fn programs_that_take_no_runtime_run_and_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), "fixed", TABLES, &["-static"]);
    let output = run(&["-v", "--", program.to_str().unwrap()]);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(3), "1\n"));
    let text = stderr(&output);
    let first = text.lines().find(|line| !line.is_empty() && *line != "tiercel:").unwrap();
    assert!(first.contains("statically linked"), "{text}");
    assert!(text.contains("no process attached"), "{text}");
}

#[test]
fn the_users_preload_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let source = "__attribute__((constructor)) static void here(void) {}\n";
    let users = compile(folder.path(), "users.so", source, &["-shared", "-fPIC"]);
    let mut command = tiercel();
    command.args(["run", "--quiet", "--", "sh", "-c", "echo $LD_PRELOAD"]);
    let output = command.env("LD_PRELOAD", &users).output().unwrap();
    let value = stdout(&output);
    assert!(value.trim_end().ends_with(&format!("libtiercel.so:{}", users.display())), "{value}");
}

#[test]
fn a_secure_heap_ends_a_program_that_frees_twice() {
    let folder = tempfile::tempdir().unwrap();
    let source = "#include <stdlib.h>\n\
        int main(void) { void *volatile p = malloc(24); free(p); free(p); return 0; }\n";
    let program = compile(folder.path(), "twice", source, &["-w"]);
    let config = folder.path().join("secure.toml");
    std::fs::write(&config, "secure_heap = true\n").unwrap();
    let config = ["--config", config.to_str().unwrap()];
    let flag = ["--secure-heap"];
    for (words, signal) in [(&config[..], Some(6)), (&flag[..], Some(6)), (&[][..], None)] {
        let mut command = tiercel();
        command.args(["run", "--quiet"]).args(words).arg("--").arg(&program);
        let status = command.stderr(Stdio::null()).status().unwrap();
        assert_eq!(status.signal(), signal, "{words:?}: {status}");
        let mut command = tiercel();
        let output = command.args(["daemon", "--env", "--json"]).args(words).output().unwrap();
        let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let expected = if signal.is_some() { "1".into() } else { serde_json::Value::Null };
        assert_eq!(value["environment"]["TIERCEL_SECURE_HEAP"], expected, "{words:?}: {value}");
    }
}

#[test]
fn forked_and_executed_processes_are_hosted_too() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("summary.json");
    let script = "/bin/ls / >/dev/null & /bin/ls / >/dev/null; wait; exec /bin/ls / >/dev/null";
    let mut command = tiercel();
    command.args(["run", "--json", "--output"]).arg(&file).args(["--", "sh", "-c", script]);
    assert!(command.status().unwrap().success());
    let text = std::fs::read_to_string(&file).unwrap();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    // sh, two ls, and the ls that sh becomes, whether or not they grew enough to attach.
    let clients = &value["summary"]["clients"];
    let hosted = ["attached", "small"].iter().filter_map(|which| clients[which].as_u64());
    assert!(hosted.sum::<u64>() >= 4, "{clients}");
    assert_eq!(clients["now"], 0, "{clients}");
}

#[test]
fn two_runs_live_side_by_side() {
    let start = || {
        let mut command = tiercel();
        command.args(["run", "--quiet", "--", "sh", "-c", "echo ready; read x; exit 5"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Process::start(&mut command)
    };
    let (mut one, mut other) = (start(), start());
    assert_eq!((one.line(), other.line()), ("ready\n".into(), "ready\n".into()));
    assert_eq!((one.end().code(), other.end().code()), (Some(5), Some(5)));
}

#[test]
fn a_run_leaves_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().join("where");
    let script = format!("echo $TIERCEL_SOCKET > {}", mark.display());
    assert!(run(&["--quiet", "--", "sh", "-c", &script]).status.success());
    let socket = std::fs::read_to_string(&mark).unwrap();
    assert!(socket.contains("run-"), "{socket}");
    assert!(!Path::new(socket.trim()).exists());
}

#[test]
fn by_pages_refuses_what_it_cannot_do_before_the_program_starts() {
    let folder = tempfile::tempdir().unwrap();
    let started = folder.path().join("started");
    let cases: [(&[&str], &str); 3] = [
        (&["--by", "pages", "--machine", "spr-cxl"], "a modelled machine (spr-cxl) is no use"),
        (&["--by", "pages", "--gate", "none"], "--gate is of objects"),
        (&["--mode", "cpm"], "use it with --by pages"),
    ];
    for (options, why) in cases {
        let mut command = tiercel();
        let output = command.arg("run").args(options).args(["--", "touch"]).arg(&started).output();
        let output = output.unwrap();
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(125), "{options:?}: {text}");
        assert!(text.contains("the program was not started"), "{text}");
        assert!(text.contains(why), "{options:?}: {text}");
    }
    assert!(!started.exists());
}
