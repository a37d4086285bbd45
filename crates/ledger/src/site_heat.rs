//! What the objects of a site were like: heat by byte, so that new ones start as warm.
//! In: bytes that live, samples. Out: the mean of each site. Knows nothing of extents.
//!
//! The mean is over bytes and time: accesses of all objects of the site, over the bytes that lived
//! times how long they did. It fades as the averages of extents do, so that it follows phases.

use crate::extent::Extent;
use crate::ledger::Ledger;
use crate::row::{FRESH, Row};
use crate::site_history::SiteHistory;

impl Ledger {
    /// So many bytes of a site's objects came or went.
    pub(crate) fn count_live(&mut self, slot: u16, site: u32, bytes: i64) {
        let (now_ms, tick_ms) = (self.now_ms, self.config.tick_ms);
        let alpha = self.config.alpha;
        let Some(heat) = self.site_history(slot, site) else { return };
        heat.exposure += heat.lived(now_ms, tick_ms, alpha);
        heat.as_of_ms = now_ms;
        heat.live_bytes = heat.live_bytes.saturating_add_signed(bytes);
        let live_bytes = heat.live_bytes;
        self.process_mut(slot).flows.lives(site, live_bytes);
    }

    /// A sample hit an object of the site.
    pub(crate) fn count_heat(
        &mut self,
        slot: u16,
        site: u32,
        (reads, writes): (f32, f32),
        stall_ns: f32,
    ) {
        let Some(heat) = self.site_history(slot, site) else { return };
        heat.reads += reads;
        heat.writes += writes;
        heat.stall_ns += stall_ns;
    }

    /// A row that became a record takes what its site is known for as its average so far.
    pub(crate) fn warm(&mut self, number: u32) {
        let Row { process, .. } = self.rows[number];
        let site = self.rows[number].site();
        self.count_live(process, site, 0);
        let keep = 1.0 - self.config.alpha;
        let Some(density) = self.site_history(process, site).and_then(|heat| heat.density()) else {
            return;
        };
        let row = &mut self.rows[number];
        debug_assert!(!row.has(FRESH));
        let bytes = keep * row.bytes() as f32;
        row.reads += density.reads * bytes;
        row.writes += density.writes * bytes;
        row.stall_ns += density.stall_ns * bytes;
        row.hits = crate::row::WARM;
    }

    /// A record of the site died at this age.
    pub(crate) fn count_death(&mut self, slot: u16, site: u32, age_ms: u64) {
        if let Some(heat) = self.site_history(slot, site) {
            heat.deaths = heat.deaths.saturating_add(1);
            heat.lived_ms = heat.lived_ms.saturating_add(age_ms);
        }
    }

    /// How long extents like this one lived, mean, milliseconds; its age where none has died, or
    /// where it is older.
    pub fn lifetime_ms(&self, extent: &Extent) -> u64 {
        let age_ms = self.now_ms.saturating_sub(extent.born_ms);
        let heat = self.process(extent.place).sites.get(extent.site);
        let dead = heat.filter(|heat| heat.deaths > 0);
        let mean = dead.map_or(0, |heat| heat.lived_ms / u64::from(heat.deaths));
        mean.max(age_ms)
    }

    /// The site, if its process may have it; else 0. Histories are kept up to the highest number.
    pub(crate) fn admit_site(&mut self, slot: u16, site: u32) -> u32 {
        let interval = self.interval;
        let Ledger { processes, groups, config, .. } = self;
        let process = processes[usize::from(slot)].as_mut().expect("the caller found it");
        match process.sites.missing(site) {
            Some(0) => return site,
            Some(more) if groups.add_sites(process.group, more, config) => (),
            _ => {
                self.counts.sites_refused += 1;
                return 0;
            }
        }
        let unused = SiteHistory { interval, ..SiteHistory::default() };
        process.sites.grow(site, unused);
        site
    }

    /// What is known of a site, as of this interval. Site 0 stands for all unknown sites.
    fn site_history(&mut self, slot: u16, site: u32) -> Option<&mut SiteHistory> {
        let interval = self.interval;
        let heat = self.process(slot).sites.get(site).filter(|_| site != 0)?;
        let decay = self.decay(interval - heat.interval);
        let heat = self.process_mut(slot).sites.get_mut(site)?;
        if heat.interval != interval {
            *heat = SiteHistory { interval, ..heat.faded(decay) };
        }
        Some(heat)
    }
}
