//! Which machine the user wants: a name, and corrections of what is found or described.
//! In: `machine = "spr-cxl"`, or a `[machine]` table with `[[machine.node]]` entries.
//! Out: [`MachineChoice`]. Knows nothing of files; the caller finds the machine.

use crate::text::{NodeOverride, Overrides};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// A machine by name, with what the user knows better.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MachineChoice {
    /// A description's file or a built-in name; empty: this machine.
    pub name: String,
    /// Corrections of that machine's nodes.
    pub overrides: Overrides,
}

impl From<&str> for MachineChoice {
    fn from(name: &str) -> MachineChoice {
        MachineChoice { name: name.to_owned(), overrides: Overrides::default() }
    }
}

/// The longer way to write it.
#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Table {
    name: String,
    node: Vec<NodeOverride>,
}

impl Serialize for MachineChoice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.overrides.nodes.is_empty() {
            return self.name.serialize(serializer);
        }
        let (name, node) = (self.name.clone(), self.overrides.nodes.clone());
        Table { name, node }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for MachineChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<MachineChoice, D::Error> {
        deserializer.deserialize_any(Either)
    }
}

/// Not an untagged enum: that forgets where in the file something is wrong.
struct Either;

impl<'de> Visitor<'de> for Either {
    type Value = MachineChoice;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a machine's name, or a table with `name` and `[[machine.node]]` entries")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<MachineChoice, E> {
        Ok(name.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<MachineChoice, A::Error> {
        let Table { name, node } = Table::deserialize(MapAccessDeserializer::new(map))?;
        Ok(MachineChoice { name, overrides: Overrides { nodes: node } })
    }
}
