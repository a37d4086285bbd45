//! Options of the lab's guests on the command line.
//! In: arguments. Out: [`GuestOptions`]. Knows nothing of what runs in a guest.

use crate::lab_bench::file;
use anyhow::Result;
use clap::Args as ClapArgs;
use tiercel_lab::cli::GuestOptions;
use tiercel_lab::{Acceleration, Size};
use tiercel_machine::parse_bytes;

#[derive(ClapArgs, Debug)]
pub struct GuestArgs {
    /// The machine: a description's file, a name in lab/machines, or a built-in name
    #[arg(long, value_name = "FILE|NAME", default_value = "spr-cxl")]
    machine: String,
    /// Memory of the guest, divided among its nodes in the machine's proportions
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = parse_bytes)]
    memory: u64,
    /// Virtual CPUs, divided likewise; by default 2, and 1 for `truth`
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=64))]
    cpus: Option<u32>,
    /// Copy a file or folder into the guest; THERE is its path in the guest, by default the same
    #[arg(long = "file", value_name = "HERE[:THERE]")]
    files: Vec<String>,
    /// Set a variable in the guest
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = variable)]
    environment: Vec<(String, String)>,
    /// Emulate CPUs (TCG) even where KVM works
    #[arg(long)]
    tcg: bool,
}

/// The guest that the arguments describe; `cpus` where they state none.
pub fn options(args: &GuestArgs, cpus: u32) -> Result<GuestOptions> {
    let acceleration = if args.tcg { Acceleration::Tcg } else { Acceleration::Auto };
    Ok(GuestOptions {
        machine: args.machine.clone(),
        size: Size { memory_bytes: args.memory, cpus: args.cpus.unwrap_or(cpus) },
        acceleration,
        files: args.files.iter().map(|text| file(text)).collect::<Result<_>>()?,
        environment: args.environment.clone(),
    })
}

fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || !name.chars().all(plain) || name.starts_with(|c: char| c.is_ascii_digit())
    {
        return Err(format!("{name:?} is not the name of a variable"));
    }
    Ok((name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_have_names_the_shell_knows() {
        assert_eq!(variable("A_1=b=c"), Ok(("A_1".to_owned(), "b=c".to_owned())));
        for bad in ["A", "=x", "1A=x", "A B=x", "A;B=x"] {
            assert!(variable(bad).is_err(), "{bad}");
        }
    }
}
