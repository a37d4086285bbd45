//! A line of `/proc/PID/maps`, which is also the first one of each mapping in `/proc/PID/smaps`.
//! In: its text. Out: its fields. Knows nothing of what they are good for.

use std::ops::Range;

/// `55d0-55e0 rw-p 00001000 fe:01 1234   /bin/x`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// Its addresses.
    pub range: Range<u64>,
    /// Such as `rw-p`.
    pub permissions: &'a str,
    /// Where it begins in its file, bytes.
    pub offset: u64,
    /// Of its file, such as `fe:01`.
    pub device: &'a str,
    /// Of its file; 0: no file backs it.
    pub inode: u64,
    /// Path of its file, or the kernel's name such as `[heap]`; may be empty.
    pub name: &'a str,
}

impl Line<'_> {
    /// `None`: it is no such line.
    pub fn parse(line: &str) -> Option<Line<'_>> {
        let (addresses, rest) = word(line)?;
        let (permissions, rest) = word(rest)?;
        let (offset, rest) = word(rest)?;
        let (device, rest) = word(rest)?;
        let (inode, name) = word(rest)?;
        let (range, offset) = (range(addresses)?, hex(offset)?);
        let (inode, name) = (inode.parse().ok()?, name.trim());
        Some(Line { range, permissions, offset, device, inode, name })
    }
}

/// Addresses as `start-end`.
pub fn range(text: &str) -> Option<Range<u64>> {
    let (start, end) = text.split_once('-')?;
    Some(hex(start)?..hex(end)?)
}

/// The first word, and what follows it.
fn word(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    let end = text.find(|c: char| c.is_ascii_whitespace()).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_six_fields_the_last_of_which_may_be_empty_or_have_spaces() {
        let line = "55d0c000-55d0e000 r-xp 00002000 fe:01 77        /usr/bin/my app (deleted)";
        let expected = Line {
            range: 0x55d0_c000..0x55d0_e000,
            permissions: "r-xp",
            offset: 0x2000,
            device: "fe:01",
            inode: 77,
            name: "/usr/bin/my app (deleted)",
        };
        assert_eq!(Line::parse(line), Some(expected));
        let anonymous = Line::parse("7f00-7f10 rw-p 00000000 00:00 0").unwrap();
        assert_eq!((anonymous.inode, anonymous.name), (0, ""));
    }

    #[test]
    fn other_lines_are_no_mappings() {
        for line in ["", "Rss:   12 kB", "VmFlags: rd ex mr", "7f00-7f10 rw-p 0", "nonsense"] {
            assert_eq!(Line::parse(line), None, "{line}");
        }
        assert_eq!(Line::parse("7f00-zz rw-p 0 0:0 0"), None);
    }
}
