//! The shared libraries that a program needs at start. In: the path of a program or library. Out:
//! paths of the files that the host's loader would map for it. Knows nothing of libraries that are
//! opened later (dlopen); the user has to name those.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Every file that the loader maps for `program`, including the loader; none for static programs
/// and scripts. Uses the host's `ldd`.
pub(crate) fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd")
        .arg(program)
        .env_remove("LD_PRELOAD")
        .output()
        .context("cannot start ldd, which names a program's libraries; install libc-bin")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if let Some(missing) = missing(&text) {
        bail!("{}: library {missing} is not installed here", program.display());
    }
    // ldd fails on scripts and on static programs alike; both need nothing.
    Ok(parse(&text))
}

fn parse(text: &str) -> Vec<PathBuf> {
    text.lines()
        .filter_map(|line| {
            let line = line.trim();
            let path = line.split_once("=> ").map_or(line, |(_, path)| path);
            let path = path.split_once(" (").map_or(path, |(path, _)| path);
            path.starts_with('/').then(|| PathBuf::from(path))
        })
        .collect()
}

fn missing(text: &str) -> Option<&str> {
    text.lines()
        .find(|line| line.ends_with("=> not found"))
        .and_then(|line| line.split_whitespace().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LDD: &str = "\tlinux-vdso.so.1 (0x00007ffd)\n\
        \tlibnuma.so.1 => /lib/x86_64-linux-gnu/libnuma.so.1 (0x00007f1)\n\
        \tlibgone.so.3 => not found\n\
        \t/lib64/ld-linux-x86-64.so.2 (0x00007f2)\n";

    #[test]
    fn the_vdso_is_not_listed_as_a_file() {
        let expect = ["/lib/x86_64-linux-gnu/libnuma.so.1", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(parse(LDD), expect.map(PathBuf::from));
        assert_eq!(missing(LDD), Some("libgone.so.3"));
    }

    #[test]
    fn static_programs_need_nothing() {
        assert!(parse("\tnot a dynamic executable\n").is_empty());
        assert!(parse("\tstatically linked\n").is_empty());
        assert_eq!(missing("\tstatically linked\n"), None);
    }

    #[test]
    fn a_dynamic_program_needs_its_loader() {
        let own = std::env::current_exe().expect("the test's own path");
        let found = libraries(&own).expect("ldd works");
        assert!(found.iter().any(|p| p.to_string_lossy().contains("/ld-linux")), "{found:?}");
    }
}
