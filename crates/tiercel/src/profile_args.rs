//! The command line of `tiercel profile`.
//! In: arguments. Out: [`ProfileArgs`]. Knows nothing of what profiles are.

use crate::record_args::size;
use clap::{Args as ClapArgs, Subcommand};
use std::path::PathBuf;

#[derive(ClapArgs, Debug)]
pub struct ProfileArgs {
    /// What to do
    #[command(subcommand)]
    pub verb: ProfileVerb,
}

/// The verbs of `tiercel profile`.
#[derive(Subcommand, Debug)]
pub enum ProfileVerb {
    /// Show sites and phases of a profile
    Show {
        /// The profile
        profile: PathBuf,
        /// Rows of the table of sites
        #[arg(long, value_name = "ROWS", default_value_t = 20)]
        rows: usize,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Compare two profiles by site and phase
    Diff {
        /// The first
        before: PathBuf,
        /// The second
        after: PathBuf,
        /// Rows of the table of sites
        #[arg(long, value_name = "ROWS", default_value_t = 20)]
        rows: usize,
        /// Say instead how true the second is to the first: the share of the accesses that it has
        /// at other sites, its worst error of a large site, rank correlation, missed writes
        #[arg(long)]
        fidelity: bool,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Make one profile of several of the same program
    Merge {
        /// Write it to this folder, replacing an existing profile
        #[arg(long, short, value_name = "FOLDER")]
        output: PathBuf,
        /// The profiles are concurrent parts of one run (MPI ranks); default: successive runs
        #[arg(long)]
        ranks: bool,
        /// Largest size of the profile before compression
        #[arg(long, value_name = "SIZE", default_value = "128MiB", value_parser = size)]
        limit: u64,
        /// Print as JSON
        #[arg(long)]
        json: bool,
        /// The profiles
        #[arg(required = true, value_name = "PROFILE")]
        profiles: Vec<PathBuf>,
    },
    /// Make a profile of what LLVM's memory profiler recorded (clang -fmemory-profile)
    #[command(after_help = "Example:
  tiercel profile import-memprof memprof.profraw.4711 --binary app -o app.profile")]
    ImportMemprof(crate::memprof::ImportArgs),
    /// Print a table of a profile as CSV, or write all of them to a folder
    Export {
        /// The profile
        profile: PathBuf,
        /// Which table
        #[arg(long, value_name = "TABLE", required_unless_present = "output")]
        #[arg(value_parser = tiercel_profile::TABLES)]
        table: Option<String>,
        /// Write all tables to files in this folder
        #[arg(long, short, value_name = "FOLDER", conflicts_with = "table")]
        output: Option<PathBuf>,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}
