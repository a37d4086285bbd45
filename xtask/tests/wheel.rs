//! `./x package wheel`: the wheel is installed into a virtual environment, used, and removed.

use std::path::Path;
use std::process::Command;

mod ran;
use ran::{checked, files, installed, text};

/// Says where the module is from and whether it is hosted; its phases must be known to the runtime.
const PROGRAM: &str = "
import tiercel
with tiercel.in_phase('solve'):
    held = bytearray(1 << 22)
print(tiercel.__file__, tiercel.is_hosted())
";

/// The command that xtask builds, as users run it from the tree.
fn tiercel() -> Command {
    let mut build = Command::new(env!("CARGO"));
    checked(build.args(["build", "--quiet", "-p", "tiercel"]));
    checked(Command::new(env!("CARGO_BIN_EXE_xtask")).arg("runtime"));
    let xtask = Path::new(env!("CARGO_BIN_EXE_xtask"));
    installed(xtask.with_file_name("tiercel"))
}

#[test]
fn the_wheel_is_installed_used_and_removed() {
    let mut package = Command::new(env!("CARGO_BIN_EXE_xtask"));
    let wheel = text(&checked(package.args(["package", "wheel"]))).trim().to_owned();
    let folder = tempfile::tempdir().unwrap();
    let environment = &folder.path().join("environment");
    checked(Command::new("/usr/bin/python3").args(["-m", "venv"]).arg(environment));
    let before = files(environment);
    let pip = |words: &[&str]| checked(Command::new(environment.join("bin/pip")).args(words));
    pip(&["install", "--no-index", &wheel]);
    let python = environment.join("bin/python");
    // Elsewhere than in the tree, whose own module must not be found.
    let program = |command: &mut Command| {
        text(&checked(command.args(["-c", PROGRAM]).current_dir(environment)))
    };
    let plain = program(&mut Command::new(&python));
    let from = plain.split(' ').next().unwrap_or_default();
    assert!(Path::new(from).starts_with(environment) && plain.ends_with(" False\n"), "{plain}");
    let profile = folder.path().join("python.profile");
    let mut record = tiercel();
    record.args(["record", "--output"]).arg(&profile).arg("--").arg(&python);
    assert!(program(&mut record).ends_with(" True\n"));
    let shown = text(&checked(tiercel().args(["profile", "show"]).arg(&profile)));
    assert!(shown.lines().any(|line| line.starts_with("solve ")), "{shown}");
    pip(&["uninstall", "--yes", "tiercel"]);
    assert_eq!(files(environment), before);
}
