//! `./x bench vmem-moves`: migrations of vregions beside the kernel's own, in a timed guest (VMem
//! figure 4). In: whether to be quick. Out: rows: elapsed time for 4 KiB over the kernel's of the
//! same boot, and the waits of a thread that touches the memory meanwhile; a full run also writes
//! them below `lab/results/vmem`. Knows nothing of how anything moves.
//!
//! One virtual CPU moves, the other one touches: threads wait for memory, not for a CPU.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tiercel_lab::{Acceleration, Cache, Guest, Model, Payload, Request, Size, Streams, Timing};
use tiercel_lab::{Topology, cli};
use tiercel_report::{Align, Table};

use super::vmem::{Figures, figures, value};
use crate::lab::{plugin, program};
use crate::{build, exec};
use tiercel_bench::BenchResult;

/// VMem's machine: two sockets of DDR5. The region moves from one socket's memory to the other's.
const MACHINE: &str = "spr-vmem";
const SIZE: Size = Size { memory_bytes: 3 << 30, cpus: 2 };
/// Size of the region in MiB, of a full run and of a quick one. VMem has 4 GiB.
const MIB: [u64; 2] = [32, 8];
/// A full run takes some minutes on two quiet cores.
const LIMIT: Duration = Duration::from_secs(2400);

/// Sizes of vpages, and the kernel's ways of moving OS pages of the same size.
const SIZES: [Pages; 2] = [
    Pages { name: "4 KiB", ours: "vmem4k", kernel: ["mbind", "pages"], switch_limit: 1.0 / 1.5 },
    Pages {
        name: "2 MiB",
        ours: "vmem2m",
        kernel: ["mbindthp", "pagesthp"],
        switch_limit: 1.0 / 800.0,
    },
];

struct Pages {
    name: &'static str,
    ours: &'static str,
    /// The first is the peer, VMem's "Linux migrate".
    kernel: [&'static str; 2],
    /// Of a switch's time over the kernel's migration (VMem 6.1).
    switch_limit: f64,
}

/// Our operations that are timed.
const WAYS: [(&str, &str); 4] = [
    ("whole", "copy and switch"),
    ("back", "back to a shadow"),
    ("copy", "copy alone"),
    ("switch", "switch alone"),
];
const TOUCHES: [(&str, &str); 2] = [("0", "read"), ("1", "written")];

/// The longest acceptable wait of a thread, us, however much is moved: one wait of 1 ms in a GiB.
const STALL_LIMIT_US: f64 = 1000.0;

/// By kind and whether it is written meanwhile.
type Seen = BTreeMap<(String, String), Figures>;

/// One line of the table.
struct Line {
    what: String,
    /// Elapsed, for 4 KiB.
    ns: f64,
    kernel_ns: f64,
    limit: Option<f64>,
    /// Longest waits of the thread that touches: any; by the kernel's statistics, for its CPU and
    /// for memory.
    stall_us: f64,
    for_cpu_us: f64,
    for_memory_us: f64,
    stall_limit_us: Option<f64>,
    /// Touches per microsecond, relative to those while nothing moves.
    speed: f64,
}

/// Measures and returns the rows of the bench.
pub fn rows(quick: bool) -> Result<Vec<BenchResult>> {
    let seen = measure(MIB[usize::from(quick)])?;
    let mut lines = Vec::new();
    for pages in &SIZES {
        for touching in TOUCHES {
            lines.extend(lines_of(&seen, pages, touching)?);
        }
    }
    let rows: Vec<BenchResult> = lines.iter().flat_map(rows_of).collect();
    if !quick {
        keep(&exec::root().join("lab/results/vmem"), &lines, &rows)?;
    }
    Ok(rows)
}

fn measure(mib: u64) -> Result<Seen> {
    let mut progress = |line: &str| eprintln!("{line}");
    let guest = Guest::prepare(&Cache::of_user()?, Acceleration::Tcg, &mut progress)?;
    let plugin = plugin(false)?;
    let mut payload = Payload::default();
    for name in ["tiercel", "libtiercel.so"] {
        payload.program(&program(name, false)?, &format!("/root/bin/{name}"))?;
    }
    let bench = build::program("bench-vmem", &["-Werror", "-D_GNU_SOURCE", "-ldl"])?;
    payload.program(&bench, "/root/bin/bench-vmem")?;
    let machine = cli::find_machine(MACHINE, &[&exec::root().join("lab/machines")])?;
    let topology = Topology::of(&machine, SIZE)?;
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let request = Request {
        topology: &topology,
        payload,
        command: &script(mib),
        environment: &[],
        timeout: LIMIT,
        out: None,
        timing: Some(Timing {
            plugin: &plugin,
            machine: &machine,
            model: Model::default(),
            trace: None,
        }),
    };
    let outcome = guest.run(request, Streams { stdout: &mut stdout, stderr: &mut stderr })?;
    ensure!(outcome.status == 0, "in the guest: {}", String::from_utf8_lossy(&stderr));
    parse(&String::from_utf8_lossy(&stdout))
}

/// Pools hold a region, its twin and a segment in reserve.
fn script(mib: u64) -> String {
    let mut text = "set -e\nexport PATH=$PATH:/root/bin\n\
                    echo 0 > /proc/sys/kernel/numa_balancing\n\
                    echo 1 > /proc/sys/kernel/sched_schedstats\n\
                    echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled\n"
        .to_owned();
    let pool = 2 * mib + 128;
    for pages in &SIZES {
        for (kind, pools) in
            pages.kernel.iter().map(|kind| (*kind, false)).chain([(pages.ours, true)])
        {
            let pools = if pools {
                format!(" --pool 0={pool}MiB --pool 1={pool}MiB")
            } else {
                String::new()
            };
            for (writes, _) in TOUCHES {
                let _ = writeln!(
                    text,
                    "echo about {kind} {writes}\n\
                     tiercel run --sampler none --output /dev/null{pools} -- \
                     bench-vmem move {kind} {mib} 1 {writes}"
                );
            }
        }
    }
    text
}

fn parse(text: &str) -> Result<Seen> {
    let mut seen = Seen::new();
    for part in text.split("about ").skip(1) {
        let (about, rest) = part.split_once('\n').unwrap_or((part, ""));
        let (kind, writes) = about.split_once(' ').with_context(|| about.to_owned())?;
        seen.insert((kind.to_owned(), writes.to_owned()), figures(rest));
    }
    Ok(seen)
}

fn lines_of(seen: &Seen, pages: &Pages, (writes, touched): (&str, &str)) -> Result<Vec<Line>> {
    let of = |kind: &str| {
        let found = seen.get(&(kind.to_owned(), writes.to_owned()));
        found.with_context(|| format!("the guest did not report {kind}, {touched}"))
    };
    let peer = of(pages.kernel[0])?;
    let kernel_ns = value(peer, "whole_elapsed")?;
    let line = |from: &Figures, way: &str, what: String| -> Result<Line> {
        let speed = value(from, &format!("{way}_touches"))? / value(from, "alone_touches")?;
        Ok(Line {
            what: format!("{}, {touched} meanwhile: {what}", pages.name),
            ns: value(from, &format!("{way}_elapsed"))?,
            kernel_ns,
            limit: (way == "switch").then_some(pages.switch_limit),
            stall_us: value(from, &format!("{way}_stall"))? / 1e3,
            for_cpu_us: value(from, &format!("{way}_for_cpu"))? / 1e3,
            for_memory_us: value(from, &format!("{way}_for_memory"))? / 1e3,
            stall_limit_us: None,
            speed,
        })
    };
    let mut lines = Vec::new();
    for (kind, what) in pages.kernel.iter().zip(["kernel, mbind", "kernel, move_pages"]) {
        lines.push(line(of(kind)?, "whole", what.to_owned())?);
    }
    let ours = of(pages.ours)?;
    for (way, what) in WAYS {
        let line = line(ours, way, format!("vmem, {what}"))?;
        lines.push(Line { stall_limit_us: Some(STALL_LIMIT_US), ..line });
    }
    Ok(lines)
}

fn rows_of(line: &Line) -> [BenchResult; 5] {
    let Line { what, limit, .. } = line;
    let (ns, kernel_ns) = (&[line.ns], &[line.kernel_ns]);
    let wait = |kind: &str, us: f64, limit| {
        BenchResult::alone(format!("{what}: longest {kind}"), us, limit, "us")
    };
    [
        BenchResult {
            spread: None,
            ..BenchResult::of_pairs(what.clone(), "mbind", ns, kernel_ns, *limit, "ns")
        },
        wait("wait for memory", line.for_memory_us, line.stall_limit_us),
        wait("wait for its CPU", line.for_cpu_us, None),
        wait("wait", line.stall_us, None),
        BenchResult::alone(format!("{what}: speed of the toucher"), line.speed, None, "of alone"),
    ]
}

fn keep(folder: &Path, lines: &[Line], rows: &[BenchResult]) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let mut json = String::new();
    for row in rows {
        writeln!(json, "{}", serde_json::to_string(row)?)?;
    }
    std::fs::write(folder.join("moves.jsonl"), json)?;
    let path = folder.join("README.md");
    std::fs::write(&path, page(lines)).with_context(|| path.display().to_string())
}

fn page(lines: &[Line]) -> String {
    let mib = MIB[0];
    let mut table = Table::new(vec![
        ("what".to_owned(), Align::Left),
        ("GB/s".to_owned(), Align::Right),
        ("us for 4 KiB".to_owned(), Align::Right),
        ("speed over mbind".to_owned(), Align::Right),
        ("longest wait, us".to_owned(), Align::Right),
        ("for memory".to_owned(), Align::Right),
        ("for its CPU".to_owned(), Align::Right),
        ("toucher's speed".to_owned(), Align::Right),
    ]);
    for line in lines {
        table.row(vec![
            line.what.clone(),
            format!("{:.2}", 4096.0 / line.ns),
            format!("{:.3}", line.ns / 1e3),
            format!("{:.2}", line.kernel_ns / line.ns),
            format!("{:.0}", line.stall_us),
            format!("{:.0}", line.for_memory_us),
            format!("{:.0}", line.for_cpu_us),
            format!("{:.2}", line.speed),
        ]);
    }
    format!(
        "# Migrations of vregions beside the kernel's\n\nWritten by `./x bench vmem-moves` \
         (docs/evaluation.md): {mib} MiB from node 0 to node 1 of\na timed `{MACHINE}`, each line \
         measured once. One virtual CPU moves, the other one touches one\nword of an OS page after \
         the other; its speed is over that while nothing moves. Its waits are by the\nkernel's \
         statistics: the daemon and the kernel's threads use its CPU at times.\n`moves.jsonl` has \
         the rows.\n\n{}",
        table.markdown()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the bench prints for one kind.
    fn printed(kind: &str, ns: f64) -> String {
        let mut text = format!("about {kind} 0\nalone_touches 10\n");
        for (i, (way, _)) in WAYS.iter().enumerate() {
            let ns = ns * (i + 1) as f64;
            let _ = writeln!(text, "{way}_elapsed {ns}\n{way}_stall 5000000\n{way}_touches 8");
            let _ = writeln!(text, "{way}_for_cpu 4990000\n{way}_for_memory 9000");
        }
        text
    }

    #[test]
    fn our_moves_are_compared_with_the_kernels_of_the_same_size() {
        let kinds = [("mbind", 1000.0), ("pages", 2000.0), ("vmem4k", 500.0)];
        let text: String = kinds.iter().map(|(kind, ns)| printed(kind, *ns)).collect();
        let seen = parse(&text).expect("valid");
        let lines = lines_of(&seen, &SIZES[0], TOUCHES[0]).expect("all there");
        assert_eq!(lines.len(), 2 + WAYS.len());
        let [time, stall, .., speed] = rows_of(&lines[5]);
        assert_eq!((time.ours, time.peer, time.ratio), (2000.0, Some(1000.0), Some(2.0)));
        assert!(!time.holds && stall.holds && speed.ours == 0.8, "{time:?} {stall:?} {speed:?}");
        assert!(lines_of(&seen, &SIZES[1], TOUCHES[0]).is_err(), "huge OS pages were not moved");
        assert!(lines_of(&seen, &SIZES[0], TOUCHES[1]).is_err(), "not written meanwhile");
    }
}
