//! `cargo xtask attack`: the tests of users beside each other, for as long as wanted. In: how long
//! and how often. Out: figures, and an error when a program was harmed. Knows nothing of the
//! attacks: crates/tiercel/tests/tenants.rs and lab/tests/hostile.c do.

use anyhow::Result;
use clap::Args;

use crate::exec;

#[derive(Args)]
pub struct Options {
    /// How long a hostile user attacks
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// How many daemons, runs and programs are killed at random instants
    #[arg(long, default_value_t = 200)]
    kills: u64,
    /// Thousands of processes that one daemon hosts
    #[arg(long, default_value_t = 10)]
    thousands: u64,
    /// What decides when something is killed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Judge delays, beyond those of a server that does nothing
    #[arg(long)]
    judge: bool,
    /// Only the tests whose name contains this
    #[arg(long)]
    only: Option<String>,
}

pub fn main(options: &Options) -> Result<()> {
    let mut test = exec::cargo();
    // As users run it: a debug build is ten to twenty times as slow.
    test.args(["test", "--release", "-p", "tiercel", "--test", "tenants", "--"]);
    test.args(&options.only);
    test.args(["--nocapture", "--test-threads=1"]);
    for (name, value) in [
        ("SECONDS", options.seconds),
        ("KILLS", options.kills),
        ("THOUSANDS", options.thousands),
        ("SEED", options.seed),
        ("JUDGED", u64::from(options.judge)),
    ] {
        test.env(format!("TIERCEL_ATTACK_{name}"), value.to_string());
    }
    exec::run(&mut test)
}
