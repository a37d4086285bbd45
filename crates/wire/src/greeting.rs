//! The greeting: one datagram each way over a `SOCK_SEQPACKET` socket. In: bytes. Out: [`Hello`],
//! [`Welcome`], or an error. Knows nothing of sockets, or of the memfd that comes with a hello.

use crate::layout::{MAGIC, WIRE_VERSION};

/// The first message of a hosted process; its memfd comes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Process id, as the process sees it. The daemon uses the socket's credentials instead.
    pub pid: u32,
    /// Process id of the process that forked it, as that one sees itself; 0 = none. Not the number
    /// of its session: a process forks before the daemon has answered it.
    pub parent_pid: u32,
    /// Bytes of the memfd.
    pub total_bytes: u64,
    /// Where the program that it runs has its random bytes (`AT_RANDOM`): it is another after an
    /// exec. 0: unknown.
    pub image: u64,
}

/// The daemon's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Whether the session is accepted.
    pub status: Status,
    /// Number of the session, from 1; 0 when refused.
    pub session: u32,
}

/// Whether a session is accepted, or why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    /// It stands.
    Ok = 0,
    /// The runtime has another version.
    RefusedVersion = 1,
    /// Another user's process.
    RefusedUser = 2,
    /// Too many sessions.
    RefusedFull = 3,
    /// No memfd, or not sealed, or of the wrong shape.
    RefusedMemfd = 4,
    /// In a pid namespace that the daemon does not see into.
    RefusedNamespace = 5,
}

/// Why a datagram is not a greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GreetingError {
    /// Too short or too long.
    #[error("the greeting has {got} bytes, not {want}; is the peer a Tiercel process?")]
    Size {
        /// Bytes received.
        got: usize,
        /// Bytes of a greeting.
        want: usize,
    },
    /// Not ours.
    #[error("the greeting does not begin with Tiercel's magic; is the peer a Tiercel process?")]
    Magic,
    /// Of another version.
    #[error("the peer speaks wire version {0}, not {WIRE_VERSION}; install matching versions")]
    Version(u32),
    /// An unknown status.
    #[error("the welcome carries unknown status {0}")]
    Status(u32),
}

impl Hello {
    /// Bytes of a hello.
    pub const BYTES: usize = 32;

    /// As it goes over the socket.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        put(&mut out, 0, MAGIC);
        put(&mut out, 4, WIRE_VERSION);
        put(&mut out, 8, self.pid);
        put(&mut out, 12, self.parent_pid);
        put_u64(&mut out, 16, self.total_bytes);
        put_u64(&mut out, 24, self.image);
        out
    }

    /// From the socket.
    pub fn decode(bytes: &[u8]) -> Result<Hello, GreetingError> {
        check(bytes, MAGIC, Self::BYTES)?;
        let (pid, parent_pid) = (get(bytes, 8), get(bytes, 12));
        let (total_bytes, image) = (get_u64(bytes, 16), get_u64(bytes, 24));
        Ok(Hello { pid, parent_pid, total_bytes, image })
    }
}

impl Welcome {
    /// Bytes of a welcome.
    pub const BYTES: usize = 16;

    /// As it goes over the socket.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        put(&mut out, 0, MAGIC);
        put(&mut out, 4, WIRE_VERSION);
        put(&mut out, 8, self.status as u32);
        put(&mut out, 12, self.session);
        out
    }

    /// From the socket.
    pub fn decode(bytes: &[u8]) -> Result<Welcome, GreetingError> {
        check(bytes, MAGIC, Self::BYTES)?;
        let status = match get(bytes, 8) {
            0 => Status::Ok,
            1 => Status::RefusedVersion,
            2 => Status::RefusedUser,
            3 => Status::RefusedFull,
            4 => Status::RefusedMemfd,
            5 => Status::RefusedNamespace,
            other => return Err(GreetingError::Status(other)),
        };
        Ok(Welcome { status, session: get(bytes, 12) })
    }
}

/// Every message begins with its kind and a version.
pub(crate) fn check(bytes: &[u8], magic: u32, want: usize) -> Result<(), GreetingError> {
    if bytes.len() != want {
        return Err(GreetingError::Size { got: bytes.len(), want });
    }
    if get(bytes, 0) != magic {
        return Err(GreetingError::Magic);
    }
    match get(bytes, 4) {
        WIRE_VERSION => Ok(()),
        other => Err(GreetingError::Version(other)),
    }
}

pub(crate) fn put(out: &mut [u8], at: usize, value: u32) {
    out[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

pub(crate) fn get(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

pub(crate) fn put_u64(out: &mut [u8], at: usize, value: u64) {
    out[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

pub(crate) fn get_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from(get(bytes, at)) | u64::from(get(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_kind_of_foreign_greeting_has_its_own_error() {
        let good = Hello { pid: 1, parent_pid: 2, total_bytes: 3, image: 4 }.encode();
        assert_eq!(Hello::decode(&good[1..]), Err(GreetingError::Size { got: 31, want: 32 }));
        let mut bad = good;
        bad[0] ^= 1;
        assert_eq!(Hello::decode(&bad), Err(GreetingError::Magic));
        let mut bad = good;
        bad[4] = 99;
        assert_eq!(Hello::decode(&bad), Err(GreetingError::Version(99)));
        let mut bad = Welcome { status: Status::Ok, session: 1 }.encode();
        bad[8] = 77;
        assert_eq!(Welcome::decode(&bad), Err(GreetingError::Status(77)));
    }

    proptest! {
        #[test]
        fn hello_and_welcome_are_read_as_written(
            pid: u32, parent_pid: u32, total_bytes: u64, image: u64,
        ) {
            let hello = Hello { pid, parent_pid, total_bytes, image };
            prop_assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
            let welcome = Welcome { status: Status::RefusedFull, session: pid };
            prop_assert_eq!(Welcome::decode(&welcome.encode()), Ok(welcome));
        }

        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Hello::decode(&bytes);
            let _ = Welcome::decode(&bytes);
        }
    }
}
