//! Machine descriptions that come with Tiercel: the files of lab/machines, compiled in.
//! In: a name. Out: the [`Machine`]; and a modelled machine for hosts with one kind of memory.
//! Knows nothing of files at run time.

use crate::MachineError;
use crate::machine::{Machine, Node, NodeId};

macro_rules! builtin {
    ($($name:literal),* $(,)?) => {
        const TEXTS: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../../lab/machines/", $name, ".toml")))),*];
        /// Names that [`Machine::builtin`] knows, alphabetical.
        pub const BUILTIN_NAMES: &[&str] = &[$($name),*];
    };
}

builtin!(
    "cascadelake-optane",
    "emr-two-socket",
    "four-cxl",
    "grace",
    "icelake-optane",
    "optane-oam",
    "pcm",
    "spr-cxl",
    "spr-vmem",
    "two-socket-optane",
    "xeonmax-9462",
    "xeonmax-9480",
    "xeonmax-hbm",
);

impl Machine {
    /// A machine that comes with Tiercel; `None` for a name that is not in [`BUILTIN_NAMES`].
    pub fn builtin(name: &str) -> Option<Result<Machine, MachineError>> {
        let (_, text) = TEXTS.iter().find(|(known, _)| *known == name)?;
        Some(Machine::from_toml(text))
    }

    /// This machine's first memory node split in two modelled ones: node 0 like the best memory of
    /// `like`, the next one like its worst, each as large as all memory here, both marked
    /// `modelled`. For hosts with one kind of memory, where moves are modelled.
    pub fn modelled(&self, like: &Machine) -> Machine {
        let tiers = like.tiers();
        let pick = |tier: Option<&crate::Tier>| tier.and_then(|t| like.node(*t.nodes.first()?));
        let cpus = crate::CpuList::new(self.cpus().into_iter().map(|(cpu, _)| cpu).collect());
        let node = |id: u16, name: &str, template: Option<&Node>| Node {
            id: NodeId(id),
            name: name.to_owned(),
            capacity_bytes: self.capacity_bytes(),
            free_bytes: None,
            cpus: if id == 0 { cpus.clone() } else { crate::CpuList::default() },
            socket: Some(0),
            initiators: vec![NodeId(0)],
            kernel_tier: None,
            tier: Some(id),
            modelled: true,
            ..template.cloned().unwrap_or_else(|| Node::new(NodeId(id), 0))
        };
        Machine {
            name: format!("modelled-{}", like.name),
            description: format!("{} with the modelled memory of {}", self.name, like.name),
            distances: vec![vec![10, 20], vec![20, 10]],
            nodes: vec![node(0, "fast", pick(tiers.first())), node(1, "slow", pick(tiers.last()))],
            links: Vec::new(),
        }
    }
}
