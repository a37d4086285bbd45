//! `tiercel man`: manual pages of all verbs, and of theirs.
//! In: the command line's description. Out: roff. Knows nothing of what a verb does.

use crate::args::Args;
use anyhow::{Context, Result, bail};
use clap::{Command, CommandFactory};
use std::path::Path;

/// The page of a verb: of tiercel itself without words, of `lab bench` with two.
pub fn page(words: &[String]) -> Result<String> {
    let mut command = built();
    for (at, word) in words.iter().enumerate() {
        command = match command.find_subcommand(word) {
            Some(found) => found.clone(),
            None => bail!("unknown verb {}; `tiercel -h` lists the verbs", words[..=at].join(" ")),
        };
    }
    let names: Vec<&str> = words.iter().map(String::as_str).collect();
    rendered(command, &names)
}

/// Writes the pages of all verbs to `folder`; how many.
pub fn write_all(folder: &Path) -> Result<usize> {
    let write = |names: &[&str], command: &Command| {
        let file = folder.join(format!("{}.1", page_name(names)));
        std::fs::write(&file, rendered(command.clone(), names)?)
            .with_context(|| format!("cannot write {}", file.display()))
    };
    let all = built();
    write(&[], &all)?;
    let mut pages = 1;
    for verb in shown(&all) {
        write(&[verb.get_name()], verb)?;
        pages += 1;
        for second in shown(verb) {
            write(&[verb.get_name(), second.get_name()], second)?;
            pages += 1;
        }
    }
    Ok(pages)
}

fn built() -> Command {
    let mut command = Args::command();
    command.build();
    command
}

fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|verb| !verb.is_hide_set())
}

fn rendered(command: Command, names: &[&str]) -> Result<String> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command.display_name(page_name(names))).render(&mut page)?;
    String::from_utf8(page).context("manual pages are text")
}

/// `tiercel-lab-bench`.
fn page_name(names: &[&str]) -> String {
    [&["tiercel"], names].concat().join("-")
}
