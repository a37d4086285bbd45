//! Limits the fast memory of a run: fills a node until a given number of bytes is free, in the same
//! way for every policy. In: nodes, bytes. Out: a [`Hog`] that holds the rest until it is dropped.
//! Knows nothing of policies.
//!
//! The rest is filled by a file in a tmpfs that is bound to the node and has `noswap`: the kernel
//! then counts its OS pages as unevictable, so that neither reclaim nor demotion moves them, and no
//! process has to hold them. The bytes that are left are those that an ordinary allocation can get
//! before it falls to the next node: free memory above each zone's low watermark and reserve, and
//! the per-CPU lists, from which the kernel allocates without checking any watermark.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tiercel_machine::{NodeId, Zone};

/// x86-64 and arm64 with 4 KiB, which are what guests run.
const OS_PAGE_BYTES: u64 = 4096;

/// Most corrections of the fill, because filling a node slightly changes the kernel's own use of
/// it. Chosen, not measured: a fill that is still outside the tolerance is an error.
const ROUNDS: usize = 6;

/// Tolerance of the free memory, per node: the kernel's own use changes all the time. Half a huge
/// OS page; chosen, not measured.
const TOLERANCE_BYTES: u64 = 512 << 10;

/// Holds memory of nodes, and frees it when dropped.
#[derive(Debug)]
pub(crate) struct Hog {
    mounts: Vec<PathBuf>,
    /// Bytes left on all the nodes.
    pub(crate) free_bytes: u64,
}

impl Hog {
    /// Fills `nodes` until `wanted_bytes` are left, divided evenly among them.
    pub(crate) fn fill(root: &Path, nodes: &[u16], wanted_bytes: u64) -> Result<Hog> {
        let mut hog = Hog { mounts: Vec::new(), free_bytes: 0 };
        let each = wanted_bytes / nodes.len().max(1) as u64;
        for &node in nodes {
            let have = usable_bytes(root, node)?;
            ensure!(
                have + TOLERANCE_BYTES >= each,
                "node {node} has only {} KiB free of the {} KiB this run needs; give the guest \
                 more memory",
                have >> 10,
                each >> 10
            );
            hog.fill_node(root, node, each)?;
            hog.free_bytes += usable_bytes(root, node)?;
        }
        let off = hog.free_bytes.abs_diff(wanted_bytes);
        ensure!(
            off <= TOLERANCE_BYTES * nodes.len() as u64,
            "{} KiB of fast memory are free instead of {}; another program holds it",
            hog.free_bytes >> 10,
            wanted_bytes >> 10
        );
        Ok(hog)
    }

    fn fill_node(&mut self, root: &Path, node: u16, leave_bytes: u64) -> Result<()> {
        let mount = root.join(format!("run/lab-hog{node}"));
        fs::create_dir_all(&mount).with_context(|| format!("cannot make {}", mount.display()))?;
        let options = format!("noswap,huge=never,size=100%,mpol=bind:{node}");
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "lab-hog"])
            .arg(&mount)
            .status()
            .context("cannot start mount")?;
        ensure!(status.success(), "cannot mount a tmpfs with {options}: {status}");
        self.mounts.push(mount.clone());
        let path = mount.join("held");
        let file =
            File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let mut held = 0u64;
        for _ in 0..ROUNDS {
            let have = usable_bytes(root, node)?;
            if have.abs_diff(leave_bytes) < 2 * OS_PAGE_BYTES {
                break;
            }
            // Never below the watermarks: a bound allocation that finds no memory invokes the OOM
            // killer.
            let most = held + watermarked_bytes(root, node)?;
            let target = (held + have).saturating_sub(leave_bytes).min(most) & !(OS_PAGE_BYTES - 1);
            if target > held {
                let flags = rustix::fs::FallocateFlags::empty();
                rustix::fs::fallocate(&file, flags, held, target - held)
                    .with_context(|| format!("cannot fill node {node}"))?;
            } else {
                file.set_len(target).with_context(|| format!("cannot free node {node}"))?;
            }
            held = target;
        }
        Ok(())
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        for mount in &self.mounts {
            // If the unmount fails, limiting the next run's memory fails with an error.
            let _ = fs::remove_file(mount.join("held"));
            let _ = Command::new("umount").arg(mount).status();
        }
    }
}

/// Bytes of a node that an ordinary allocation can get before it falls to the next node.
pub(crate) fn usable_bytes(root: &Path, node: u16) -> Result<u64> {
    let listed: u64 = zones_of(root, node)?.iter().map(|zone| zone.listed).sum();
    Ok(watermarked_bytes(root, node)? + listed * OS_PAGE_BYTES)
}

/// The same without the per-CPU lists.
fn watermarked_bytes(root: &Path, node: u16) -> Result<u64> {
    let zones = zones_of(root, node)?;
    let above = |zone: &Zone| zone.free.saturating_sub(zone.floor());
    Ok(zones.iter().map(above).sum::<u64>() * OS_PAGE_BYTES)
}

fn zones_of(root: &Path, node: u16) -> Result<Vec<Zone>> {
    // CPUs fold their part of the counters in later; reading this file makes them do so now.
    let _ = fs::read(root.join("proc/sys/vm/stat_refresh"));
    let path = root.join("proc/zoneinfo");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path:?}"))?;
    Ok(Zone::all(&text).into_iter().filter(|zone| zone.node == NodeId(node)).collect())
}

/// Physical addresses of a node's memory: first byte, and end.
pub(crate) fn physical_range(root: &Path, node: u16) -> Result<(u64, u64)> {
    let mut mine = zones_of(root, node)?;
    mine.retain(|zone| zone.spanned > 0);
    let start = mine.iter().map(|zone| zone.start).min();
    let end = mine.iter().map(|zone| zone.start + zone.spanned).max();
    let (start, end) = start.zip(end).with_context(|| format!("node {node} has no memory"))?;
    Ok((start * OS_PAGE_BYTES, end * OS_PAGE_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZONES: &str = "Node 0, zone      DMA
  per-node stats
      nr_inactive_anon 11
  pages free     3840
        boost    0
        min      66
        low      82
        high     98
        spanned  4095
        present  3998
        protection: (0, 600, 700, 700, 0)
      nr_free_pages 3840
  pagesets
    cpu: 0
              count: 5
    cpu: 1
              count: 6
  start_pfn:           1
Node 0, zone    DMA32
  pages free     50000
        low      100
        spanned  100000
        protection: (0, 0, 0, 0, 0)
  start_pfn:           4096
Node 1, zone    DMA32
  pages free     7
        low      9
        spanned  300000
        protection: (0, 0)
  start_pfn:           104096
";

    fn root() -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("proc")).expect("made");
        fs::write(dir.path().join("proc/zoneinfo"), ZONES).expect("written");
        dir
    }

    #[test]
    fn usable_memory_is_above_watermark_and_reserve() {
        let root = root();
        let usable = |node| usable_bytes(root.path(), node).expect("read") / OS_PAGE_BYTES;
        assert_eq!(usable(0), (3840 - 82 - 700 + 11) + (50000 - 100));
        assert_eq!(usable(1), 0);
        assert_eq!(usable(9), 0);
    }

    #[test]
    fn the_addresses_of_a_node_span_its_zones() {
        let root = root();
        let range = physical_range(root.path(), 0).expect("known");
        assert_eq!(range, (OS_PAGE_BYTES, 104_096 * OS_PAGE_BYTES));
        assert!(physical_range(root.path(), 5).is_err());
    }

    #[test]
    fn too_little_memory_is_an_error() {
        let root = root();
        let error = Hog::fill(root.path(), &[1], 1 << 30).expect_err("too little");
        assert!(error.to_string().contains("give the guest more memory"), "{error}");
    }
}
