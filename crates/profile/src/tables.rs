//! Maps the parts of a profile to tables. In: a [`Profile`]. Out: rows of tables, and a profile's
//! parts from such rows. Knows nothing of files.

use std::sync::Arc;

use crate::profile::{Access, AccessSite, Frame, Name, Object, Phase, Process, Site};
use crate::site_label::site_label;
use crate::table::{Kind, TableRow, table};

/// Most processes of one profile.
pub const PROCESSES_MAX: usize = 1 << 16;
/// Most sites.
pub const SITES_MAX: usize = 1 << 17;
/// Most frames of one site; the runtime writes 30.
pub const FRAMES_MAX: usize = 64;
/// Most names of one frame: functions inlined into each other.
pub const NAMES_MAX: usize = 64;
/// Most rows of the table of frames.
const FRAME_ROWS_MAX: usize = 1 << 20;
/// Most phases.
pub const PHASES_MAX: usize = 1 << 16;
/// Most objects: no more than the planner accepts, which the advisor asserts.
pub const OBJECTS_MAX: usize = 1 << 20;
/// Most accesses, 104 bytes each in memory: 104 MiB.
pub const ACCESSES_MAX: usize = 1 << 20;

/// Most rows of accesses by code.
pub const ACCESS_SITES_MAX: usize = 1 << 17;

/// A bit of [`Access::threads`].
#[derive(Clone, Debug, Default)]
pub(crate) struct ThreadRow {
    process: u32,
    bit: u32,
    tid: u32,
}

/// A site, without its stack.
#[derive(Clone, Debug, Default)]
pub(crate) struct SiteRow {
    hash: u64,
    /// The site's label, for people who read the table.
    label: Arc<str>,
}

/// A name of a frame of a site; a frame without names has one row without a function.
#[derive(Clone, Debug, Default)]
pub(crate) struct FrameRow {
    site: u32,
    depth: u32,
    inlined: u32,
    module: Arc<str>,
    build_id: Arc<str>,
    address: u64,
    function: Arc<str>,
    file: Arc<str>,
    line: u32,
}

table!(
    Process,
    "processes",
    PROCESSES_MAX,
    [run, pid, parent, program, start_ns, end_ns, peak_bytes]
);
table!(ThreadRow, "threads", PROCESSES_MAX * 64, [process, bit, tid]);
table!(SiteRow, "sites", SITES_MAX, [hash, label]);
table!(
    FrameRow,
    "frames",
    FRAME_ROWS_MAX,
    [site, depth, inlined, module, build_id, address, function, file, line]
);
table!(Phase, "phases", PHASES_MAX, [run, process, name, start_ns, end_ns]);
table!(
    Object,
    "objects",
    OBJECTS_MAX,
    [
        process,
        site,
        count,
        bytes,
        peak_bytes,
        born_bytes,
        fresh_bytes,
        address,
        birth_ns,
        death_ns,
        freed,
        lifetime_ns,
        extent_bytes,
        is_block,
        is_mapped
    ]
);
table!(
    Access,
    "accesses",
    ACCESSES_MAX,
    [
        object,
        extent,
        phase,
        slot,
        reads,
        writes,
        samples,
        timed_reads,
        read_ns,
        timed_writes,
        write_ns,
        cached,
        dirtied,
        mlp_known,
        serialized,
        isolated,
        threads
    ]
);

table!(AccessSite, "access_sites", ACCESS_SITES_MAX, [code, site, pattern, reads, writes]);

/// Bytes of a row before compression, without texts, whose numbers take 4 bytes each.
pub(crate) const fn row_bytes<R: TableRow>() -> usize {
    let mut bytes = 0;
    let mut at = 0;
    while at < R::COLUMNS.len() {
        bytes += match R::COLUMNS[at].kind {
            Kind::U64 => 8,
            Kind::U32 | Kind::Text => 4,
            Kind::Bool => 1,
        };
        at += 1;
    }
    bytes
}

pub(crate) fn thread_rows(processes: &[Process]) -> Vec<ThreadRow> {
    let numbered = (0..).zip(processes);
    let rows = numbered.flat_map(|(process, one)| {
        (0..).zip(&one.threads).map(move |(bit, tid)| ThreadRow { process, bit, tid: *tid })
    });
    rows.collect()
}

/// Assigns threads to processes.
pub(crate) fn set_threads(processes: &mut [Process], rows: Vec<ThreadRow>) -> Result<(), String> {
    for ThreadRow { process, bit, tid } in rows {
        let threads = processes.get_mut(process as usize).map(|process| &mut process.threads);
        let threads = threads.ok_or_else(|| format!("a thread of process {process}"))?;
        if threads.len() != bit as usize {
            return Err(format!("threads of process {process} are out of order"));
        }
        threads.push(tid);
    }
    Ok(())
}

pub(crate) fn site_rows(sites: &[Site]) -> Vec<SiteRow> {
    sites.iter().map(|site| SiteRow { hash: site.hash, label: site_label(site).into() }).collect()
}

pub(crate) fn frame_rows(sites: &[Site]) -> Vec<FrameRow> {
    let mut rows = Vec::new();
    for (site, one) in (0..).zip(sites) {
        for (depth, frame) in (0..).zip(&one.frames) {
            let row = FrameRow {
                site,
                depth,
                inlined: 0,
                module: Arc::clone(&frame.module),
                build_id: Arc::clone(&frame.build_id),
                address: frame.address,
                ..FrameRow::default()
            };
            if frame.names.is_empty() {
                rows.push(row);
                continue;
            }
            rows.extend((0..).zip(&frame.names).map(|(inlined, name)| FrameRow {
                inlined,
                function: Arc::clone(&name.function),
                file: Arc::clone(&name.file),
                line: name.line,
                ..row.clone()
            }));
        }
    }
    rows
}

/// Sites with their stacks.
pub(crate) fn sites(rows: Vec<SiteRow>, frames: Vec<FrameRow>) -> Result<Vec<Site>, String> {
    let site = |row: SiteRow| Site { hash: row.hash, frames: Vec::new() };
    let mut sites: Vec<Site> = rows.into_iter().map(site).collect();
    for row in frames {
        let FrameRow { site, depth, inlined, module, build_id, address, function, file, line } =
            row;
        let out_of_order = || format!("frames of site {site} are out of order");
        let of_site = sites.get_mut(site as usize).map(|site| &mut site.frames);
        let of_site = of_site.ok_or_else(|| format!("a frame of site {site}"))?;
        if depth as usize == of_site.len() && inlined == 0 {
            of_site.push(Frame { module, build_id, address, names: Vec::new() });
        }
        let frame = of_site.last_mut().ok_or_else(out_of_order)?;
        let is_next = frame.names.len() == inlined as usize && frame.address == address;
        let depth_is_last = depth as usize + 1 == of_site.len();
        let frame = of_site.last_mut().filter(|_| is_next && depth_is_last);
        let frame = frame.ok_or_else(out_of_order)?;
        if !function.is_empty() {
            frame.names.push(Name { function, file, line });
        } else if inlined > 0 {
            return Err(out_of_order());
        }
    }
    Ok(sites)
}
