//! Reads the records of a perf ring, given as bytes. In: the bytes of one record, the fields that
//! samples carry. Out: [`PerfRecord`]. Knows nothing of rings, events or the kernel; any bytes are
//! safe input.

use super::attr::sample_type as field;

/// Bytes of `struct perf_event_header`.
pub const HEADER_BYTES: usize = 8;

/// One record, reduced to what sampling uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PerfRecord {
    /// An observed access.
    Sample(RawSample),
    /// The kernel dropped this many records because the ring was full.
    Lost(u64),
    /// The kernel throttled the event: it fired too often.
    Throttle,
    /// AUX data arrived.
    Aux(AuxChunk),
    /// Anything else.
    Other,
}

/// A sample as the kernel wrote it; absent fields are 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawSample {
    /// Id of its event.
    pub id: u64,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// CLOCK_MONOTONIC, nanoseconds.
    pub time_ns: u64,
    /// Virtual address.
    pub addr: u64,
    /// Events since the previous sample; 0 when not requested.
    pub period: u64,
    /// Latency in cycles.
    pub weight: u64,
    /// Where the data came from, `union perf_mem_data_src`.
    pub data_src: u64,
    /// Raw bytes of the PMU (IBS registers).
    pub raw: Vec<u8>,
}

/// The position of new data in the AUX area, and whose it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuxChunk {
    /// First byte, counted since the area was created.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// PERF_AUX_FLAG_TRUNCATED was set: some data were lost.
    pub truncated: bool,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// CLOCK_MONOTONIC, nanoseconds.
    pub time_ns: u64,
}

/// Length of the record that `header` begins, as its header states.
pub fn stated_bytes(header: [u8; HEADER_BYTES]) -> usize {
    usize::from(u16::from_ne_bytes([header[6], header[7]]))
}

/// Reads one whole record. `None` when it is shorter than its kind must be.
pub fn parse(bytes: &[u8], sample_type: u64) -> Option<PerfRecord> {
    // PERF_RECORD_* of linux/perf_event.h.
    const LOST: u32 = 2;
    const THROTTLE: u32 = 5;
    const SAMPLE: u32 = 9;
    const AUX: u32 = 11;
    const LOST_SAMPLES: u32 = 13;
    let mut cursor = Cursor { bytes };
    let kind = cursor.u32()?;
    cursor.u32()?;
    match kind {
        SAMPLE => sample(cursor, sample_type).map(PerfRecord::Sample),
        LOST => {
            cursor.u64()?;
            cursor.u64().map(PerfRecord::Lost)
        }
        LOST_SAMPLES => cursor.u64().map(PerfRecord::Lost),
        THROTTLE => Some(PerfRecord::Throttle),
        AUX => aux(cursor, sample_type).map(PerfRecord::Aux),
        _ => Some(PerfRecord::Other),
    }
}

/// Fields come in the order of `perf_output_sample` in the kernel.
fn sample(mut cursor: Cursor<'_>, sample_type: u64) -> Option<RawSample> {
    let has = |bit| sample_type & bit != 0;
    let mut sample = RawSample::default();
    if has(field::IDENTIFIER) {
        sample.id = cursor.u64()?;
    }
    if has(field::TID) {
        (sample.pid, sample.tid) = (cursor.u32()?, cursor.u32()?);
    }
    if has(field::TIME) {
        sample.time_ns = cursor.u64()?;
    }
    if has(field::ADDR) {
        sample.addr = cursor.u64()?;
    }
    if has(field::PERIOD) {
        sample.period = cursor.u64()?;
    }
    if has(field::RAW) {
        let bytes = cursor.u32()? as usize;
        sample.raw = cursor.take(bytes)?.to_vec();
    }
    if has(field::WEIGHT) {
        sample.weight = cursor.u64()?;
    }
    if has(field::DATA_SRC) {
        sample.data_src = cursor.u64()?;
    }
    Some(sample)
}

fn aux(mut cursor: Cursor<'_>, sample_type: u64) -> Option<AuxChunk> {
    // PERF_AUX_FLAG_TRUNCATED of linux/perf_event.h.
    const TRUNCATED: u64 = 1;
    let (offset, bytes, flags) = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
    let mut chunk =
        AuxChunk { offset, bytes, truncated: flags & TRUNCATED != 0, ..AuxChunk::default() };
    if sample_type & field::TID != 0 {
        (chunk.pid, chunk.tid) = (cursor.u32()?, cursor.u32()?);
    }
    if sample_type & field::TIME != 0 {
        chunk.time_ns = cursor.u64()?;
    }
    Some(chunk)
}

struct Cursor<'a> {
    bytes: &'a [u8],
}

impl<'a> Cursor<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count)?;
        self.bytes = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4).map(|b| u32::from_ne_bytes(b.try_into().expect("four bytes")))
    }

    fn u64(&mut self) -> Option<u64> {
        self.take(8).map(|b| u64::from_ne_bytes(b.try_into().expect("eight bytes")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FULL: u64 = field::IDENTIFIER
        | field::TID
        | field::TIME
        | field::ADDR
        | field::PERIOD
        | field::RAW
        | field::WEIGHT
        | field::DATA_SRC;

    /// A slow, obvious model of the kernel's writer.
    fn write(sample: &RawSample, sample_type: u64) -> Vec<u8> {
        let mut out = vec![0u8; HEADER_BYTES];
        out[0] = 9;
        let mut put = |bit: u64, bytes: &[u8]| {
            if sample_type & bit != 0 {
                out.extend_from_slice(bytes);
            }
        };
        put(field::IDENTIFIER, &sample.id.to_ne_bytes());
        put(field::TID, &[sample.pid.to_ne_bytes(), sample.tid.to_ne_bytes()].concat());
        put(field::TIME, &sample.time_ns.to_ne_bytes());
        put(field::ADDR, &sample.addr.to_ne_bytes());
        put(field::PERIOD, &sample.period.to_ne_bytes());
        put(field::RAW, &(sample.raw.len() as u32).to_ne_bytes());
        put(field::RAW, &sample.raw);
        put(field::WEIGHT, &sample.weight.to_ne_bytes());
        put(field::DATA_SRC, &sample.data_src.to_ne_bytes());
        let bytes = (out.len() as u16).to_ne_bytes();
        out[6..8].copy_from_slice(&bytes);
        out
    }

    #[test]
    fn lost_throttle_and_aux_are_read() {
        let record = |kind: u32, words: &[u64]| {
            let mut out = kind.to_ne_bytes().to_vec();
            out.extend([0, 0]);
            out.extend((8 + 8 * words.len() as u16).to_ne_bytes());
            words.iter().for_each(|word| out.extend(word.to_ne_bytes()));
            parse(&out, field::TID | field::TIME)
        };
        assert_eq!(record(2, &[7, 31]), Some(PerfRecord::Lost(31)));
        assert_eq!(record(13, &[5]), Some(PerfRecord::Lost(5)));
        assert_eq!(record(5, &[0, 0, 0]), Some(PerfRecord::Throttle));
        assert_eq!(record(2, &[7]), None, "a record shorter than its kind");
        let task = 40 | 41 << 32;
        let expect =
            AuxChunk { offset: 64, bytes: 128, truncated: true, pid: 40, tid: 41, time_ns: 9 };
        assert_eq!(record(11, &[64, 128, 1, task, 9]), Some(PerfRecord::Aux(expect)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_safe(bytes in prop::collection::vec(any::<u8>(), 0..200), fields: u64) {
            let _ = parse(&bytes, fields);
        }

        #[test]
        fn what_the_kernel_writes_is_read_back(
            ids in any::<(u64, u32, u32, u64, u64, u64, u64, u64)>(),
            raw in prop::collection::vec(any::<u8>(), 0..80),
            mask: u64,
            cut in 0usize..40,
        ) {
            let fields = mask & FULL;
            let has = |bit| fields & bit != 0;
            let keep = |bit, value: u64| if has(bit) { value } else { 0 };
            let sample = RawSample {
                id: keep(field::IDENTIFIER, ids.0),
                pid: keep(field::TID, ids.1.into()) as u32,
                tid: keep(field::TID, ids.2.into()) as u32,
                time_ns: keep(field::TIME, ids.3),
                addr: keep(field::ADDR, ids.4),
                period: keep(field::PERIOD, ids.5),
                weight: keep(field::WEIGHT, ids.6),
                data_src: keep(field::DATA_SRC, ids.7),
                raw: if has(field::RAW) { raw } else { Vec::new() },
            };
            let bytes = write(&sample, fields);
            prop_assert_eq!(stated_bytes(bytes[..8].try_into().unwrap()), bytes.len());
            prop_assert_eq!(parse(&bytes, fields), Some(PerfRecord::Sample(sample)));
            if cut > 0 && cut < bytes.len() - HEADER_BYTES {
                prop_assert_eq!(parse(&bytes[..bytes.len() - cut], fields), None);
            }
        }
    }
}
