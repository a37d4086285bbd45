//! Rows of sites in the orders that a user can request.
//! In: rows. Out: the same, sorted. Knows nothing of where they come from.

use std::path::Path;

use tiercel_symbolize::SiteFrame;

use crate::clients::sites::SiteRow;
use crate::net::protocol::Order;

/// Sorts rows for display. Ties go by hash, so that a screen does not flicker.
pub fn sort(rows: &mut [SiteRow], by: Order) {
    let accesses = |row: &SiteRow| row.used.reads + row.used.writes;
    let node = |row: &SiteRow| row.used.nodes.iter().max_by_key(|(_, b)| **b).map(|(n, _)| *n);
    rows.sort_by(|a, b| {
        let heat =
            || b.used.heat.total_cmp(&a.used.heat).then_with(|| accesses(b).cmp(&accesses(a)));
        let size = || b.used.peak_bytes.cmp(&a.used.peak_bytes);
        let order = match by {
            Order::Heat => heat().then_with(size),
            Order::Size => b.used.live_bytes.cmp(&a.used.live_bytes).then_with(size),
            Order::Site => a.frames.first().map(key).cmp(&b.frames.first().map(key)),
            Order::Node => node(a).cmp(&node(b)).then_with(heat),
        };
        order.then_with(|| a.hash.cmp(&b.hash))
    });
}

fn key(frame: &SiteFrame) -> (&Path, u64) {
    (&frame.path, frame.addr)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::site_use::Use;

    fn row(hash: u64, peak_bytes: u64, reads: u64) -> SiteRow {
        let used = Use { peak_bytes, reads, ..Use::default() };
        SiteRow { hash, used, ..SiteRow::default() }
    }

    #[test]
    fn each_order_sorts_by_its_key() {
        let mut rows = vec![row(1, 5, 1), row(2, 9, 7), row(3, 7, 7)];
        sort(&mut rows, Order::Heat);
        assert_eq!(rows.iter().map(|r| r.hash).collect::<Vec<_>>(), [2, 3, 1]);
        sort(&mut rows, Order::Size);
        assert_eq!(rows.iter().map(|r| r.hash).collect::<Vec<_>>(), [2, 3, 1]);
        sort(&mut rows, Order::Site);
        assert_eq!(rows.iter().map(|r| r.hash).collect::<Vec<_>>(), [1, 2, 3]);
    }
}
