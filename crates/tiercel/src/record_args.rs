//! The command line of `tiercel record`.
//! In: arguments. Out: [`RecordArgs`]. Knows nothing of how a recording is made.

use clap::{Args as ClapArgs, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use tiercel_sampler::{Caches, Rate};

/// Samplers by name.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum SamplerArg {
    /// The best that works on this machine
    Auto,
    /// Modelled cache misses of a timed guest of the lab
    Emulator,
    /// CPU performance counters with data addresses
    Perf,
    /// The same through BPF, machine-wide
    Bpf,
    /// Page-table scans; need neither counters nor root
    Probe,
    /// The kernel's NUMA hint faults: no counters; which CPU first accessed an OS page in a pass
    Hint,
    /// What programs compiled by `tiercel cc` report themselves
    Compiled,
    /// Nothing: objects are tracked, accesses are not
    None,
}

/// What to record, and how.
#[derive(ClapArgs, Debug)]
pub struct RecordArgs {
    /// Write the profile to this folder, replacing an existing profile; default: PROGRAM.profile
    #[arg(long, short, value_name = "FOLDER")]
    pub output: Option<PathBuf>,
    /// Largest size of the profile before compression; similar objects are merged to stay below it
    #[arg(long, value_name = "SIZE", default_value = "128MiB", value_parser = size)]
    pub limit: u64,
    /// What observes accesses
    #[arg(long, value_name = "KIND")]
    pub sampler: Option<SamplerArg>,
    /// Share of the cache lines that compiled code reports on: 1/32 by default, 1 for all
    #[arg(long, value_name = "1/N")]
    pub rate: Option<Rate>,
    /// Caches that compiled code models, first level to last: 32K/8,1M/16,4M/16, or oam; default:
    /// this machine's
    #[arg(long, value_name = "BYTES/WAYS,...")]
    pub caches: Option<Caches>,
    /// Treat this machine as the described one: a description's file, or a built-in name
    #[arg(long, value_name = "FILE|NAME")]
    pub machine: Option<String>,
    /// Configuration file; `tiercel config` prints one with the defaults
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print what was recorded as JSON
    #[arg(long)]
    pub json: bool,
    /// Print nothing
    #[arg(long, short)]
    pub quiet: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

impl From<SamplerArg> for tiercel_sampler::Kind {
    fn from(arg: SamplerArg) -> tiercel_sampler::Kind {
        match arg {
            SamplerArg::Auto => tiercel_sampler::Kind::Auto,
            SamplerArg::Emulator => tiercel_sampler::Kind::Emulator,
            SamplerArg::Perf => tiercel_sampler::Kind::Perf,
            SamplerArg::Bpf => tiercel_sampler::Kind::Bpf,
            SamplerArg::Probe => tiercel_sampler::Kind::Probe,
            SamplerArg::Hint => tiercel_sampler::Kind::Hint,
            SamplerArg::Compiled => tiercel_sampler::Kind::Compiled,
            SamplerArg::None => tiercel_sampler::Kind::None,
        }
    }
}

/// A number of bytes: `128MiB`.
pub(crate) fn size(text: &str) -> Result<u64, tiercel_machine::UnitError> {
    tiercel_machine::parse_bytes(text)
}

/// `0x7f3a12c45000`, as the kernel and debuggers print it, or without `0x`.
pub fn address(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u64::from_str_radix(digits, 16).map_err(|error| format!("{error}; want it as 0x7f3a12c45000"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_hexadecimal() {
        assert_eq!(address("0x7f3a12c45000"), Ok(0x7f3a_12c4_5000));
        assert_eq!(address("7f3a12c45000"), Ok(0x7f3a_12c4_5000));
        for wrong in ["", "0x", "main", "-1", "0x1ffffffffffffffff"] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }
}
