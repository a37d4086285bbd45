//! Answers to what is asked over the control socket.
//! In: a [`Request`], the daemon's state. Out: a line. Knows nothing of sockets.

use crate::clients::sites::{SiteRow, sort};
use crate::daemon::Daemon;
use crate::metrics::prometheus;
use crate::moves::log::LoggedMove;
use crate::net::protocol::{Order, Request, answer_line};
use crate::summary::Summary;
use serde::{Deserialize, Serialize};

/// What comes back; the variant's name is the request's.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// All figures.
    Status(Box<Summary>),
    /// Sites in the order asked for.
    Objects(Objects),
    /// Moves, newest first.
    Moves(Vec<LoggedMove>),
    /// The budget from now on.
    Budget(String),
    /// Prometheus text.
    Metrics(String),
    /// It will stop.
    Stop,
}

/// Objects by site.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Objects {
    /// Sites there are; rows may be fewer.
    pub sites: usize,
    /// The first ones in order.
    pub rows: Vec<SiteRow>,
}

impl Daemon {
    /// The line that answers `request`.
    pub(crate) fn answer(&mut self, request: &Request) -> Vec<u8> {
        answer_line(&match request {
            Request::Status => Answer::Status(Box::new(self.status())),
            Request::Objects { by, limit } => Answer::Objects(self.objects(*by, *limit)),
            Request::Moves { limit } => Answer::Moves(self.moves.last(*limit)),
            Request::Budget { fast } => {
                self.config.fast = *fast;
                Answer::Budget(fast.to_string())
            }
            Request::Metrics => Answer::Metrics(prometheus(&self.status())),
            Request::Stop => {
                self.pace.stopping = true;
                Answer::Stop
            }
        })
    }

    fn objects(&mut self, by: Order, limit: usize) -> Objects {
        self.note_fits();
        let fast_bytes = self.fast_budget_bytes();
        let present = self.clients.values_mut().map(|client| client.present(&self.ledger));
        let mut rows = self.sites.rows(present, fast_bytes);
        sort(&mut rows, by);
        let sites = rows.len();
        rows.truncate(limit);
        Objects { sites, rows }
    }
}
