//! Exit statuses of the command, all of them.
//! In: the words of the command line. Out: statuses. Knows nothing of what a verb does.
//!
//! ```text
//!                    verbs that run a program      all others
//!   done             the program's own             0
//!   failed           125, before it started        1
//!   bad options      125                           2
//!   not executable   126
//!   not found        127
//! ```
//!
//! 125 to 127 are those of `env`, `timeout` and `nohup`: a status that a program seldom has.

use std::ffi::OsString;

/// The same for people: the end of `tiercel -h`.
pub const TABLE: &str = "Exit status:
  0    done; of `doctor`: this machine has tiers of memory, and moves between them work
  1    failed
  2    the command line is wrong
Verbs that run a program (run, record, cc, c++, fc, lab run, lab shell, lab truth) exit as it does, or with
  125  Tiercel failed, or the command line is wrong: the program was not started
  126  the program cannot be executed
  127  the program was not found";

/// A verb that runs no program failed.
pub const FAILED: u8 = 1;
/// The command line of such a verb is wrong.
pub const USAGE: u8 = 2;
/// A verb that runs a program refuses before the program starts.
pub const REFUSED: u8 = 125;
/// The program was found and cannot be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// The program was not found.
pub const NOT_FOUND: u8 = 127;

/// Verbs that run a program, and those of `lab` that do.
const RUNNING: [&str; 5] = ["run", "record", "cc", "c++", "fc"];
const RUNNING_IN_LAB: [&str; 3] = ["run", "shell", "truth"];

/// The status of a wrong command line.
pub fn usage(words: &[OsString]) -> u8 {
    let word = |at: usize| words.get(at).and_then(|word| word.to_str()).unwrap_or_default();
    let is_running = match word(1) {
        "lab" => RUNNING_IN_LAB.contains(&word(2)),
        verb => RUNNING.contains(&verb),
    };
    if is_running { REFUSED } else { USAGE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_never_ends_with_the_status_of_a_wrong_command_line() {
        let status = |text: &str| {
            let words: Vec<OsString> = text.split(' ').map(OsString::from).collect();
            usage(&words)
        };
        for running in ["tiercel run --fats 1", "tiercel record", "tiercel lab run --x"] {
            assert_eq!(status(running), 125, "{running}");
        }
        for other in ["tiercel", "tiercel frob", "tiercel lab bench", "tiercel top --x run"] {
            assert_eq!(status(other), 2, "{other}");
        }
    }
}
