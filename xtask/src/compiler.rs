//! `cargo xtask compiler`: the plug-in and the library of `tiercel cc`. In: whether to test them,
//! real projects to build with them. Out: `target/compiler/libtiercel_pass.so`,
//! `libtiercel_probe.a`. Knows nothing of what they do: compiler/Makefile builds and tests them.

use anyhow::{Result, bail};
use clap::Args;

use crate::{build, exec, projects};

/// The compiler whose plug-in interface the sources are written for: LLVM's changes with each major
/// version.
const TOOLS: [&str; 3] = ["llvm-config-19", "clang-19", "ld.lld-19"];

#[derive(Args)]
pub struct Options {
    /// Also run their tests
    #[arg(long)]
    test: bool,
    /// Also build this project with `tiercel cc` and run its own tests: zstd, sqlite3, redis,
    /// liblinear, or all
    #[arg(long, value_name = "PROJECT")]
    real: Vec<String>,
}

pub fn main(options: &Options) -> Result<()> {
    build()?;
    if options.test || !options.real.is_empty() {
        exec::run(exec::cargo().args(["build", "--package", "tiercel"]))?;
    }
    if options.test {
        make("test")?;
        make("drive")?;
    }
    if !options.real.is_empty() {
        build::runtime(&[])?;
        projects::main(&options.real)?;
    }
    Ok(())
}

/// Builds both parts.
pub fn build() -> Result<()> {
    for tool in TOOLS {
        if exec::output(exec::command(tool).arg("--version")).is_err() {
            bail!("{tool} is missing; install clang-19, llvm-19-dev and lld-19 (./x setup does)");
        }
    }
    make("all")
}

fn make(goal: &str) -> Result<()> {
    let mut make = build::make("compiler");
    make.arg(format!("OUT={}", exec::target().join("compiler").display()));
    make.arg(format!("TIERCEL={}", exec::target().join("debug/tiercel").display())).arg(goal);
    exec::run(&mut make)
}
