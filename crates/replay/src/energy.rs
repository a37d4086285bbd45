//! What a run takes: bytes through each memory, and joules.
//! In: lines read and written back, moves, time. Out: joules. Knows nothing of who decides.
//!
//! ```text
//! accesses   bytes read and written back, whole blocks of memories that read blocks (OAM Eq. 3)
//! moves      each byte is read here and written there
//! holding    static power of the provisioned bytes, over the whole run
//! ```

use tiercel_machine::Node;

/// Joules of a picojoule per bit, for each byte.
const J_PER_BYTE_OF_PJ_PER_BIT: f64 = 8.0 * 1e-12;
/// Nanoseconds of a second.
const NS_PER_S: f64 = 1e9;

/// Bytes through a memory, by accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Traffic {
    /// Read.
    pub read_bytes: f64,
    /// Written back.
    pub written_bytes: f64,
}

/// What a memory's bytes cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NodeEnergy {
    read_j_per_byte: f64,
    write_j_per_byte: f64,
    static_w_per_byte: f64,
}

/// Energy of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Joules {
    /// Of accesses.
    pub accesses_j: f64,
    /// Of moves.
    pub moves_j: f64,
    /// Of holding data, with static power as the machine's description has it.
    pub holding_j: f64,
}

/// What moves and provisions of a run, in the order fast, slow.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// By accesses.
    pub traffic: [Traffic; 2],
    /// Bytes moved to each memory.
    pub moved_bytes: [u64; 2],
    /// Bytes of each that are there for the program.
    pub provisioned_bytes: [u64; 2],
    /// How long the run took, nanoseconds.
    pub time_ns: f64,
}

impl NodeEnergy {
    /// Of a node; `None` where its energies are unknown. A write that is unknown costs what a read
    /// costs.
    pub fn of(node: &Node) -> Option<NodeEnergy> {
        let energy = node.energy;
        let read_pj_per_bit = energy.read_pj_per_bit?;
        let write_pj_per_bit = energy.write_pj_per_bit.unwrap_or(read_pj_per_bit);
        Some(NodeEnergy {
            read_j_per_byte: read_pj_per_bit * J_PER_BYTE_OF_PJ_PER_BIT,
            write_j_per_byte: write_pj_per_bit * J_PER_BYTE_OF_PJ_PER_BIT,
            static_w_per_byte: energy.static_w.unwrap_or(0.0) / node.capacity_bytes.max(1) as f64,
        })
    }
}

impl NodeEnergy {
    /// Of bytes through this memory, joules.
    pub fn accesses_j(&self, traffic: &Traffic) -> f64 {
        traffic.read_bytes * self.read_j_per_byte + traffic.written_bytes * self.write_j_per_byte
    }

    /// Of a byte that moves here from another memory, joules.
    pub fn move_j_per_byte(&self, from: &NodeEnergy) -> f64 {
        self.write_j_per_byte + from.read_j_per_byte
    }
}

impl Joules {
    /// What a run takes in memories that cost so much, fast and slow.
    pub fn of(costs: &[NodeEnergy; 2], usage: &Usage) -> Joules {
        let mut joules = Joules::default();
        for at in 0..2 {
            let (here, there, traffic) = (costs[at], costs[1 - at], usage.traffic[at]);
            joules.accesses_j += here.accesses_j(&traffic);
            joules.moves_j += usage.moved_bytes[at] as f64 * here.move_j_per_byte(&there);
            let held_w = here.static_w_per_byte * usage.provisioned_bytes[at] as f64;
            joules.holding_j += held_w * usage.time_ns / NS_PER_S;
        }
        joules
    }

    /// All of it, with static power so many times what the description has.
    pub fn total_j(&self, static_times: f64) -> f64 {
        self.accesses_j + self.moves_j + self.holding_j * static_times
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiercel_machine::Machine;

    fn near(is: f64, should: f64) {
        assert!((is - should).abs() < should * 1e-9, "{is} is not {should}");
    }

    #[test]
    fn joules_by_hand_on_table_2_of_oam() {
        let machine = Machine::builtin("pcm").unwrap().unwrap();
        let costs = [0, 1].map(|at| NodeEnergy::of(&machine.nodes[at]).unwrap());
        let traffic = |read_bytes, written_bytes| Traffic { read_bytes, written_bytes };
        let usage = Usage {
            traffic: [traffic(1e9, 1e8), traffic(2e9, 3e8)],
            moved_bytes: [4096, 8192],
            provisioned_bytes: [1 << 30, 4 << 30],
            time_ns: 2e9,
        };
        let joules = Joules::of(&costs, &usage);
        let pj = 1e9 * 1.17 + 1e8 * 0.39 + 2e9 * 2.47 + 3e8 * 16.82;
        near(joules.accesses_j, pj * 8e-12);
        near(joules.moves_j, 8e-12 * (4096.0 * (0.39 + 2.47) + 8192.0 * (16.82 + 1.17)));
        // A 32nd of 0.329 W for two seconds; PCM has none.
        near(joules.holding_j, 0.329 / 32.0 * 2.0);
        near(joules.total_j(8.0), joules.accesses_j + joules.moves_j + 8.0 * joules.holding_j);
    }

    #[test]
    fn energies_that_are_unknown_give_none() {
        let machine = Machine::builtin("optane-oam").unwrap().unwrap();
        assert!(NodeEnergy::of(&machine.nodes[1]).is_none());
    }
}
