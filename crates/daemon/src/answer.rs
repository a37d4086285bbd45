//! Answers to requests over the control socket, as data.
//! In: figures, rows. Out: [`Answer`]. Knows nothing of sockets, or of where the data comes from.

use crate::clients::order::sort;
use crate::clients::processes::ProcessRow;
use crate::clients::sites::SiteRow;
use crate::moves::log::LoggedMove;
use crate::net::control::UNREAD_BYTES_MAX;
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
    #[serde(rename = "objects")]
    Sites(SiteRows),
    /// Hosted processes, those with most memory first.
    Processes(Vec<ProcessRow>),
    /// Moves, newest first.
    Moves(Vec<LoggedMove>),
    /// The budget from now on.
    Budget(String),
    /// Prometheus text.
    Metrics(String),
    /// The daemon will end.
    Stop,
}

/// What objects did, by site.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SiteRows {
    /// How many sites there are; rows may be fewer.
    pub sites: usize,
    /// The first ones in order.
    pub rows: Vec<SiteRow>,
}

/// Bytes of the rows in an answer: with the rest of it less than what may wait for a slow reader
/// ([`UNREAD_BYTES_MAX`]). Stacks of 30 frames with long paths would take 10 MiB for 1000 rows.
const ROWS_BYTES_MAX: usize = UNREAD_BYTES_MAX / 4 * 3;

impl SiteRows {
    /// The first `limit` of all rows in order, as far as there is room in an answer.
    pub(crate) fn of(mut rows: Vec<SiteRow>, by: Order, limit: usize) -> SiteRows {
        sort(&mut rows, by);
        let sites = rows.len();
        rows.truncate(limit);
        let mut bytes = 0;
        let fitting = rows.iter().take_while(|row| {
            // A row that cannot be written makes an error of the answer.
            bytes += serde_json::to_vec(row).map_or(0, |text| text.len() + 1);
            bytes <= ROWS_BYTES_MAX
        });
        let fitting = fitting.count();
        rows.truncate(fitting);
        SiteRows { sites, rows }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::protocol::{ROWS_MAX, answer_line};
    use std::path::Path;
    use tiercel_symbolize::SiteFrame;

    /// Rows with as many frames, and as long paths, as a program can state.
    fn rows() -> Vec<SiteRow> {
        let path: std::sync::Arc<Path> = Path::new(&"\u{1}".repeat(224)).into();
        let frame = |addr| SiteFrame { path: path.clone(), build_id: [9; 20].into(), addr };
        let row = |hash| SiteRow {
            hash,
            uid: 1000,
            program: "p".into(),
            frames: (0..30).map(frame).collect(),
            ..SiteRow::default()
        };
        (0..ROWS_MAX as u64).map(row).collect()
    }

    #[test]
    fn an_answer_of_deep_stacks_is_shortened_and_not_dropped() {
        let sites = SiteRows::of(rows(), Order::Site, ROWS_MAX);
        assert_eq!(sites.sites, ROWS_MAX);
        assert!(sites.rows.len() > 50, "{} rows", sites.rows.len());
        let line = answer_line(&Answer::Sites(sites));
        assert!(line.len() <= UNREAD_BYTES_MAX, "{} bytes", line.len());
    }
}
