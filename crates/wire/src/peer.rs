//! Who is at the other end of a unix socket, as the kernel reports it.
//! In: a connected socket. Out: credentials, a pidfd, datagrams with the credentials of their
//! sender and the descriptors beside them. Knows nothing of what a datagram says.

use rustix::io::Errno;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// `SO_PEERPIDFD` of include/uapi/asm-generic/socket.h, since Linux 6.5; libc has no name for it.
const SO_PEERPIDFD: libc::c_int = 77;

/// Descriptors taken from one datagram: the memfd and two userfaultfds of a hello. The kernel
/// closes the others, within the call that receives it.
pub const FDS_MAX: usize = 3;

/// Words of the control buffer: the credentials (32 bytes) and the descriptors (32 bytes), each
/// with its header and its padding (cmsg(3)).
const CONTROL_WORDS: usize = 8;

/// A process and its effective user, translated to our namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Process id; 0: the process is not in our pid namespace.
    pub pid: u32,
    /// Effective user id.
    pub uid: u32,
}

/// What was received at once.
#[derive(Debug)]
pub struct Datagram {
    /// Bytes written to the buffer.
    pub bytes: usize,
    /// The process that sent it; `None` unless `SO_PASSCRED` was set when it was sent.
    pub sender: Option<Credentials>,
    /// Unchecked descriptors, at most [`FDS_MAX`] and one that fits the padding.
    pub fds: Vec<OwnedFd>,
}

impl From<libc::ucred> for Credentials {
    fn from(raw: libc::ucred) -> Credentials {
        Credentials { pid: raw.pid.unsigned_abs(), uid: raw.uid }
    }
}

/// The process that connected, which may have ended since.
///
/// # Errors
/// When the socket is not a connected unix socket.
pub fn credentials(socket: BorrowedFd<'_>) -> Result<Credentials, Errno> {
    let raw = libc::ucred { pid: 0, uid: 0, gid: 0 };
    // SAFETY: the kernel writes a `ucred` for this option, which has no invalid bit pattern.
    unsafe { option(socket, libc::SO_PEERCRED, raw) }.map(Credentials::from)
}

/// A pidfd of the process that connected, never of another that got its number since.
///
/// # Errors
/// `NOPROTOOPT` before Linux 6.5; others when the process is gone for good.
pub fn pidfd(socket: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    // SAFETY: the kernel writes an int for this option.
    let raw = unsafe { option(socket, SO_PEERPIDFD, -1) }?;
    // SAFETY: the kernel installed this descriptor for us just now; nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// # Safety
/// The kernel must write a valid `T` for option `name` of level `SOL_SOCKET`.
unsafe fn option<T>(socket: BorrowedFd<'_>, name: libc::c_int, mut value: T) -> Result<T, Errno> {
    let want = libc::socklen_t::try_from(size_of::<T>()).map_err(|_| Errno::INVAL)?;
    let mut bytes = want;
    // SAFETY: `value` is writable for `bytes` bytes, and what the kernel writes is valid.
    let result = unsafe {
        let into = std::ptr::from_mut(&mut value).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, into, &raw mut bytes)
    };
    if result != 0 {
        return Err(last_error());
    }
    if bytes == want { Ok(value) } else { Err(Errno::INVAL) }
}

/// Receives one datagram into `buffer`, without waiting. What does not fit is cut off.
///
/// Closing what comes along may block for as long as its sender likes: not only the descriptors
/// that are returned, but also those beyond [`FDS_MAX`], which the kernel closes within this call.
///
/// # Errors
/// Those of recvmsg(2).
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<Datagram, Errno> {
    let mut control = [0u64; CONTROL_WORDS];
    let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all zeros is a valid `msghdr`.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut vector;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
    // SAFETY: the header points to buffers that outlive the call, with their lengths.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    let bytes = usize::try_from(got).map_err(|_| last_error())?;
    let mut datagram = Datagram { bytes, sender: None, fds: Vec::new() };
    // SAFETY: `message` is as the kernel left it, and its control buffer is alive and aligned.
    unsafe { read_control(&message, &mut datagram) };
    Ok(datagram)
}

/// # Safety
/// `message` was filled by recvmsg, its control buffer is alive, and its descriptors are not owned.
unsafe fn read_control(message: &libc::msghdr, datagram: &mut Datagram) {
    // SAFETY: by the contract the headers lie in the buffer; each part is read within its length.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while let Some(part) = header.as_ref() {
            let data = libc::CMSG_DATA(header);
            let bytes = part.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
            match (part.cmsg_level, part.cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    let fds = data.cast::<libc::c_int>();
                    for at in 0..bytes / size_of::<libc::c_int>() {
                        datagram.fds.push(OwnedFd::from_raw_fd(fds.add(at).read_unaligned()));
                    }
                }
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if bytes >= size_of::<libc::ucred>() => {
                    let raw = data.cast::<libc::ucred>().read_unaligned();
                    datagram.sender = Some(Credentials::from(raw));
                }
                _ => {}
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{
        AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
        SocketType, sockopt,
    };
    use std::io::IoSlice;
    use std::mem::MaybeUninit;
    use std::os::fd::AsFd;

    fn pair() -> (OwnedFd, OwnedFd) {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None).unwrap()
    }

    fn ourselves() -> Credentials {
        let uid = rustix::process::geteuid().as_raw();
        Credentials { pid: std::process::id(), uid }
    }

    #[test]
    fn a_peer_is_known_by_number_and_pidfd() {
        let (ours, _theirs) = pair();
        assert_eq!(credentials(ours.as_fd()), Ok(ourselves()));
        match pidfd(ours.as_fd()) {
            Ok(_) | Err(Errno::NOPROTOOPT) => {}
            Err(error) => panic!("{error}"),
        }
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(credentials(file.as_fd()), Err(Errno::NOTSOCK));
    }

    #[test]
    fn a_datagram_brings_its_sender_and_its_descriptors() {
        let (ours, theirs) = pair();
        sockopt::set_socket_passcred(&ours, true).unwrap();
        for count in 0..6 {
            let fds = vec![theirs.as_fd(); count];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(6))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            assert!(fds.is_empty() || ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
            let slices = [IoSlice::new(b"abc")];
            rustix::net::sendmsg(&theirs, &slices, &mut ancillary, SendFlags::empty()).unwrap();
            let mut buffer = [0u8; 8];
            let datagram = receive(ours.as_fd(), &mut buffer).unwrap();
            assert_eq!((datagram.bytes, &buffer[..3]), (3, &b"abc"[..]));
            assert_eq!(datagram.sender, Some(ourselves()));
            assert_eq!(datagram.fds.len(), count.min(4), "3, and one in the padding");
        }
        assert_eq!(receive(ours.as_fd(), &mut [0u8; 8]).unwrap_err(), Errno::AGAIN);
    }

    #[test]
    fn a_datagram_without_credentials_has_no_sender() {
        let (ours, theirs) = pair();
        rustix::net::send(&theirs, b"a", SendFlags::empty()).unwrap();
        assert_eq!(receive(ours.as_fd(), &mut [0u8; 8]).unwrap().sender, None);
    }
}
