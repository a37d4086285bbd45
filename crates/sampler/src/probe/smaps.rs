//! Parses /proc/PID/smaps: how many bytes of each mapping were referenced. In: text. Out:
//! [`Mapping`]s. Knows nothing of processes; any text is safe input.

use std::io::BufRead;
use std::ops::Range;
use tiercel_wire::maps;

/// A mapping with resident bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Its addresses.
    pub range: Range<u64>,
    /// Bytes present.
    pub resident_bytes: u64,
    /// Present bytes with a referenced bit.
    pub referenced_bytes: u64,
    /// Present bytes in huge OS pages.
    pub huge_bytes: u64,
    /// When its text was read, as `clock` has it.
    pub read_ns: u64,
}

/// Most mappings that are read; the kernel's own limit is 65,530 unless it was raised.
const MAPPINGS_MAX: usize = 1 << 17;

/// Reads the mappings with resident bytes, in ascending order. Malformed lines are skipped; a read
/// error ends the list. The kernel walks a mapping when its text is read, some 4 KiB of text at a
/// time.
pub fn read(mut text: impl BufRead, clock: impl Fn() -> u64) -> Vec<Mapping> {
    let mut out = Vec::new();
    let mut range = 0..0;
    let mut resident_bytes = 0;
    let mut line = Vec::new();
    loop {
        line.clear();
        match text.read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return out,
            Ok(_) => {}
        }
        // Headers begin with a lower-case hexadecimal address, values with a capital letter.
        if !line.first().is_some_and(u8::is_ascii_uppercase) {
            range = header(&line).unwrap_or(0..0);
        } else if let Some(kib) = line.strip_prefix(b"Rss:") {
            resident_bytes = number(kib).saturating_mul(1024);
        } else if let Some(kib) = line.strip_prefix(b"Referenced:") {
            let referenced_bytes = number(kib).saturating_mul(1024);
            if resident_bytes > 0 && !range.is_empty() {
                let range = range.clone();
                let (huge_bytes, read_ns) = (0, clock());
                out.push(Mapping { range, resident_bytes, referenced_bytes, huge_bytes, read_ns });
            }
            resident_bytes = 0;
            if out.len() == MAPPINGS_MAX {
                return out;
            }
        } else if let Some(kib) = line.strip_prefix(b"AnonHugePages:") {
            // Follows Referenced of the same mapping.
            if let Some(last) = out.last_mut().filter(|last| last.range == range) {
                last.huge_bytes = number(kib).saturating_mul(1024).min(last.resident_bytes);
            }
        }
    }
}

fn header(line: &[u8]) -> Option<Range<u64>> {
    let addresses = line.split(|byte| *byte == b' ').next()?;
    maps::range(std::str::from_utf8(addresses).ok()?)
}

fn number(text: &[u8]) -> u64 {
    let digits = text.iter().skip_while(|byte| **byte == b' ');
    digits
        .take_while(|byte| byte.is_ascii_digit())
        .fold(0, |n: u64, byte| n.saturating_mul(10).saturating_add(u64::from(byte - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = "\
55d0c0000000-55d0c0021000 rw-p 00000000 00:00 0                          [heap]
Size:                132 kB
Rss:                 128 kB
Referenced:           64 kB
AnonHugePages:      2048 kB
VmFlags: rd wr mr mw me ac
7f0000000000-7f0004000000 rw-p 00000000 00:00 0
Rss:                   0 kB
Referenced:            0 kB
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
Rss:                   8 kB
Referenced:            4 kB
";

    #[test]
    fn mappings_with_resident_bytes_are_read() {
        let seen: Vec<_> = read(TEXT.as_bytes(), || 0)
            .into_iter()
            .map(|m| (m.range.start, m.resident_bytes, m.referenced_bytes, m.huge_bytes))
            .collect();
        assert_eq!(
            seen,
            [(0x55d0_c000_0000, 131_072, 65_536, 131_072), (0xffff_ffff_ff60_0000, 8192, 4096, 0)]
        );
    }

    proptest! {
        #[test]
        fn any_text_is_safe(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let text = [b"10-20 r\nRss: 4 kB\nReferenced: 4 kB\n".as_slice(), &bytes].concat();
            prop_assert!(!read(text.as_slice(), || 0).is_empty());
        }
    }
}
