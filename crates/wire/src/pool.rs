//! Requests to the pools: one datagram each way over a `SOCK_SEQPACKET` socket.
//! In: bytes. Out: [`PoolAsk`], [`PoolAnswer`], or why the bytes are neither.
//! Knows nothing of sockets, nor of the memfd that is sent with an answer.

use crate::greeting::{GreetingError, check, get, get_u64, put, put_u64};
use crate::layout::{POOL_EMULATED, POOL_FILE, POOL_MAGIC, WIRE_VERSION};

/// What a process requests of the pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolVerb {
    /// A segment of `node`.
    Grant {
        /// The kernel's number as the process states it: may be anything.
        node: i32,
        /// As the process states it.
        bytes: u64,
        /// Log2 of a vpage's bytes, as the process states it.
        vpage_shift: u32,
    },
    /// The process has unmapped this segment and needs it no longer.
    Return(GrantKey),
    /// The process needs this segment no longer, but a child of it may map it.
    Leave(GrantKey),
}

/// Identifies a granted segment; both numbers come with the grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantKey {
    /// Number of the segment, which can be guessed.
    pub number: u32,
    /// Known only to the process that was granted the segment.
    pub secret: u64,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolAsk(pub PoolVerb);

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum PoolStatus {
    /// Done.
    Ok = 0,
    /// No pool of this node, or none at all.
    None = 1,
    /// Not enough is free, or the system has no memory for it.
    Exhausted = 2,
    /// No request that a process may make.
    Refused = 3,
}

/// The answer; the memfd of a granted segment is sent with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolAnswer {
    /// The result.
    pub status: PoolStatus,
    /// The segment, numbered from 1; else zeros.
    pub key: GrantKey,
    /// Its bytes.
    pub bytes: u64,
    /// The node is modelled.
    pub is_emulated: bool,
    /// A file without a name, which has no seals; else a sealed memfd.
    pub is_file: bool,
}

impl PoolAsk {
    /// Bytes of a request.
    pub const BYTES: usize = 40;

    /// True when `bytes` begin like a request to the pools, and not like a hello.
    #[must_use]
    pub fn is_one(bytes: &[u8]) -> bool {
        bytes.len() >= 4 && get(bytes, 0) == POOL_MAGIC
    }

    /// Its bytes on the socket.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        put(&mut out, 0, POOL_MAGIC);
        put(&mut out, 4, WIRE_VERSION);
        match self.0 {
            PoolVerb::Grant { node, bytes, vpage_shift } => {
                put(&mut out, 8, 1);
                put(&mut out, 12, node.cast_unsigned());
                put_u64(&mut out, 16, bytes);
                put(&mut out, 28, vpage_shift);
            }
            PoolVerb::Return(key) => {
                put(&mut out, 8, 2);
                put(&mut out, 24, key.number);
                put_u64(&mut out, 32, key.secret);
            }
            PoolVerb::Leave(key) => {
                put(&mut out, 8, 3);
                put(&mut out, 24, key.number);
                put_u64(&mut out, 32, key.secret);
            }
        }
        out
    }

    /// Reads its bytes from the socket.
    pub fn decode(bytes: &[u8]) -> Result<PoolAsk, GreetingError> {
        check(bytes, POOL_MAGIC, Self::BYTES)?;
        let key = GrantKey { number: get(bytes, 24), secret: get_u64(bytes, 32) };
        let verb = match get(bytes, 8) {
            1 => PoolVerb::Grant {
                node: get(bytes, 12).cast_signed(),
                bytes: get_u64(bytes, 16),
                vpage_shift: get(bytes, 28),
            },
            2 => PoolVerb::Return(key),
            3 => PoolVerb::Leave(key),
            other => return Err(GreetingError::Status(other)),
        };
        Ok(PoolAsk(verb))
    }
}

impl PoolAnswer {
    /// Bytes of an answer.
    pub const BYTES: usize = 40;

    /// An answer without a segment.
    #[must_use]
    pub fn only(status: PoolStatus) -> PoolAnswer {
        let key = GrantKey { number: 0, secret: 0 };
        PoolAnswer { status, key, bytes: 0, is_emulated: false, is_file: false }
    }

    /// Its bytes on the socket.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        put(&mut out, 0, POOL_MAGIC);
        put(&mut out, 4, WIRE_VERSION);
        put(&mut out, 8, self.status as u32);
        put(&mut out, 12, self.key.number);
        put_u64(&mut out, 16, self.bytes);
        let flag = |is: bool, flag: u32| if is { flag } else { 0 };
        put(&mut out, 24, flag(self.is_emulated, POOL_EMULATED) | flag(self.is_file, POOL_FILE));
        put_u64(&mut out, 32, self.key.secret);
        out
    }

    /// Reads its bytes from the socket.
    pub fn decode(bytes: &[u8]) -> Result<PoolAnswer, GreetingError> {
        check(bytes, POOL_MAGIC, Self::BYTES)?;
        let status = match get(bytes, 8) {
            0 => PoolStatus::Ok,
            1 => PoolStatus::None,
            2 => PoolStatus::Exhausted,
            3 => PoolStatus::Refused,
            other => return Err(GreetingError::Status(other)),
        };
        Ok(PoolAnswer {
            status,
            key: GrantKey { number: get(bytes, 12), secret: get_u64(bytes, 32) },
            bytes: get_u64(bytes, 16),
            is_emulated: get(bytes, 24) & POOL_EMULATED != 0,
            is_file: get(bytes, 24) & POOL_FILE != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn requests_and_answers_are_read_as_written(
            node: i32, bytes: u64, number: u32, secret: u64, vpage_shift: u32,
            is_emulated: bool, is_file: bool,
        ) {
            let key = GrantKey { number, secret };
            for verb in [
                PoolVerb::Grant { node, bytes, vpage_shift },
                PoolVerb::Return(key),
                PoolVerb::Leave(key),
            ] {
                let encoded = PoolAsk(verb).encode();
                prop_assert!(PoolAsk::is_one(&encoded));
                prop_assert_eq!(PoolAsk::decode(&encoded), Ok(PoolAsk(verb)));
            }
            let status = PoolStatus::Exhausted;
            let answer = PoolAnswer { status, key, bytes, is_emulated, is_file };
            prop_assert_eq!(PoolAnswer::decode(&answer.encode()), Ok(answer));
        }

        #[test]
        fn garbage_never_panics(mut bytes in proptest::collection::vec(any::<u8>(), 0..48)) {
            let _ = (PoolAsk::decode(&bytes), PoolAnswer::decode(&bytes));
            if bytes.len() >= 8 {
                put(&mut bytes, 0, POOL_MAGIC);
                put(&mut bytes, 4, WIRE_VERSION);
            }
            let _ = (PoolAsk::decode(&bytes), PoolAnswer::decode(&bytes));
        }
    }
}
