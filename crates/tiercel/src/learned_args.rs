//! The command line of `tiercel learned`.
//! In: arguments. Out: [`LearnedArgs`]. Knows nothing of what the verbs do.

use clap::{Args as ClapArgs, Subcommand};

#[derive(ClapArgs, Debug)]
pub struct LearnedArgs {
    /// What to do
    #[command(subcommand)]
    pub verb: LearnedVerb,
}

/// The verbs of `tiercel learned`.
#[derive(Subcommand, Debug)]
pub enum LearnedVerb {
    /// List the programs of which something is known, the latest first
    List {
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show what is known of a program's sites; of several builds, the one that ran last
    Show {
        /// Its file, its name, or a build as `list` shows it
        program: String,
        /// Rows of the table of sites
        #[arg(long, value_name = "ROWS", default_value_t = 20)]
        rows: usize,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Forget what is known of a program, all of its builds
    Forget {
        /// Its file, its name, or a build as `list` shows it
        #[arg(required_unless_present = "all")]
        program: Option<String>,
        /// Forget all programs
        #[arg(long, conflicts_with = "program")]
        all: bool,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
}
