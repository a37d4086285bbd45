//! Machines and overrides as TOML.
//! In: text. Out: a [`Machine`] that keeps the invariants of its type, or what is wrong and where.
//! Knows nothing of files.

use serde::{Deserialize, Serialize};

use crate::curve::CurveLine;
use crate::machine::{Basis, Energy, Figures, Kind, MAX_NODES, Machine, Node, NodeId};
use crate::{MachineError, units};

/// What a user knows better than the machine says, per node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Overrides {
    /// One entry per node to correct.
    #[serde(default, rename = "node", skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeOverride>,
}

/// The user's word on one node; fields left out stay as found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeOverride {
    /// Which node.
    pub id: NodeId,
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What the memory is made of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<Kind>,
    /// Access tier, 0 is the best; nodes with the same number have equal rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<u16>,
    /// Memory to believe in; 0 keeps everything off the node.
    #[serde(
        default,
        rename = "capacity",
        with = "units::option_bytes",
        skip_serializing_if = "Option::is_none"
    )]
    pub capacity_bytes: Option<u64>,
    /// Single figures to replace.
    #[serde(default, skip_serializing_if = "Figures::is_empty")]
    pub figures: Figures,
    /// Single energy figures to replace.
    #[serde(default, skip_serializing_if = "Energy::is_empty")]
    pub energy: Energy,
    /// A whole curve to replace; empty keeps what is there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub curve: Vec<CurveLine>,
}

impl Machine {
    /// Reads a machine description. Unknown keys and wrong types are refused with line and column,
    /// impossible machines with the node or link that is wrong.
    pub fn from_toml(text: &str) -> Result<Machine, MachineError> {
        let mut machine: Machine = toml::from_str(text)?;
        machine.nodes.sort_by_key(|node| node.id);
        machine.links.sort_by_key(|link| (link.from, link.to));
        machine.fill_initiators();
        machine.validate()?;
        Ok(machine)
    }

    /// The description of this machine; `from_toml` reads the same machine back.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a machine is plain data that TOML can express")
    }

    /// Replaces what the user knows better. Refuses nodes that do not exist and impossible values;
    /// the machine is unchanged then.
    pub fn apply(&mut self, overrides: &Overrides) -> Result<(), MachineError> {
        let mut corrected = self.clone();
        for wanted in &overrides.nodes {
            let known: Vec<String> = self.nodes.iter().map(|node| node.id.to_string()).collect();
            let index = self.position(wanted.id).ok_or_else(|| MachineError::Invalid {
                place: format!("override of node {}", wanted.id),
                what: format!("there is no such node; the machine has {}", known.join(", ")),
            })?;
            corrected.nodes[index].correct(wanted);
        }
        corrected.validate()?;
        *self = corrected;
        Ok(())
    }

    /// Nodes that name no initiator get themselves when they have CPUs, else the nearest nodes with
    /// CPUs by distance, else those of the same socket, else all nodes with CPUs.
    pub(crate) fn fill_initiators(&mut self) {
        for index in 0..self.nodes.len() {
            let node = &self.nodes[index];
            let mut initiators = match () {
                _ if !node.initiators.is_empty() => node.initiators.clone(),
                _ if node.has_cpus() => vec![node.id],
                _ => self.nearest_with_cpus(node),
            };
            if node.has_cpus() && !initiators.contains(&node.id) {
                initiators.push(node.id);
            }
            initiators.sort_unstable();
            initiators.dedup();
            self.nodes[index].initiators = initiators;
        }
    }

    fn nearest_with_cpus(&self, node: &Node) -> Vec<NodeId> {
        let with_cpus = || self.nodes.iter().filter(|other| other.has_cpus());
        let nearest = with_cpus().filter_map(|other| self.distance(other.id, node.id)).min();
        let same_socket = node.socket.is_some() && with_cpus().any(|o| o.socket == node.socket);
        with_cpus()
            .filter(|other| match nearest {
                Some(nearest) => self.distance(other.id, node.id) == Some(nearest),
                None => !same_socket || other.socket == node.socket,
            })
            .map(|other| other.id)
            .collect()
    }

    fn validate(&self) -> Result<(), MachineError> {
        if self.nodes.len() > MAX_NODES {
            return Err(MachineError::TooManyNodes { count: self.nodes.len(), limit: MAX_NODES });
        }
        if self.memory_nodes().next().is_none() {
            return invalid("machine", "no node has memory");
        }
        if let Some(pair) = self.nodes.windows(2).find(|pair| pair[0].id == pair[1].id) {
            return invalid(format!("node {}", pair[0].id), "appears twice");
        }
        if let Some(pair) = self.cpus().windows(2).find(|pair| pair[0].0 == pair[1].0) {
            let (cpu, nodes) = (pair[0].0, (pair[0].1, pair[1].1));
            return invalid(
                format!("cpu {cpu}"),
                format!("is on nodes {} and {}", nodes.0, nodes.1),
            );
        }
        self.nodes.iter().try_for_each(|node| self.validate_node(node))?;
        self.validate_distances()?;
        self.validate_links()
    }

    fn validate_node(&self, node: &Node) -> Result<(), MachineError> {
        let place = format!("node {}", node.id);
        validate_figures(&place, &node.figures)?;
        let Energy { read_pj_per_bit, write_pj_per_bit, static_w } = node.energy;
        let energies = [read_pj_per_bit, write_pj_per_bit, static_w];
        if energies.into_iter().flatten().any(|value| !value.is_finite() || value < 0.0) {
            return invalid(place, "an energy is negative or not a number");
        }
        if node.granularity_bytes.is_some_and(|bytes| !bytes.is_power_of_two()) {
            return invalid(place, "granularity_bytes must be a power of two");
        }
        let lacks_cpus = |id: &&NodeId| !self.node(**id).is_some_and(Node::has_cpus);
        if let Some(id) = node.initiators.iter().find(lacks_cpus) {
            return invalid(place, format!("initiator {id} is not a node with CPUs"));
        }
        validate_curve(&place, &node.curve)
    }

    fn validate_distances(&self) -> Result<(), MachineError> {
        let count = self.nodes.len();
        let square = self.distances.len() == count
            && self.distances.iter().all(|row| row.len() == count && !row.contains(&0));
        if self.distances.is_empty() || square {
            return Ok(());
        }
        invalid("distances", format!("must be {count} rows of {count} numbers above 0"))
    }

    fn validate_links(&self) -> Result<(), MachineError> {
        for link in &self.links {
            let place = format!("link {} -> {}", link.from, link.to);
            let Some(to) = self.node(link.to) else {
                return invalid(place, format!("there is no node {}", link.to));
            };
            if !self.node(link.from).is_some_and(Node::has_cpus) {
                return invalid(place, format!("node {} has no CPUs", link.from));
            }
            if to.is_near(link.from) {
                return invalid(place, "is the nearest initiator: put its figures on the node");
            }
            validate_figures(&place, &link.figures)?;
        }
        match self.links.windows(2).find(|p| (p[0].from, p[0].to) == (p[1].from, p[1].to)) {
            Some(pair) => {
                invalid(format!("link {} -> {}", pair[0].from, pair[0].to), "appears twice")
            }
            None => Ok(()),
        }
    }
}

impl Overrides {
    /// Reads `[[node]]` entries; unknown keys are refused with line and column.
    pub fn from_toml(text: &str) -> Result<Overrides, MachineError> {
        Ok(toml::from_str(text)?)
    }
}

impl Node {
    fn correct(&mut self, wanted: &NodeOverride) {
        if let Some(name) = &wanted.name {
            self.name.clone_from(name);
        }
        if let Some(kind) = wanted.kind {
            (self.kind, self.basis) = (kind, Basis::Given);
        }
        self.tier = wanted.tier.or(self.tier);
        self.capacity_bytes = wanted.capacity_bytes.unwrap_or(self.capacity_bytes);
        self.figures = wanted.figures.or(self.figures);
        self.energy = Energy {
            read_pj_per_bit: wanted.energy.read_pj_per_bit.or(self.energy.read_pj_per_bit),
            write_pj_per_bit: wanted.energy.write_pj_per_bit.or(self.energy.write_pj_per_bit),
            static_w: wanted.energy.static_w.or(self.energy.static_w),
        };
        if !wanted.curve.is_empty() {
            self.curve.clone_from(&wanted.curve);
        }
    }
}

impl Figures {
    /// These figures, and `other`'s where these are unknown.
    pub fn or(self, other: Figures) -> Figures {
        Figures {
            read_latency_ns: self.read_latency_ns.or(other.read_latency_ns),
            write_latency_ns: self.write_latency_ns.or(other.write_latency_ns),
            read_gb_s: self.read_gb_s.or(other.read_gb_s),
            write_gb_s: self.write_gb_s.or(other.write_gb_s),
        }
    }
}

fn validate_figures(place: &str, figures: &Figures) -> Result<(), MachineError> {
    let Figures { read_latency_ns, write_latency_ns, read_gb_s, write_gb_s } = *figures;
    let all = [read_latency_ns, write_latency_ns, read_gb_s, write_gb_s];
    if all.into_iter().flatten().all(|value| value.is_finite() && value > 0.0) {
        return Ok(());
    }
    invalid(place, "latency and bandwidth must exceed 0; leave unknown ones out")
}

fn validate_curve(place: &str, curve: &[CurveLine]) -> Result<(), MachineError> {
    let sane = |line: &CurveLine| {
        (0.0..=1.0).contains(&line.read_share)
            && line.idle_ns > 0.0
            && line.peak_ns >= line.idle_ns
            && line.peak_gb_s > 0.0
            && (0.0..=1.0).contains(&line.slope)
            && line.bend > 1.0
            && [line.peak_ns, line.peak_gb_s, line.bend].into_iter().all(f64::is_finite)
    };
    if !curve.iter().all(sane) {
        let what = "curve: read_share and slope 0 to 1, idle_ns above 0, peak_ns from idle_ns, \
                    peak_gb_s above 0, bend above 1";
        return invalid(place, what);
    }
    if !curve.windows(2).all(|pair| pair[0].read_share < pair[1].read_share) {
        return invalid(place, "curve: lines must ascend by read_share");
    }
    Ok(())
}

fn invalid<T>(place: impl Into<String>, what: impl Into<String>) -> Result<T, MachineError> {
    Err(MachineError::Invalid { place: place.into(), what: what.into() })
}
