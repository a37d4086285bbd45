//! Answers to requests over the control socket, as data.
//! In: figures, rows. Out: [`Answer`]. Knows nothing of sockets, or of where the data comes from.

use crate::clients::sites::{SiteRow, sort};
use crate::moves::log::LoggedMove;
use crate::net::protocol::Order;
use crate::summary::Summary;
use serde::{Deserialize, Serialize};

/// What comes back; the variant's name is the request's.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// All figures.
    Status(Box<Summary>),
    /// Sites in the requested order.
    Objects(Objects),
    /// Moves, newest first.
    Moves(Vec<LoggedMove>),
    /// The budget from now on.
    Budget(String),
    /// Prometheus text.
    Metrics(String),
    /// The daemon will end.
    Stop,
}

/// Objects by site.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Objects {
    /// How many sites there are; rows may be fewer.
    pub sites: usize,
    /// The first ones in order.
    pub rows: Vec<SiteRow>,
}

impl Objects {
    /// The first `limit` of all rows in order.
    pub(crate) fn of(mut rows: Vec<SiteRow>, by: Order, limit: usize) -> Objects {
        sort(&mut rows, by);
        let sites = rows.len();
        rows.truncate(limit);
        Objects { sites, rows }
    }
}
