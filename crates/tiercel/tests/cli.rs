//! The verbs that need no program: what they print is what others read.

mod common;

use common::{stderr, stdout, tiercel};

fn ok(args: &[&str]) -> String {
    let output = tiercel().args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    stdout(&output)
}

#[test]
fn the_default_configuration_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tiercel.toml");
    std::fs::write(&file, ok(&["config"])).unwrap();
    assert!(ok(&["config", "--check", file.to_str().unwrap()]).contains("valid"));
    let json: serde_json::Value = serde_json::from_str(&ok(&["config", "--json"])).unwrap();
    assert_eq!(json["policy"]["tick_ms"], 2000);
}

#[test]
fn a_misspelt_key_is_named_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tiercel.toml");
    std::fs::write(&file, "# mine\nfsat = \"25%\"\n").unwrap();
    let output = tiercel().args(["config", "--check"]).arg(&file).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(text.contains("line 2, column 1") && text.contains("fsat"), "{text}");
}

#[test]
fn completions_and_pages_for_every_verb() {
    for shell in ["bash", "zsh", "fish"] {
        assert!(ok(&["completions", shell]).contains("doctor"), "{shell}");
    }
    assert!(ok(&["man"]).contains(".TH tiercel"));
    let folder = tempfile::tempdir().unwrap();
    assert!(ok(&["man", "--all", folder.path().to_str().unwrap()]).contains("manual pages"));
    let page = |verb: &str| std::fs::read_to_string(folder.path().join(format!("tiercel{verb}.1")));
    for verb in ["run", "daemon", "c++", "lab-compare", "profile-diff"] {
        let name = format!("tiercel\\-{}", verb.replace('-', "\\-"));
        assert!(page(&format!("-{verb}")).unwrap().contains(&name), "{verb}");
    }
    assert_eq!(ok(&["man", "lab", "compare"]), page("-lab-compare").unwrap());
    assert!(page("-broker").is_err(), "a child of the daemon is no verb for people");
    for words in [&["man", "nothing"][..], &["man", "lab", "nothing"]] {
        assert!(!tiercel().args(words).output().unwrap().status.success());
    }
}

#[test]
fn a_compiler_that_is_missing_is_named_with_its_package() {
    let binary = env!("CARGO_BIN_EXE_tiercel");
    let mut command = std::process::Command::new(binary);
    let output = command.args(["c++", "-c", "a.cc"]).env("PATH", "/nowhere").output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    let text = stderr(&output);
    assert!(text.contains("clang++-19 is not in PATH") && text.contains("apt install"), "{text}");
    assert!(ok(&["cc", "--help"]).contains("tiercel cc -O2 -o app app.c"));
}

#[test]
fn this_machine_and_others() {
    let here: serde_json::Value = serde_json::from_str(&ok(&["topo", "--json"])).unwrap();
    assert!(!here["nodes"].as_array().unwrap().is_empty());
    assert!(ok(&["topo"]).contains("tier 0"));
    let there = ok(&["topo", "--machine", "spr-cxl"]);
    assert!(there.contains("tier 1"), "{there}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("machine.toml");
    std::fs::write(&file, ok(&["topo", "--machine", "spr-cxl", "--toml"])).unwrap();
    assert_eq!(ok(&["topo", "--machine", file.to_str().unwrap()]), there);
}

#[test]
fn the_doctor_finds_the_runtime() {
    let output = tiercel().args(["doctor", "--json"]).output().unwrap();
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.success(), said["tiering"].as_bool().unwrap(), "{said}");
    let tiers = said["findings"].as_array().unwrap().iter().find(|f| f["name"] == "tiers").unwrap();
    let has_tiers = tiers["standing"] == "ok";
    assert!(has_tiers || said["tiering"] == false, "one tier, and tiering works: {said}");
    let findings = said["findings"].as_array().unwrap();
    let runtime = findings.iter().find(|f| f["name"] == "runtime").unwrap();
    assert_eq!(runtime["standing"], "ok", "{runtime}");
    for name in ["sockets", "tiers"] {
        assert!(findings.iter().any(|f| f["name"] == name), "{name}");
    }
}

#[test]
fn without_a_daemon_there_is_a_hint() {
    for verb in ["top", "status", "why"] {
        let output = tiercel().args([verb, "--socket", "/nowhere/x.control"]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{verb}");
        assert!(stderr(&output).contains("/nowhere/x.control"), "{}", stderr(&output));
    }
}

#[test]
fn a_configuration_without_end_is_refused() {
    for args in [["config", "--check", "/dev/zero"], ["topo", "--machine", "/dev/zero"]] {
        let output = tiercel().args(args).output().unwrap();
        assert!(!output.status.success());
        assert!(
            stderr(&output).contains("/dev/zero: it has more than 4 MiB"),
            "{}",
            stderr(&output)
        );
    }
}

#[test]
fn variables_for_a_daemon_that_does_not_run_come_with_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("t");
    let variables = || {
        let args = ["daemon", "--env", "--dir", directory.to_str().unwrap()];
        tiercel().args(args).output().unwrap()
    };
    let output = variables();
    assert!(output.status.success() && stdout(&output).contains("TIERCEL_SOCKET"));
    assert!(stderr(&output).contains("no daemon answers at"), "{}", stderr(&output));
    std::fs::create_dir(&directory).unwrap();
    let _daemon = std::os::unix::net::UnixListener::bind(directory.join("daemon.control")).unwrap();
    assert_eq!(stderr(&variables()), "");
}

/// The same failure by verbs that run programs and by those that do not.
#[test]
fn exit_statuses_are_those_of_the_table() {
    let status = |args: &[&str]| tiercel().args(args).output().unwrap().status.code().unwrap();
    for verb in ["whatif", "plan", "report"] {
        assert_eq!(status(&[verb, "/no/such/profile"]), 1, "{verb}");
        assert_eq!(status(&[verb, "--no-such-option"]), 2, "{verb}");
    }
    assert_eq!((status(&["lab", "report", "/no/such"]), status(&["frob"]), status(&[])), (1, 2, 2));
    for run in [&["run"][..], &["record"], &["lab", "run"]] {
        assert_eq!(
            status(&[run, &["--machine", "no-such", "--", "true"]].concat()),
            125,
            "{run:?}"
        );
        assert_eq!(status(&[run, &["--no-such-option"]].concat()), 125, "{run:?}");
    }
    assert!(ok(&["--help"]).contains("126  the program cannot be executed"));
}

#[test]
fn errors_are_stated_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bad.toml");
    std::fs::write(&file, "fast = 25 %\n").unwrap();
    let file = file.to_str().unwrap();
    for args in [
        &["config", "--check", file][..],
        &["topo", "--machine", file],
        &["run", "--config", file, "--", "true"],
    ] {
        let said = stderr(&tiercel().args(args).output().unwrap());
        assert_eq!(said.matches("TOML parse error").count(), 1, "{said}");
    }
    let output = tiercel().args(["record", "-o", "/no/such/p", "--", "true"]).output().unwrap();
    let expect = "cannot write in /no/such: No such file or directory (os error 2); the program";
    assert!(stderr(&output).contains(expect), "{}", stderr(&output));
}

#[test]
fn variables_are_quoted_for_the_shell() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("it's $(touch here)");
    let output = ok(&["daemon", "--env", "--dir", directory.to_str().unwrap()]);
    let script = format!("{output}\nunset LD_PRELOAD\nprintf %s \"$TIERCEL_SOCKET\"");
    let shell = std::process::Command::new("sh").arg("-c").arg(script).output().unwrap();
    assert_eq!(stdout(&shell), directory.join("daemon.sock").to_str().unwrap());
}

/// Another user's socket under the name of ours, as any user can make one in /tmp.
#[test]
fn a_daemon_of_another_user_is_not_believed() {
    if !rustix::process::geteuid().is_root() {
        return; // only root can start a process of another user
    }
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("daemon.control");
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777))
        .unwrap();
    let script = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); \
                  s.listen(); print(flush=True); sys.stdin.read()";
    let mut command = std::process::Command::new("python3");
    command.args(["-c", script]).arg(&socket);
    std::os::unix::process::CommandExt::uid(&mut command, 65534);
    command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut other = common::Process::start(&mut command);
    assert_eq!(other.line(), "\n");
    let output = tiercel().args(["status", "--socket"]).arg(&socket).output().unwrap();
    assert!(stderr(&output).contains("is served by user 65534"), "{}", stderr(&output));
}
