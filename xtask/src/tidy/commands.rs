//! Commands in documents against the commands there are. In: files, among them docs/commands.md,
//! and xtask's own command line. Out: verbs and options that no longer exist. Knows nothing of what
//! the commands do.

use clap::Command;

use super::markdown::{self, documents};
use super::source::File;
use super::{Problem, problem};

/// The help of every verb of `tiercel`, generated.
const HELP: &str = "docs/commands.md";
/// Verbs of `./x` that are not xtask's.
const OF_X: &[&str] = &["setup", "help"];

pub fn check(files: &[File], xtask: &Command) -> Vec<Problem> {
    let help = files.iter().find(|file| file.path == HELP).map_or("", File::text);
    let mut problems = Vec::new();
    for file in documents(files) {
        let quotes = markdown::code(file.text()).into_iter().chain(markdown::fenced(file.text()));
        for quote in quotes {
            if let Some(what) = fault(&quote.text, xtask, help) {
                problems.push(problem(
                    file,
                    quote.line,
                    format!("`{}`: {what}", quote.text.trim()),
                ));
            }
        }
    }
    problems
}

/// What is wrong with a command, if it is one of ours.
fn fault(line: &str, xtask: &Command, help: &str) -> Option<String> {
    let words: Vec<&str> = line
        .trim_start_matches(['$', '#', ' '])
        .split_whitespace()
        .skip_while(|word| word.contains('=') || *word == "sudo")
        .take_while(|word| !matches!(*word, "--" | "|" | "&&" | ";" | ">" | "#"))
        .collect();
    match words.as_slice() {
        ["./x", rest @ ..] | ["cargo", "xtask", rest @ ..] => of_xtask(rest, xtask),
        [program, rest @ ..] if program.rsplit('/').next() == Some("tiercel") => {
            of_tiercel(rest, help)
        }
        _ => None,
    }
}

/// A word that stands for others: `VERB`, `...`, or one that goes on with what is typed there.
fn is_placeholder(word: &str) -> bool {
    !word.starts_with(|c: char| c.is_ascii_lowercase())
}

fn of_xtask(words: &[&str], command: &Command) -> Option<String> {
    let (verb, rest) = words.split_first()?;
    if is_placeholder(verb) || OF_X.contains(verb) && command.get_name() == "xtask" {
        return None;
    }
    let Some(inner) = command.find_subcommand(verb) else {
        return Some(format!("there is no verb `{verb}`"));
    };
    if inner.has_subcommands() {
        return of_xtask(rest, inner);
    }
    let name =
        inner.get_positionals().next().filter(|_| !rest.is_empty() && !is_placeholder(rest[0]));
    let values = name.map(|name| name.get_possible_values()).unwrap_or_default();
    if !values.is_empty() && !values.iter().any(|value| value.matches(rest[0], false)) {
        return Some(format!("`{verb}` knows no `{}`", rest[0]));
    }
    let passes_on = inner.get_positionals().any(|one| one.is_trailing_var_arg_set());
    let mut options = rest.iter().filter_map(|word| option(word));
    let unknown =
        options.find(|option| inner.get_arguments().all(|one| one.get_long() != Some(option)));
    unknown.filter(|_| !passes_on).map(|option| format!("there is no option `--{option}`"))
}

fn of_tiercel(words: &[&str], help: &str) -> Option<String> {
    let (verb, rest) = words.split_first()?;
    if is_placeholder(verb) {
        return None;
    }
    let section = |verb: &str| {
        let (_, section) = help.split_once(&format!("\n## tiercel {verb}\n"))?;
        Some(section.split("\n## ").next().unwrap_or(section))
    };
    let inner = rest.first().and_then(|second| section(&format!("{verb} {second}")));
    let Some(section) = inner.or_else(|| section(verb)) else {
        return Some(format!("there is no verb `{verb}`"));
    };
    if inner.is_none() && section.contains("\nCommands:\n") {
        let second = rest.first().filter(|word| !is_placeholder(word))?;
        return Some(format!("`{verb}` has no verb `{second}`"));
    }
    let has = |option: &str| {
        let mut words = section.split(|c: char| c.is_whitespace() || ",=[".contains(c));
        words.any(|word| word.strip_prefix("--") == Some(option))
    };
    let mut options = rest.iter().filter_map(|word| option(word));
    options.find(|option| !has(option)).map(|option| format!("there is no option `--{option}`"))
}

/// `fast` of `--fast=1GiB`.
fn option(word: &str) -> Option<&str> {
    let name = word.trim_end_matches([',', '.', ';', ']', ')']).strip_prefix("--")?;
    let name = name.split('=').next().unwrap_or(name);
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    const HELP_TEXT: &str = "\n## tiercel run\n\n--fast <SHARE>\n--json\n\n## tiercel lab\n\n\
                             Commands:\n  run\n\n## tiercel lab run\n\n--machine <NAME>\n";

    fn wrong(line: &str) -> bool {
        let bench = Command::new("bench")
            .arg(Arg::new("name").value_parser(["alloc", "ledger"]))
            .arg(Arg::new("quick").long("quick"));
        let lab = Command::new("lab").subcommand(Command::new("test"));
        let xtask = Command::new("xtask").subcommand(bench).subcommand(lab);
        fault(line, &xtask, HELP_TEXT).is_some()
    }

    #[test]
    fn existing_commands_are_accepted() {
        for good in [
            "./x bench alloc --quick",
            "cargo xtask bench NAME",
            "./x VERB ...",
            "./x setup",
            "./x lab test",
            "$ tiercel run --fast=25% -- redis-server --port 7",
            "tiercel lab run --machine x",
            "tiercel --version",
            "tiercel run --json | jq",
            "ls --odd",
        ] {
            assert!(!wrong(good), "{good}");
        }
    }

    #[test]
    fn missing_commands_are_reported() {
        for bad in [
            "./x odd",
            "cargo xtask bench odd",
            "./x bench alloc --odd",
            "./x lab odd",
            "tiercel odd",
            "sudo target/release/tiercel run --odd",
            "tiercel lab odd",
        ] {
            assert!(wrong(bad), "{bad}");
        }
    }
}
