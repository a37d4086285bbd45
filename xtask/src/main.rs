//! All chores: `cargo xtask <verb>`, or `./x <verb>`, which installs what is missing first.
//! In: a verb and its arguments. Out: built artefacts, test and bench results, generated files.
//! Knows nothing of how Tiercel works inside: it runs programs and reads what they print.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap)
)]

mod attack;
mod bench;
mod build;
mod compiler;
mod conformance;
mod demo;
mod docs;
mod exec;
mod fuzz;
mod headline;
mod install;
mod lab;
mod licences;
mod measure;
mod metadata;
mod oam;
mod package;
mod programs;
mod projects;
mod real_programs;
mod results;
mod seeds;
mod soak;
mod sources;
mod test;
mod tidy;
mod validate;
mod watch;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "xtask", about = "All chores of this repository")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Build libtiercel.so into target/runtime
    Runtime {
        /// Goals for the runtime's Makefile, `all` when none
        goals: Vec<String>,
    },
    /// Build the plug-in and the library of `tiercel cc` into target/compiler
    Compiler(compiler::Options),
    /// Build everything a user runs: the binary (release), the runtime, the workloads
    Build,
    /// Build Tiercel and install it
    Install(install::Options),
    /// Remove what `install` wrote
    Uninstall(install::Options),
    /// Make a package of what `install` installs
    Package(package::Options),
    /// Everything CI checks; goes on after a failing step and lists the failures
    Test(test::Options),
    /// Check what no compiler checks: layers, absences, sizes, words, documents against the tree
    Tidy(tidy::Options),
    /// Check every dependency's licence against deny.toml
    Licences,
    /// Run one fuzzer, or all of them
    Fuzz(fuzz::Options),
    /// Ratios against peers, measured in one run
    Bench(bench::Options),
    /// Write the documents that are generated
    Docs(docs::Options),
    /// Show what Tiercel finds out about a real program
    Demo,
    /// OAM's evaluation in `tiercel replay`; writes lab/results/oam-replay
    Oam(oam::Options),
    /// Run real programs plainly and hosted, and compare; writes docs/real-programs.md
    RealPrograms(real_programs::Options),
    /// Run test suites and odd programs plainly and hosted, and print each difference
    Conformance(conformance::Options),
    /// Run real programs in heaps that move all the time, again and again, and compare
    Soak(soak::Options),
    /// A hostile user, kills at random instants, thousands of processes: tests/tenants.rs for long
    Attack(attack::Options),
    /// Run one command and record its cost
    #[command(hide = true)]
    Measure(measure::Options),
    /// Tests in a guest with several memory nodes
    Lab(lab::Options),
}

fn main() -> ExitCode {
    match run(Cli::parse().verb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(verb: Verb) -> Result<()> {
    match verb {
        Verb::Runtime { goals } => build::runtime(&goals),
        Verb::Compiler(options) => compiler::main(&options),
        Verb::Build => build::everything(),
        Verb::Install(options) => install::install(&options),
        Verb::Uninstall(options) => install::uninstall(&options),
        Verb::Package(options) => package::main(&options),
        Verb::Test(options) => test::main(&options),
        Verb::Tidy(options) => tidy::main(&options),
        Verb::Licences => licences::main(),
        Verb::Fuzz(options) => fuzz::main(&options),
        Verb::Bench(options) => bench::main(&options),
        Verb::Docs(options) => docs::main(&options),
        Verb::Demo => demo::main(),
        Verb::Oam(options) => oam::main(&options),
        Verb::RealPrograms(options) => real_programs::main(&options),
        Verb::Conformance(options) => conformance::main(&options),
        Verb::Soak(options) => soak::main(&options),
        Verb::Attack(options) => attack::main(&options),
        Verb::Measure(options) => measure::main(&options),
        Verb::Lab(options) => lab::main(&options),
    }
}
