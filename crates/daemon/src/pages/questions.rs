//! Answers requests on a control socket while processes are tiered.
//! In: a socket, who answers. Out: lines. Knows nothing of what a request means.

use std::time::{Duration, Instant};

use tiercel_machine::number::whole_ms;

use crate::net::control::Control;
use crate::net::poller::{Poller, Token};
use crate::net::protocol::Request;
use crate::net::socket_dir::ControlSocket;

/// See the module.
pub(super) struct Questions {
    control: Control,
    poller: Poller,
    began: Instant,
    // Last: its files are removed after everything else is closed.
    _socket: ControlSocket,
}

impl Questions {
    pub fn open(socket: ControlSocket) -> std::io::Result<Questions> {
        let poller = Poller::new()?;
        let uid = rustix::process::geteuid().as_raw();
        let control = Control::new(socket.listener.try_clone()?, uid, &poller)?;
        Ok(Questions { control, poller, began: Instant::now(), _socket: socket })
    }

    /// Answers what has come; waits for nothing. An answer is a line.
    pub fn poll(&mut self, answer: &mut dyn FnMut(&Request) -> Vec<u8>) {
        let now_ms = whole_ms(self.began.elapsed());
        self.control.drop_idle(now_ms);
        for token in self.poller.wait(Duration::ZERO).unwrap_or_default() {
            match token {
                Token::Control => self.control.accept(&self.poller, now_ms),
                Token::Peer(id) => {
                    for request in self.control.read(id, &self.poller, now_ms) {
                        self.control.send(id, &answer(&request), &self.poller);
                    }
                }
                Token::Clients | Token::Wake | Token::Client(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::protocol::{error_line, request_line};
    use crate::net::socket_dir::control_path;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_request_is_answered_and_the_socket_goes_away() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("t");
        let socket = ControlSocket::claim(&dir, "pages-1").unwrap();
        assert!(ControlSocket::claim(&dir, "pages-1").is_err(), "it is taken");
        let mut questions = Questions::open(socket).unwrap();
        let mut peer = UnixStream::connect(control_path(&dir, "pages-1")).unwrap();
        let request = Request::Why { pid: None, address: 7 };
        peer.write_all(&request_line(&request)).unwrap();
        let mut asked = Vec::new();
        while asked.is_empty() {
            questions.poll(&mut |request| {
                asked.push(request.clone());
                error_line("it is not known")
            });
        }
        assert_eq!(asked, [request]);
        let mut line = String::new();
        BufReader::new(&peer).read_line(&mut line).unwrap();
        assert!(line.contains("it is not known"), "{line}");
        drop(questions);
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
    }
}
