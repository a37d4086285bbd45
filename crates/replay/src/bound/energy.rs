//! The bound on energy: what accesses and moves take at least, wherever everything lies when.
//! In: a stream, a machine with known energies, room. Out: joules. Knows nothing of prices: the
//! bound on time finds them, as each access to slow memory costs so much more here too.

use crate::bound::{Items, MoveCosts, lives_worth};
use crate::speed::Speeds;
use crate::stream::{Accesses, Stream, What};

/// Picojoules of a joule: in these the search has numbers as large as nanoseconds.
const PJ: f64 = 1e12;

/// A stream, and what its accesses take.
#[derive(Clone, Debug)]
pub struct EnergyItems {
    items: Items,
    costs: MoveCosts,
    /// With everything in fast memory, joules.
    all_fast_j: f64,
}

impl EnergyItems {
    /// Of a stream; `None` where the energies of a memory are unknown.
    pub fn new(stream: &Stream, speeds: &Speeds) -> Option<EnergyItems> {
        let [fast, slow] = speeds.energies?;
        let joules = |accesses: &Accesses, is_fast| {
            speeds.accesses_j(accesses, is_fast).expect("energies are known")
        };
        let worth = |one: &Accesses| (joules(one, false) - joules(one, true)) * PJ;
        let lives = lives_worth(stream, &worth);
        let of_event = |what: &What| match what {
            What::Accesses(accesses) => joules(accesses, true),
            What::Record(_) => 0.0,
        };
        Some(EnergyItems {
            items: Items::new(stream, &lives),
            costs: MoveCosts {
                promote_ns: fast.move_j_per_byte(&slow) * PJ,
                demote_ns: slow.move_j_per_byte(&fast) * PJ,
            },
            all_fast_j: stream.events.iter().map(|event| of_event(&event.what)).sum(),
        })
    }

    /// No run in so much fast memory takes less for its accesses and moves, joules.
    pub fn bound_j(&self, room_bytes: u64) -> f64 {
        let paid = self.items.paid(room_bytes, self.costs);
        self.all_fast_j + (paid.bound_ns - self.items.all_fast_ns()) / PJ
    }
}
