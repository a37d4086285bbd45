//! Builds what a user runs. In: nothing. Out: `target/runtime/libtiercel.so`,
//! `target/release/tiercel`, `target/workloads/*`. Knows nothing of what the parts do: each has its
//! own Makefile or manifest.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::{exec, metadata};

/// `make -C runtime GOALS...`, with the path of mimalloc's sources.
pub fn runtime(goals: &[String]) -> Result<()> {
    exec::run(&mut runtime_make(goals)?)
}

/// The command that [`runtime`] runs, for callers that redirect its output.
pub fn runtime_make(goals: &[String]) -> Result<Command> {
    let mut make = make("runtime");
    make.arg(format!("MIMALLOC={}", metadata::mimalloc_sources()?.display()));
    make.arg(format!("OUT={}", exec::target().join("runtime").display()));
    make.args(goals);
    Ok(make)
}

/// Builds the workloads and returns the folder they are in.
pub fn workloads() -> Result<PathBuf> {
    exec::run(&mut workloads_make(&[]))?;
    Ok(exec::target().join("workloads"))
}

/// The command [`workloads`] runs, with other goals.
pub fn workloads_make(goals: &[&str]) -> Command {
    let mut make = make("workloads");
    make.arg(format!("OUT={}", exec::target().join("workloads").display())).args(goals);
    make
}

/// Those of workloads/Makefile, without what clang does not know.
const CLANG_FLAGS: &str =
    "FLAGS=-std=gnu17 -O2 -g -fno-omit-frame-pointer -fno-optimize-sibling-calls -Wall -pthread";

/// Builds workloads of these names by another compiler: `variables` are those of the Makefile.
/// Returns the folder of `target` they are in.
pub fn clang_workloads(folder: &str, variables: &[&str], names: &[&str]) -> Result<PathBuf> {
    let out = exec::target().join(folder);
    let mut workloads = make("workloads");
    workloads.arg(format!("OUT={}", out.display())).args(variables).arg(CLANG_FLAGS);
    exec::run(workloads.args(names.iter().map(|name| out.join(name))))?;
    Ok(out)
}

/// Builds a bench's program from its one source file, with these `options` besides the usual ones.
pub fn program(name: &str, options: &[&str]) -> Result<PathBuf> {
    let out = exec::target().join(name);
    std::fs::create_dir_all(exec::target())?;
    let mut gcc = exec::command("gcc");
    gcc.args(["-std=gnu17", "-O2", "-Wall", "-Wextra", "-pthread", "-o"]).arg(&out);
    gcc.arg(format!("workloads/{name}/{name}.c")).args(options);
    exec::run(&mut gcc)?;
    Ok(out)
}

/// Builds the binary in release mode and returns where it is.
pub fn tiercel() -> Result<PathBuf> {
    let mut build = exec::cargo();
    build.args(["build", "--release", "--package", "tiercel"]);
    if can_build_bpf() {
        build.args(["--features", "bpf"]);
    }
    exec::run(&mut build)?;
    Ok(exec::target().join("release/tiercel"))
}

/// Whether the bpf sampler can be built: clang for the BPF program, the headers of libelf and zlib
/// for libbpf. Otherwise the binary has the other samplers.
fn can_build_bpf() -> bool {
    let mut compile = exec::command("clang");
    let libraries = ["-include", "libelf.h", "-include", "zlib.h"];
    compile.args(["-fsyntax-only", "-x", "c", "/dev/null"]).args(libraries);
    exec::output(&mut compile).is_ok()
}

/// Everything `./x demo` and the benches need.
pub fn everything() -> Result<()> {
    runtime(&[])?;
    workloads()?;
    tiercel()?;
    Ok(())
}

/// `make` in a folder, by all CPUs.
pub fn make(folder: &str) -> Command {
    let mut make = exec::command("make");
    let jobs = std::thread::available_parallelism().map_or(1, |n| n.get());
    make.args(["--no-print-directory", "-s", "-C", folder, &format!("-j{jobs}")]);
    make
}
