//! A child that puts the knobs back when this process is killed. In: what was found. Out: the knobs
//! as they were. Knows nothing of what they mean.
//!
//! It waits for the end of a pipe. That comes when the process at its other end is gone, however it
//! died. The child has a process group of its own, which a terminal's signals do not reach.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A line from the pipe says that all was put back. Without one the child writes each value to its
/// file, if the note is still that of the process it waited for, and removes the note.
const SCRIPT: &str = r#"
if read -r line; then exit; fi
note=$1
read -r writer < "$note" && [ "$writer" = "$2" ] || exit
shift 2
while [ $# -ge 2 ]; do
    echo "$2" > "$1"
    shift 2
done
rm -f "$note"
"#;

/// See the module. Dropped, it puts nothing back.
#[derive(Debug)]
pub struct Guard {
    child: Child,
}

impl Guard {
    /// Starts it; `None` where there is no shell, or no right to start one. `writer` is the first
    /// line of the note; files are written in the order of `found`.
    pub fn start(note: &Path, writer: &str, found: &[(PathBuf, String)]) -> Option<Guard> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", SCRIPT, "tiercel-hint-guard"]).arg(note).arg(writer);
        for (path, value) in found {
            command.arg(path).arg(value);
        }
        command.env_clear().env("PATH", "/usr/bin:/bin").current_dir("/").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().ok().map(|child| Guard { child })
    }

    /// What happens when this process is killed.
    #[cfg(test)]
    pub fn abandon(&mut self) {
        drop(self.child.stdin.take());
        self.child.wait().expect("a child of ours");
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(mut pipe) = self.child.stdin.take() {
            let _ = pipe.write_all(b"done\n"); // It fails where the child was killed.
        }
        let _ = self.child.wait();
    }
}
