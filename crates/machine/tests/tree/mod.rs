//! Recorded sysfs trees as text: one line per entry of fixtures/machines/*.tree.
//! In: `path: content` (`\n`, `\\` and `\xff` escaped, a final line end added as the kernel does),
//! `path -> target` for a link, `path/` for a directory, `#` for a comment. Out: the tree in a
//! temporary directory.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// Where the fixtures are.
pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/machines")
}

/// Unpacks one fixture.
pub fn unpack(name: &str) -> TempDir {
    unpack_text(&fs::read_to_string(fixtures().join(format!("{name}.tree"))).unwrap())
}

/// Unpacks text in the same form.
pub fn unpack_text(text: &str) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let make_parent = |path: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    };
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        if let Some((path, content)) = line.split_once(": ") {
            fs::write(make_parent(path), unescape(content)).unwrap();
        } else if let Some((path, target)) = line.split_once(" -> ") {
            std::os::unix::fs::symlink(target, make_parent(path)).unwrap();
        } else if let Some(path) = line.strip_suffix('/') {
            fs::create_dir_all(root.path().join(path)).unwrap();
        } else {
            panic!("not a line of a tree: {line}");
        }
    }
    root
}

fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let escaped = if byte == b'\\' { rest.next() } else { None };
        bytes.push(match escaped {
            None => byte,
            Some(b'n') => b'\n',
            Some(b'x') => {
                let digits = [rest.next().unwrap(), rest.next().unwrap()];
                u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            Some(other) => other,
        });
    }
    bytes.push(b'\n');
    bytes
}
