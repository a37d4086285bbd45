//! The `tiercel` command: parses arguments, draws the terminal. The only crate that prints.
//! In: arguments, a configuration file. Out: text or JSON.
//! Knows nothing of how anything is decided or done.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap)
)]

mod args;
mod attach;
mod brief;
mod by_pages;
mod cc;
mod cc_words;
mod engine;
mod exit;
mod figures;
mod heat;
mod host;
mod lab;
mod lab_bench;
mod lab_guest;
mod lab_truth;
mod learn;
mod learned;
mod learned_args;
mod library;
mod link;
mod memprof;
mod plan;
mod plan_args;
mod privilege;
mod profile;
mod profile_args;
mod program;
mod record;
mod record_args;
mod replay;
mod replay_args;
mod replay_energy;
mod report;
mod run;
mod show;
mod summary_file;
mod table;
mod terminal;
mod verbs;
mod whatif;
mod wss;

use crate::terminal::complain;
use args::{Args, Verb};
use clap::Parser;
use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    if let Some((language, words)) = cc::asked(&words) {
        return cc::compile(language, words);
    }
    let verb = match Args::try_parse() {
        Ok(args) => args.verb,
        Err(error) => {
            // Help and version are no errors.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { exit::usage(&words) } else { 0 });
        }
    };
    let done = match &verb {
        Verb::Run(args) => return run::run(args),
        Verb::Cc(args) => return cc::compile(cc::Language::C, &args.words),
        Verb::Fc(args) => return cc::compile(cc::Language::Fortran, &args.words),
        Verb::Cxx(args) => return cc::compile(cc::Language::Cxx, &args.words),
        Verb::Record(args) => return record::record(args),
        Verb::Profile(args) => profile::profile(args),
        Verb::Learned(args) => learned::learned(args),
        Verb::Plan(args) => plan::plan(args),
        Verb::Whatif(args) => whatif::whatif(args),
        Verb::Heat(args) => heat::heat(args),
        Verb::Wss(args) => wss::wss(args),
        Verb::Report(args) => report::report(args),
        Verb::Replay(args) => replay::replay(args),
        Verb::Attach(args) => attach::attach(args),
        Verb::Daemon(args) => verbs::daemon(args),
        Verb::Top(args) => verbs::top(args),
        Verb::Why(args) => verbs::why(args),
        Verb::Status(args) => verbs::status(args),
        Verb::Topo(args) => verbs::topo(args),
        Verb::Doctor(args) => return verbs::doctor(args),
        Verb::Config(args) => verbs::config(args),
        Verb::Lab(args) => return lab::lab(args),
        Verb::Broker => privilege::serve_as_broker(),
        Verb::Symbolize => tiercel_symbolize::serve().map_err(Into::into),
        Verb::Completions { shell } => verbs::completions(*shell),
        Verb::Man(args) => verbs::man(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::from(exit::FAILED)
        }
    }
}
