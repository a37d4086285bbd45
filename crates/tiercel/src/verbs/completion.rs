//! `tiercel completions`: what a shell completes.
//! In: the command line's description. Out: a script. Knows nothing of what a verb does.
//!
//! `--machine` takes a built-in name or a file. The generator knows names or files, so it is given
//! the names, and the script is made to offer files beside them.

use crate::args::Args;
use anyhow::{Context, Result};
use clap::builder::PossibleValuesParser;
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use tiercel_machine::BUILTIN_NAMES;

/// The script of a shell.
pub fn script(shell: Shell) -> Result<String> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut named(Args::command()), "tiercel", &mut script);
    let script = String::from_utf8(script).context("completions are text")?;
    let names = BUILTIN_NAMES.join(" ");
    Ok(match shell {
        Shell::Bash => {
            let line = format!("COMPREPLY=($(compgen -W \"{names}\" -- \"${{cur}}\"))");
            let files = "COMPREPLY+=($(compgen -f -- \"${cur}\"))";
            script.replace(&line, &format!("{line}\n                    {files}"))
        }
        Shell::Zsh => script.replace(
            &format!(":({names})"),
            &format!(": _alternative \"machines:machine:({names})\" \"files:file:_files\""),
        ),
        _ => script,
    })
}

/// The same command line, with the names of built-in machines where one is wanted.
fn named(command: Command) -> Command {
    let has_machine = command.get_arguments().any(|arg| arg.get_id() == "machine");
    let names = PossibleValuesParser::new(BUILTIN_NAMES.iter().copied());
    let command = match has_machine {
        true => command.mut_arg("machine", |arg| arg.value_parser(names)),
        false => command,
    };
    command.mut_subcommands(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_offered_by_name_beside_files() {
        let bash = script(Shell::Bash).unwrap();
        assert!(bash.contains("spr-cxl") && bash.contains("COMPREPLY+=($(compgen -f"), "{bash}");
        let zsh = script(Shell::Zsh).unwrap();
        assert!(zsh.contains("_alternative \"machines:machine:(cascadelake-optane"));
        assert!(script(Shell::Fish).unwrap().contains("spr-cxl"));
    }
}
