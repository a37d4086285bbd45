//! What every `cargo test` also checks, so that it is the whole quick start: format, lints, tidy.

use std::process::Command;

fn check(program: &str, arguments: &[&str]) {
    let top = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let out = Command::new(program).args(arguments).current_dir(top).output().expect(program);
    let printed = [out.stdout, out.stderr].concat();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&printed));
}

#[test]
fn formatted() {
    check(env!("CARGO"), &["fmt", "--all", "--check"]);
}

#[test]
fn no_warnings() {
    let arguments = ["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"];
    check(env!("CARGO"), &arguments);
}

#[test]
fn tidy() {
    check(env!("CARGO_BIN_EXE_xtask"), &["tidy"]);
}
