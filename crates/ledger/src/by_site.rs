//! Values by site number. In: numbers of two kinds, each dense: a runtime numbers its sites from 1
//! on, and a daemon those that it names from [`SITES_NAMED`] on. Out: values. Pure.
//!
//! One list up to the highest number would take megabytes for a process with one named site.

use tiercel_wire::layout::SITES_NAMED;

/// Sites of a process that are known; objects of further ones start cold. 40 bytes each.
pub const SITES_MAX: usize = 1 << 16;

/// A list for each kind of number.
#[derive(Clone, Debug, Default)]
pub(crate) struct BySite<T> {
    own: Vec<T>,
    named: Vec<T>,
}

impl<T: Clone> BySite<T> {
    pub(crate) fn get(&self, site: u32) -> Option<&T> {
        let (is_named, at) = split(site);
        (if is_named { &self.named } else { &self.own }).get(at)
    }

    pub(crate) fn get_mut(&mut self, site: u32) -> Option<&mut T> {
        let (is_named, at) = split(site);
        (if is_named { &mut self.named } else { &mut self.own }).get_mut(at)
    }

    /// Values that [`BySite::grow`] would add; `None`: no process has that many sites.
    pub(crate) fn missing(&self, site: u32) -> Option<usize> {
        let (is_named, at) = split(site);
        let have = if is_named { self.named.len() } else { self.own.len() };
        ((site as usize) < SITES_MAX).then(|| (at + 1).saturating_sub(have))
    }

    /// Makes room up to a site.
    pub(crate) fn grow(&mut self, site: u32, unused: T) {
        let (is_named, at) = split(site);
        let list = if is_named { &mut self.named } else { &mut self.own };
        if at >= list.len() {
            list.resize(at + 1, unused);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.own.len() + self.named.len()
    }
}

/// Whether a site is a named one, and its place among those of its kind.
fn split(site: u32) -> (bool, usize) {
    let site = site as usize;
    site.checked_sub(SITES_NAMED).map_or((false, site), |named| (true, named))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_site_takes_no_room_for_the_numbers_below_it() {
        let named = u32::try_from(SITES_NAMED).expect("16 bits");
        let mut values: BySite<u8> = BySite::default();
        assert_eq!((values.missing(7), values.missing(named + 1)), (Some(8), Some(2)));
        values.grow(7, 0);
        values.grow(named + 1, 0);
        assert_eq!(values.len(), 10);
        assert_eq!((values.missing(7), values.missing(named + 1)), (Some(0), Some(0)));
        *values.get_mut(named).expect("there is room") = 5;
        assert_eq!((values.get(named), values.get(0), values.get(8)), (Some(&5), Some(&0), None));
        assert_eq!(values.missing(u32::try_from(SITES_MAX).expect("17 bits")), None);
    }
}
