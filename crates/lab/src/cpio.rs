//! Writes a cpio archive in the kernel's initramfs form (`newc`). In: paths inside the archive and
//! their contents. Out: bytes in memory. Knows nothing of guests. Directories above an entry are
//! added automatically.

use std::collections::BTreeSet;

/// An archive under construction.
///
/// Paths are relative, without `.` or `..`; the first entry of a path wins, as in a union of trees.
/// Everything belongs to root and has time 0, so that equal input gives equal bytes.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    seen: BTreeSet<String>,
}

/// The kernel pads archive parts to 4 bytes, and finds a further archive after any zero padding.
const ALIGN: usize = 4;

// File types of `st_mode` (stat.h).
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;
const CHARACTER: u32 = 0o020_000;

impl Archive {
    /// A directory with mode 0755, and its parents.
    pub(crate) fn directory(&mut self, path: &str) {
        let path = clean(path);
        if path.is_empty() || !self.seen.insert(path.clone()) {
            return;
        }
        self.parents(&path);
        self.entry(&path, DIRECTORY | 0o755, &[], (0, 0));
    }

    /// A regular file; `mode` holds the permission bits.
    pub(crate) fn file(&mut self, path: &str, mode: u32, data: &[u8]) {
        self.leaf(path, REGULAR | (mode & 0o7777), data, (0, 0));
    }

    /// A symbolic link.
    pub(crate) fn symlink(&mut self, path: &str, target: &str) {
        self.leaf(path, SYMLINK | 0o777, target.as_bytes(), (0, 0));
    }

    /// A character device, mode 0600.
    pub(crate) fn character(&mut self, path: &str, major: u32, minor: u32) {
        self.leaf(path, CHARACTER | 0o600, &[], (major, minor));
    }

    /// Whether the path has an entry.
    pub(crate) fn contains(&self, path: &str) -> bool {
        self.seen.contains(&clean(path))
    }

    /// The archive with its trailer.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[], (0, 0));
        self.bytes
    }

    fn leaf(&mut self, path: &str, mode: u32, data: &[u8], device: (u32, u32)) {
        let path = clean(path);
        assert!(!path.is_empty(), "an entry needs a name");
        if self.seen.insert(path.clone()) {
            self.parents(&path);
            self.entry(&path, mode, data, device);
        }
    }

    fn parents(&mut self, path: &str) {
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.directory(parent);
        }
    }

    fn entry(&mut self, path: &str, mode: u32, data: &[u8], device: (u32, u32)) {
        let size = u32::try_from(data.len()).expect("files above 4 GiB are refused by Payload");
        let name_bytes = u32::try_from(path.len() + 1).expect("paths have at most 4 KiB");
        // ino, mode, uid, gid, nlink, mtime, size, device (2), special device (2), name, checksum
        let fields = [0, mode, 0, 0, 1, 0, size, 0, 0, device.0, device.1, name_bytes, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(data);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGN), 0);
    }
}

fn clean(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').filter(|p| !p.is_empty() && *p != ".").collect();
    assert!(!parts.contains(&".."), "{path}: an archive path must not contain `..`");
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads an archive back: (path, mode, contents).
    fn list(bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut entries = Vec::new();
        let mut at = 0;
        loop {
            assert_eq!(&bytes[at..at + 6], b"070701", "at {at}");
            let field = |n: usize| {
                let from = at + 6 + 8 * n;
                let digits = std::str::from_utf8(&bytes[from..from + 8]).expect("digits");
                u32::from_str_radix(digits, 16).expect("hexadecimal")
            };
            let (mode, size, name_bytes) = (field(1), field(6) as usize, field(11) as usize);
            let name = at + 110;
            let path =
                String::from_utf8(bytes[name..name + name_bytes - 1].to_vec()).expect("utf8");
            let data = (name + name_bytes).next_multiple_of(4);
            if path == "TRAILER!!!" {
                assert_eq!(data, bytes.len());
                return entries;
            }
            entries.push((path, mode, bytes[data..data + size].to_vec()));
            at = (data + size).next_multiple_of(4);
        }
    }

    #[test]
    fn parents_come_first_and_once() {
        let mut archive = Archive::default();
        archive.file("/a/b/c", 0o755, b"hello");
        archive.file("a//b/./d", 0o644, b"");
        archive.symlink("a/e", "b/c");
        archive.character("dev/console", 5, 1);
        let entries = list(&archive.finish());
        let paths: Vec<_> = entries.iter().map(|(path, mode, _)| (path.as_str(), *mode)).collect();
        assert_eq!(
            paths,
            [
                ("a", 0o040_755),
                ("a/b", 0o040_755),
                ("a/b/c", 0o100_755),
                ("a/b/d", 0o100_644),
                ("a/e", 0o120_777),
                ("dev", 0o040_755),
                ("dev/console", 0o020_600),
            ]
        );
        assert_eq!(entries[2].2, b"hello");
        assert_eq!(entries[4].2, b"b/c");
    }

    #[test]
    fn the_first_entry_of_a_path_wins() {
        let mut archive = Archive::default();
        archive.file("x", 0o644, b"first");
        archive.file("/x", 0o644, b"second");
        assert!(archive.contains("./x") && !archive.contains("y"));
        let entries = list(&archive.finish());
        assert_eq!(entries.len(), 1);
        assert_eq!(entries[0].2, b"first");
    }

    #[test]
    #[should_panic(expected = "must not contain")]
    fn a_path_with_dot_dot_is_refused() {
        Archive::default().file("a/../../etc/passwd", 0o644, b"");
    }
}
