//! Questions and answers between the two processes of a daemon.
//! In: values that serde knows, and descriptors. Out: the same at the other end. Knows nothing of
//! what they mean.
//!
//! ```text
//! header: bytes of the body u32, descriptors u32 (beside it: SCM_RIGHTS)   body: postcard
//! ```
//!
//! The front may be under the control of an attacker: lengths are bounded before memory is taken
//! for them, and an end that breaks the format loses the channel.

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Longest body, bytes: the samples of one drain (65,536 of at most 64 bytes) four times.
const BODY_BYTES_MAX: usize = 16 << 20;
/// Descriptors of one message: no question has more than one.
const FDS_MAX: usize = 1;
const HEADER_BYTES: usize = 8;

/// One end of a connection.
#[derive(Debug)]
pub struct Channel {
    stream: UnixStream,
}

impl Channel {
    /// Two ends that are connected to each other.
    pub fn pair() -> io::Result<(Channel, Channel)> {
        let (one, other) = UnixStream::pair()?;
        Ok((Channel::from(one), Channel::from(other)))
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// When the other end is gone or breaks the format.
    pub fn call<Q: Serialize, A: DeserializeOwned>(
        &mut self,
        question: &Q,
        fd: Option<BorrowedFd<'_>>,
    ) -> io::Result<(A, Option<OwnedFd>)> {
        self.send(question, fd)?;
        self.receive()?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Sends one message.
    pub fn send<T: Serialize>(&mut self, value: &T, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let body = postcard::to_stdvec(value).map_err(io::Error::other)?;
        let bytes = u32::try_from(body.len()).map_err(io::Error::other)?;
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&bytes.to_ne_bytes());
        header[4..].copy_from_slice(&u32::from(fd.is_some()).to_ne_bytes());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        if let Some(fd) = &fd {
            beside.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(fd)));
        }
        let sent = retry(|| {
            let parts = [IoSlice::new(&header)];
            rustix::net::sendmsg(&self.stream, &parts, &mut beside, SendFlags::NOSIGNAL)
        })?;
        self.stream.write_all(&header[sent..])?;
        self.stream.write_all(&body)
    }

    /// The next message; `None` when the other end is closed.
    ///
    /// # Errors
    /// When the message is longer than any, cut off, or not what is expected here.
    pub fn receive<T: DeserializeOwned>(&mut self) -> io::Result<Option<(T, Option<OwnedFd>)>> {
        let mut header = [0; HEADER_BYTES];
        let (got, fd) = self.receive_header(&mut header)?;
        if got == 0 {
            return Ok(None);
        }
        self.stream.read_exact(&mut header[got..])?;
        let word = |at: usize| -> usize {
            let bytes = header[at..at + 4].try_into().expect("four bytes");
            u32::from_ne_bytes(bytes) as usize
        };
        if word(0) > BODY_BYTES_MAX || word(4) != usize::from(fd.is_some()) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut body = vec![0; word(0)];
        self.stream.read_exact(&mut body)?;
        let value = postcard::from_bytes(&body).map_err(io::Error::other)?;
        Ok(Some((value, fd)))
    }

    fn receive_header(&mut self, header: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let got = retry(|| {
            let parts = &mut [IoSliceMut::new(header)];
            rustix::net::recvmsg(&self.stream, parts, &mut beside, RecvFlags::CMSG_CLOEXEC)
        })?;
        let rights = beside.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        let fd = rights.flatten().next();
        Ok((got.bytes, fd))
    }
}

fn retry<T>(call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    rustix::io::retry_on_intr(call).map_err(Into::into)
}

impl From<UnixStream> for Channel {
    fn from(stream: UnixStream) -> Channel {
        Channel { stream }
    }
}

impl From<OwnedFd> for Channel {
    fn from(fd: OwnedFd) -> Channel {
        Channel { stream: fd.into() }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
impl Channel {
    pub(crate) fn into_fd(self) -> OwnedFd {
        self.stream.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_descriptors_arrive() {
        let (mut ours, mut theirs) = Channel::pair().unwrap();
        let (mut pipe, given) = UnixStream::pair().unwrap();
        let served = std::thread::spawn(move || {
            let (question, fd) = theirs.receive::<Vec<u64>>().unwrap().unwrap();
            UnixStream::from(fd.expect("a descriptor")).write_all(b"x").unwrap();
            theirs.send(&question.iter().sum::<u64>(), None).unwrap();
            assert!(theirs.receive::<u64>().unwrap().is_none(), "the other end is closed");
        });
        let (sum, fd) = ours.call::<_, u64>(&vec![7u64; 300_000], Some(given.as_fd())).unwrap();
        assert_eq!(sum, 2_100_000);
        assert!(fd.is_none());
        drop(given);
        let mut text = String::new();
        pipe.read_to_string(&mut text).unwrap();
        assert_eq!(text, "x");
        drop(ours);
        served.join().unwrap();
    }

    #[test]
    fn what_breaks_the_format_is_an_error() {
        let message = |length: u32, fds: u32, body: &[u8]| {
            [&length.to_ne_bytes(), &fds.to_ne_bytes(), body].concat()
        };
        for bytes in [
            message(u32::MAX, 0, b""),          // longer than any
            message(8, 0, b"abc"),              // cut off
            message(1, 1, b"\x01"),             // a descriptor is missing
            message(4, 0, b"\xff\xff\xff\xff"), // not a number
            vec![1, 2, 3],                      // not even a header
        ] {
            let (mut ours, theirs) = Channel::pair().unwrap();
            let mut raw = theirs.stream;
            raw.write_all(&bytes).unwrap();
            drop(raw);
            assert!(ours.receive::<u64>().is_err(), "{bytes:?}");
        }
    }
}
