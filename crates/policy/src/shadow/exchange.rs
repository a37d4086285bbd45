//! Greedy exchange by density: what is worth most outside for what is worth least inside.
//! In: extents with their rates, who is inside, room, costs. Out: who changes sides, at what cost.
//! Knows nothing of experts, nor whether the placement is real.
//!
//! ```text
//! take g for the victims V while (rate of g - rates of V) x horizon > c_up x g + c_down x V
//! ```
//! Candidates come in descending density, victims in ascending, so that a round ends at the first
//! that does not pay without victims.

/// An extent as an exchange sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Item {
    /// What all of it saves in the faster memory, nanoseconds a second.
    pub(crate) rate: f64,
    /// Bytes it takes up in the faster memory.
    pub(crate) bytes: u64,
    /// Of these, bytes that are there already.
    pub(crate) there: u64,
    pub(crate) is_inside: bool,
    /// It comes and goes without a move: a nursery.
    pub(crate) is_free: bool,
}

impl Item {
    pub(crate) fn missing(&self) -> u64 {
        self.bytes.saturating_sub(self.there)
    }

    /// Bytes to move so that it comes in.
    fn comes(&self) -> u64 {
        if self.is_free { 0 } else { self.missing() }
    }

    /// And so that it goes.
    fn goes(&self) -> u64 {
        if self.is_free { 0 } else { self.there }
    }

    /// What it gains by coming in whole: the part that is there is served fast already.
    pub(crate) fn gain(&self) -> f64 {
        self.rate * self.missing() as f64 / self.bytes.max(1) as f64
    }

    /// What it loses by going: only what is there is lost.
    pub(crate) fn loss(&self) -> f64 {
        self.rate * self.there as f64 / self.bytes.max(1) as f64
    }
}

/// The terms of an exchange.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Nanoseconds a byte that comes in or goes.
    pub(crate) up: f64,
    pub(crate) down: f64,
    /// How long rates are believed to last, seconds.
    pub(crate) horizon_s: f64,
    /// Bytes that may be inside, and that are.
    pub(crate) room: u64,
    pub(crate) used: u64,
    /// Nanoseconds that may be spent.
    pub(crate) bank: f64,
    /// Bytes that may move.
    pub(crate) bytes_left: u64,
}

/// What an exchange came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Exchanged {
    /// Who changes sides: victims before what takes their room.
    pub(crate) chosen: Vec<usize>,
    pub(crate) cost_ns: f64,
    /// Items, and bytes of them, that would pay and did not come in for want of bank.
    pub(crate) unpaid: (u64, u64),
    /// The same for want of the rate that the mover may have.
    pub(crate) limited: (u64, u64),
}

/// Candidates in a row that do not pay with their victims, after which a round ends.
const FAILS_MAX: u32 = 8;

/// Exchanges. `order`: items, the densest first.
pub(crate) fn exchange(items: &[Item], order: &[usize], terms: &Terms) -> Exchanged {
    let mut done = Exchanged::default();
    let mut victims = order.iter().rev().copied().filter(|at| items[*at].is_inside).peekable();
    let (mut used, mut bank, mut bytes_left) = (terms.used, terms.bank, terms.bytes_left);
    let mut fails = 0;
    for &at in order {
        let one = &items[at];
        if one.is_inside || one.missing() == 0 {
            continue;
        }
        let mut cost = terms.up * one.comes() as f64;
        if one.gain() * terms.horizon_s <= cost || fails > FAILS_MAX {
            break;
        }
        // Room that births filled beyond the target stays filled: for what comes, as much leaves.
        let room = terms.room.max(used);
        let (mut gain, mut freed, mut taken) = (one.gain(), 0, Vec::new());
        let mut moved = one.comes();
        while used + one.missing() > room + freed
            && let Some(&victim) = victims.peek()
            && (gain - items[victim].loss()) * terms.horizon_s > cost
        {
            victims.next();
            taken.push(victim);
            gain -= items[victim].loss();
            cost += terms.down * items[victim].goes() as f64;
            moved += items[victim].goes();
            freed += items[victim].there;
        }
        if used + one.missing() > room + freed || gain * terms.horizon_s <= cost {
            fails += 1;
            continue;
        }
        if cost > bank {
            done.unpaid = (done.unpaid.0 + 1, done.unpaid.1 + one.missing());
            fails += 1;
            continue;
        }
        if moved > bytes_left {
            done.limited = (1, one.missing());
            break;
        }
        fails = 0;
        used = (used + one.missing()).saturating_sub(freed);
        (bank, bytes_left) = (bank - cost, bytes_left - moved);
        done.cost_ns += cost;
        done.chosen.append(&mut taken);
        done.chosen.push(at);
    }
    done
}

/// Who has to leave so that no more than the room is used: the least dense of what can be moved.
pub(crate) fn evict(items: &[Item], order: &[usize], terms: &Terms) -> Exchanged {
    let mut done = Exchanged::default();
    let mut used = terms.used;
    for &at in order.iter().rev().filter(|at| items[**at].is_inside && !items[**at].is_free) {
        if used <= terms.room {
            break;
        }
        used = used.saturating_sub(items[at].there);
        done.cost_ns += terms.down * items[at].there as f64;
        done.chosen.push(at);
    }
    done
}
