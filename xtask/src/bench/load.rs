//! A busy machine. In: nothing. Out: busy loops that run until the value is dropped. Knows nothing
//! of what is measured beside them.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

/// Loops for each CPU: with two, a program has a third of the CPUs' time.
const LOOPS_PER_CPU: usize = 2;

/// Busy loops, each a process of its own, as other users' programs are.
pub struct Load(Vec<Child>);

impl Load {
    pub fn begin() -> Result<Load> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let mut load = Load(Vec::new());
        for _ in 0..cpus * LOOPS_PER_CPU {
            let mut shell = Command::new("sh");
            shell.args(["-c", "while :; do :; done"]).stdin(Stdio::null());
            load.0.push(shell.spawn().context("cannot start a busy loop")?);
        }
        Ok(load)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // A loop that has ended by itself needs no end.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
