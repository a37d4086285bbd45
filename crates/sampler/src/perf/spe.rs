//! Reads the packets that an Arm statistical profiler writes to the AUX area. In: bytes. Out:
//! [`Access`]es that missed the last-level cache. Source: Arm DDI 0487, D10.2. Knows nothing of the
//! kernel; any bytes are safe input.
//!
//! ```text
//! header      payload      meaning                        used here
//! 0000 0000   none         padding
//! 0000 0001   none         END                            closes a record
//! 0111 0001   8 bytes      TIMESTAMP                      closes a record
//! 01ss 0010   2^ss bytes   EVENTS                         bits 9 LLC miss, 10 remote access
//! 0100 10cc   1 byte       OPERATION of class cc          cc = 1 load or store: bit 0 store
//! 1011 0iii   8 bytes      ADDRESS of index iii           index 2: virtual address of the data
//! 1001 1iii   2 bytes      COUNTER of index iii           index 0: total latency, cycles
//! 01ss 0011   2^ss bytes   DATA SOURCE                    skipped
//! 0110 01ii   4 bytes      CONTEXT                        skipped
//! 0010 00jj   then one of the above: its index is jj iii
//! ```

use tiercel_wire::AccessKind;

use super::decode::Access;

/// Appends the accesses in `bytes`; returns how many bytes were malformed and skipped.
pub fn decode(mut bytes: &[u8], out: &mut Vec<Access>) -> usize {
    let mut record = Partial::default();
    let mut senseless = 0;
    while let Some((&first, rest)) = bytes.split_first() {
        let Some(packet) = Packet::read(first, rest) else {
            senseless += 1;
            bytes = rest;
            record = Partial::default();
            continue;
        };
        bytes = &bytes[packet.bytes..];
        if record.take(&packet) {
            out.extend(std::mem::take(&mut record).access());
        }
    }
    senseless
}

struct Packet {
    class: Class,
    /// Address or counter index, operation class.
    index: u8,
    payload: u64,
    /// Length of the whole packet.
    bytes: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Padding,
    End,
    Timestamp,
    Events,
    Operation,
    Address,
    Counter,
    Skipped,
}

impl Packet {
    fn read(first: u8, rest: &[u8]) -> Option<Packet> {
        // An extended header: two more bits of index, then a short header.
        let (extension, header, rest, header_bytes) = if first & 0xfc == 0x20 {
            let (&second, rest) = rest.split_first()?;
            ((first & 0x03) << 3, second, rest, 2)
        } else {
            (0, first, rest, 1)
        };
        let class = match header {
            0x00 => Class::Padding,
            0x01 => Class::End,
            0x71 => Class::Timestamp,
            _ => match header & 0xcf {
                0x42 => Class::Events,
                0x48..=0x4b => Class::Operation,
                0x43..=0x47 => Class::Skipped, // data source, context
                _ => match header & 0xf8 {
                    0xb0 => Class::Address,
                    0x98 => Class::Counter,
                    _ => return None,
                },
            },
        };
        let payload_bytes = match class {
            Class::Padding | Class::End => 0,
            _ => 1usize << (header >> 4 & 0x3),
        };
        let payload = rest.get(..payload_bytes)?;
        let payload = payload.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
        let index = match class {
            Class::Operation => header & 0x3,
            _ => extension | header & 0x7,
        };
        Some(Packet { class, index, payload, bytes: header_bytes + payload_bytes })
    }
}

#[derive(Default)]
struct Partial {
    addr: Option<u64>,
    kind: Option<AccessKind>,
    events: u64,
    latency_cycles: u64,
}

impl Partial {
    /// Adds a packet to the record; true when the packet closes it.
    fn take(&mut self, packet: &Packet) -> bool {
        // Index fields of SPE packets (Arm ARM, D10.2).
        const DATA_VIRTUAL: u8 = 2;
        const TOTAL_LATENCY: u8 = 0;
        const LOAD_STORE: u8 = 1;
        match (packet.class, packet.index) {
            (Class::Address, DATA_VIRTUAL) => {
                // The top byte may carry a tag; user addresses have bit 55 clear.
                self.addr = Some(packet.payload & 0x00ff_ffff_ffff_ffff);
            }
            (Class::Counter, TOTAL_LATENCY) => self.latency_cycles = packet.payload & 0xfff,
            (Class::Operation, LOAD_STORE) => {
                let store = packet.payload & 1 != 0;
                self.kind = Some(if store { AccessKind::Write } else { AccessKind::Read });
            }
            (Class::Events, _) => self.events = packet.payload,
            (Class::End | Class::Timestamp, _) => return true,
            _ => {}
        }
        false
    }

    fn access(self) -> Option<Access> {
        const LLC_MISS: u64 = 1 << 9 | 1 << 10; // LLC miss; remote access
        let addr = self.addr.filter(|addr| *addr != 0)?;
        let kind = self.kind?;
        (self.events & LLC_MISS != 0).then_some(Access {
            addr,
            kind,
            latency_cycles: self.latency_cycles,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(events: u16, operation: u8, addr: u64, latency: u16, close: &[u8]) -> Vec<u8> {
        let mut out = vec![0xb0];
        out.extend(0x0000_aaaa_0000_1000u64.to_le_bytes()); // program counter
        out.extend([0x99, 5, 0, 0x98]); // issue latency, then total latency
        out.extend(latency.to_le_bytes());
        out.extend([0x49, operation, 0x52]);
        out.extend(events.to_le_bytes());
        out.extend([0x43, 0x0e, 0x64, 1, 2, 3, 4, 0xb2]); // data source, context, data address
        out.extend(addr.to_le_bytes());
        out.extend(close);
        out
    }

    const TIMESTAMP: [u8; 9] = [0x71, 1, 2, 3, 4, 5, 6, 7, 8];
    const MISS: u16 = 1 << 9;

    fn check(bytes: &[u8], expect: &[(AccessKind, u64, u64)], expect_senseless: usize) {
        let mut out = Vec::new();
        let senseless = decode(bytes, &mut out);
        let seen: Vec<_> = out.iter().map(|a| (a.kind, a.addr, a.latency_cycles)).collect();
        assert_eq!((seen.as_slice(), senseless), (expect, expect_senseless), "{bytes:02x?}");
    }

    #[test]
    fn records_that_end_in_either_way_are_read() {
        let load = record(MISS, 0, 0x1122, 300, &TIMESTAMP);
        let store = record(MISS, 1, 0x3344, 7, &[0x01]);
        let both = [load, vec![0; 13], store].concat();
        check(&both, &[(AccessKind::Read, 0x1122, 300), (AccessKind::Write, 0x3344, 7)], 0);
    }

    #[test]
    fn hits_and_other_operations_are_left_out() {
        check(&record(1 << 8, 0, 0x1122, 30, &[0x01]), &[], 0);
        check(&record(MISS, 0, 0, 30, &[0x01]), &[], 0);
        let mut branch = record(MISS, 0, 0x1122, 30, &[0x01]);
        branch[15] = 0x4a;
        assert_eq!(record(MISS, 0, 0, 0, &[])[15], 0x49, "the operation's header");
        check(&branch, &[], 0);
    }

    #[test]
    fn address_tags_and_extended_headers_are_decoded() {
        let tagged = record(MISS, 0, 0x5500_0000_0000_1122, 30, &[0x01]);
        check(&tagged, &[(AccessKind::Read, 0x1122, 30)], 0);
        let mut extended = vec![0x21, 0x9a, 9, 9]; // counter of index 10: skipped
        extended.extend(record(MISS, 0, 0x1122, 30, &[0x01]));
        check(&extended, &[(AccessKind::Read, 0x1122, 30)], 0);
    }

    #[test]
    fn the_record_after_malformed_bytes_is_read() {
        let mut bytes = vec![0xff, 0xfe];
        bytes.extend(record(MISS, 0, 0x1122, 30, &[0x01]));
        check(&bytes, &[(AccessKind::Read, 0x1122, 30)], 2);
        let whole = record(MISS, 0, 0x1122, 30, &[0x01]);
        let mut out = Vec::new();
        decode(&whole[..whole.len() - 4], &mut out);
        assert_eq!(out, [], "a truncated record yields nothing");
    }

    proptest! {
        #[test]
        fn any_bytes_are_safe(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let mut out = Vec::new();
            prop_assert!(decode(&bytes, &mut out) <= bytes.len());
        }
    }
}
