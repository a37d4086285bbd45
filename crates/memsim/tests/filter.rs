//! The filter of compiled code (runtime/probe/cache.c) against this crate's cache: the same lines
//! hit, and the same written lines leave.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use tiercel_memsim::{Cache, CacheShape};

/// Shapes: bytes, ways. Few sets, many, not a power of two, one way, the most ways.
const SHAPES: [(u64, u32); 6] =
    [(1 << 10, 8), (32 << 10, 8), (256 << 10, 16), (3 << 10, 3), (4 << 10, 1), (64 << 10, 32)];
const ACCESSES: usize = 20_000;

const DRIVER: &str = r#"
#include "probe/cache.c"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    struct tcl_probe_cache shape = {(uint32_t)atoi(argv[1]), (uint32_t)atoi(argv[2])};
    struct tcl_cache cache = tcl_cache_in(calloc(1, tcl_cache_bytes(shape)), shape);
    uint64_t line, left;
    int writes;
    while (argc == 3 && scanf("%" SCNu64 " %d", &line, &writes) == 2) {
        bool was_dirty = tcl_cache_holds_dirty(&cache, line);
        enum tcl_cached was = tcl_cache_use(&cache, line, writes);
        if (was)
            printf("hit %d\n", was_dirty == (was == TCL_CACHED_DIRTY) ? was_dirty : -1);
        else if (tcl_cache_fill(&cache, line, writes, &left))
            printf("miss %" PRIu64 "\n", left);
        else
            printf("miss\n");
    }
    return 0;
}
"#;

fn build(folder: &Path) -> std::path::PathBuf {
    let (source, program) = (folder.join("driver.c"), folder.join("driver"));
    std::fs::write(&source, DRIVER).unwrap();
    let runtime = concat!(env!("CARGO_MANIFEST_DIR"), "/../../runtime");
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu17", "-D_GNU_SOURCE", "-O1", "-Wall", "-Werror", "-I", runtime, "-o"]);
    assert!(cc.arg(&program).arg(&source).status().unwrap().success());
    program
}

/// Some lines often, some once; a stride that fills few sets.
fn stream(seed: u64) -> Vec<(u64, bool)> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut line = |at: usize| match at % 4 {
        0 => random.u64(..64),
        1 => random.u64(..8192),
        2 => at as u64,
        _ => random.u64(..64) * 64,
    };
    let lines: Vec<u64> = (0..ACCESSES).map(&mut line).collect();
    lines.into_iter().map(|line| (line, random.u8(..4) == 0)).collect()
}

fn by_model(shape: CacheShape, stream: &[(u64, bool)]) -> Vec<String> {
    let mut cache = Cache::new(shape).unwrap();
    let mut step = |line: u64, write: bool| {
        let was_dirty = u8::from(cache.holds_dirty(line));
        if cache.hit(line, write) {
            return format!("hit {was_dirty}");
        }
        match cache.fill(line, write).filter(|left| left.dirty) {
            Some(left) => format!("miss {}", left.line),
            None => "miss".into(),
        }
    };
    stream.iter().map(|&(line, write)| step(line, write)).collect()
}

fn by_filter(program: &Path, shape: CacheShape, stream: &[(u64, bool)]) -> Vec<String> {
    let sets = shape.bytes / 64 / u64::from(shape.ways);
    let mut driver = Command::new(program);
    driver.args([sets.to_string(), shape.ways.to_string()]);
    let mut child = driver.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut text = String::new();
    stream.iter().for_each(|(line, write)| writeln!(text, "{line} {}", u8::from(*write)).unwrap());
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().lines().map(String::from).collect()
}

#[test]
fn the_runtimes_cache_is_this_one() {
    let folder = tempfile::tempdir().unwrap();
    let program = build(folder.path());
    for (seed, (bytes, ways)) in (1..).zip(SHAPES) {
        let (shape, stream) = (CacheShape { bytes, ways }, stream(seed));
        let (want, got) = (by_model(shape, &stream), by_filter(&program, shape, &stream));
        let differs = want.iter().zip(&got).position(|(want, got)| want != got);
        assert_eq!(differs.map(|at| (at, &want[at], &got[at])), None, "{shape:?}, seed {seed}");
        assert_eq!(want.len(), got.len());
    }
}
