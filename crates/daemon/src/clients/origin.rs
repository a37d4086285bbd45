//! What made the objects of a site, where that is not a call with a stack, and sites that no
//! session has: symbols of static data.
//! In: kinds of sites as sessions state them, names of symbols. Out: [`Origin`]s, numbers of sites.
//! Knows nothing of what happened at a site.

use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::Arc;
use tiercel_symbolize::SiteFrame;
use tiercel_wire::SiteKind;
use tiercel_wire::layout::{SITES_MAX, SITES_NAMED};

/// What made the objects of a site, and how that is named.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// A call: its stack names it.
    #[default]
    Call,
    /// A call that mapped shared memory.
    Shared,
    /// A call that mapped a file privately.
    File,
    /// The loader or the kernel: this is the name.
    Data(Arc<str>),
}

impl Origin {
    /// From what a session says of a site.
    fn of(kind: SiteKind, frames: &[SiteFrame]) -> Origin {
        let module = || frames.first().map_or_else(String::new, SiteFrame::module_name);
        match kind {
            SiteKind::Call => Origin::Call,
            SiteKind::Shared => Origin::Shared,
            SiteKind::File => Origin::File,
            SiteKind::MainStack => Origin::Data("stack of main thread".into()),
            SiteKind::Stack => Origin::Data("stacks of threads".into()),
            SiteKind::Static => Origin::Data(format!("static data of {}", module()).into()),
            SiteKind::Constant => Origin::Data(format!("constants of {}", module()).into()),
        }
    }
}

/// The origins of one process's sites.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origins {
    /// By site number; the others are calls.
    known: HashMap<u32, Origin>,
    /// How many sites have numbers of ours.
    named: u32,
}

impl Origins {
    /// A session describes a site.
    pub(crate) fn learn(&mut self, number: u32, kind: SiteKind, frames: &[SiteFrame]) {
        if kind != SiteKind::Call {
            self.known.entry(number).or_insert_with(|| Origin::of(kind, frames));
        }
    }

    /// Names a site, whatever its session says.
    pub(crate) fn name(&mut self, number: u32, name: Arc<str>) {
        self.known.insert(number, Origin::Data(name));
    }

    /// A number that no session hands out; `None`: all are taken.
    pub(crate) fn take_number(&mut self) -> Option<u32> {
        let number = self.end();
        self.named += u32::from((number as usize) < SITES_MAX);
        ((number as usize) < SITES_MAX).then_some(number)
    }

    /// Numbers from here on are of no site.
    pub(crate) fn end(&self) -> u32 {
        u32::try_from(SITES_NAMED).expect("16 bits") + self.named
    }

    pub(crate) fn of(&self, number: u32) -> Origin {
        self.known.get(&number).cloned().unwrap_or_default()
    }
}
