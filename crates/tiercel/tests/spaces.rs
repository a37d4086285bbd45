//! Memory by request from libraries that know nothing of us: OpenMP's runtimes, NumPy.

mod common;

use common::{Process, compile, stderr, stdout, tiercel, wait};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use tiercel_plan::{Unplanned, read_plan, write_plan};

/// Asks for spaces as GNU's and LLVM's OpenMP runtimes do, and exports the symbol by which those
/// are known. `%NAME%` is the library's name. It lives until its input ends.
const OPENMP: &str = r#"
#include <dlfcn.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define BYTES (2ul << 20)
typedef void *call_malloc(void *, size_t);
void *omp_init_allocator(void) { return NULL; }
static void *found(void *library, const char *name) {
    void *one = dlsym(library, name);
    if (!one)
        exit(3);
    return one;
}
static void *library;
static call_malloc *kind_malloc;
static void *from(const char *kind) {
    void *space = *(void **)found(library, kind);
    int (*available)(void *) = (int (*)(void *))found(library, "memkind_check_available");
    void *p = available(space) == 0 ? kind_malloc(space, BYTES) : NULL;
    return memset(p, 1, BYTES);
}
__attribute__((noinline)) static char *make_high(void) {
    char *p = from("MEMKIND_HBW_PREFERRED");
    return p + (*p - 1);
}
__attribute__((noinline)) static char *make_large(void) {
    char *p = from("MEMKIND_DAX_KMEM_ALL");
    return p + (*p - 1);
}
__attribute__((noinline)) static char *make_plain(void) {
    char *p = from("MEMKIND_DEFAULT");
    return p + (*p - 1);
}
int main(int argc, char **argv) {
    (void)argv;
    library = dlopen("%NAME%", RTLD_LAZY);
    if (!library)
        return argc > 1 ? 4 : 0; /* recorded without us it would not be there */
    kind_malloc = (call_malloc *)found(library, "memkind_malloc");
    void *(*kind_calloc)(void *, size_t, size_t) =
        (void *(*)(void *, size_t, size_t))found(library, "memkind_calloc");
    void *(*kind_realloc)(void *, void *, size_t) =
        (void *(*)(void *, void *, size_t))found(library, "memkind_realloc");
    void (*kind_free)(void *, void *) = (void (*)(void *, void *))found(library, "memkind_free");
    char *objects[3] = {make_high(), make_large(), make_plain()};
    void *space = *(void **)found(library, "MEMKIND_HBW_INTERLEAVE");
    char *zeroed = kind_calloc(space, 512, 512);
    for (int i = 0; i < 512 * 512; i++)
        if (zeroed[i])
            return 5;
    if (kind_calloc(space, (size_t)-1, 16))
        return 6;
    zeroed[4711] = 9;
    zeroed = kind_realloc(space, zeroed, 4 * 512 * 512);
    if (zeroed[4711] != 9 || dlsym(RTLD_DEFAULT, "memkind_malloc"))
        return 7; /* and out of the way */
    kind_free(space, zeroed);
    puts(getenv("TIERCEL_SOCKET"));
    fflush(stdout);
    struct pollfd input = {.fd = 0, .events = POLLIN};
    do {
        for (int i = 0; i < 3; i++)
            memset(objects[i], i, BYTES);
    } while (!poll(&input, 1, 0));
    return 0;
}
"#;

struct Stage {
    folder: tempfile::TempDir,
}

impl Stage {
    fn tiercel(&self, args: &[&str]) -> Output {
        tiercel().current_dir(self.folder.path()).args(args).output().unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A plan that knows no place: births go where `unplanned` says, but for requests. With a plan
    /// the modelled mover takes the nodes of births from the programs. The fast tier has room for
    /// all of it at any time: a share of the peak would be little while the program allocates.
    fn plan(&self, program: &[&str], unplanned: Unplanned) {
        let record = ["record", "--machine", "spr-cxl", "--sampler", "none", "-o", "a.profile"];
        let output = self.tiercel(&[&record, &["--"][..], program].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        let output = self.tiercel(&["plan", "a.profile", "--fast", "64MiB", "-o", "a.plan"]);
        assert!(output.status.success(), "{}", stderr(&output));
        let mut plan = read_plan(&self.path("a.plan")).unwrap();
        plan.sites.clear();
        plan.modules.clear();
        plan.small_objects = None;
        plan.unplanned = unplanned;
        write_plan(&plan, &self.path("a.plan")).unwrap();
    }

    /// Runs by the plan, until the daemon knows where what the test is about lies: given each
    /// site's bytes by node.
    fn summary(&self, program: &[&str], is_located: impl Fn(&[&Value]) -> bool) -> Value {
        let run = ["run", "--plan", "a.plan", "--tick", "20ms", "--json", "--output", "summary"];
        let mut command = tiercel();
        command.current_dir(self.folder.path()).args(run).arg("--").args(program);
        let mut process = Process::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let socket = process.line().trim().replace(".sock", ".control");
        let located = || {
            let output = self.tiercel(&["top", "--once", "--json", "--socket", &socket]);
            let objects: Value = serde_json::from_str(&stdout(&output)).ok()?;
            let rows = objects["rows"].as_array()?;
            let born = rows.iter().filter(|row| row["origin"] == "call");
            let nodes: Vec<&Value> = born.map(|row| &row["used"]["nodes"]).collect();
            is_located(&nodes).then_some(())
        };
        wait("the daemon to locate the objects", located);
        assert!(process.end().success());
        let summary = std::fs::read_to_string(self.path("summary")).unwrap();
        serde_json::from_str(&summary).unwrap()
    }

    /// Nodes of objects by the function that made them.
    fn nodes(&self, program: &[&str]) -> BTreeMap<String, String> {
        let is_object = |nodes: &&&Value| located(nodes, "0") + located(nodes, "1") >= 2 << 20;
        let are_located = |sites: &[&Value]| sites.iter().filter(is_object).count() >= 3;
        let summary = self.summary(program, are_located);
        let mut nodes = BTreeMap::new();
        for site in summary["sites"].as_array().unwrap() {
            let frames = site["stack"].as_array().unwrap().iter();
            let mut functions = frames.filter_map(|frame| frame["function"].as_str());
            let Some(maker) = functions.find(|name| name.starts_with("make_")) else { continue };
            let last = site["used"]["last_nodes"].as_object().unwrap();
            let names: Vec<&str> = last.keys().map(String::as_str).collect();
            nodes.insert(maker.to_owned(), names.join(" "));
        }
        nodes
    }
}

/// Bytes of a site on a node, where they are a MiB at least.
fn located(nodes: &Value, node: &str) -> u64 {
    nodes[node].as_u64().filter(|bytes| *bytes >= 1 << 20).unwrap_or(0)
}

/// Bytes of objects of at least a MiB on a node, at the last look. Static data and stacks are none
/// of the program's births, and blocks of small objects are no objects.
fn bytes_of(summary: &Value, node: &str) -> u64 {
    let of_site = |site: &Value| site["used"]["last_nodes"][node].as_u64().unwrap_or(0);
    let sites = summary["sites"].as_array().unwrap().iter();
    sites
        .filter(|site| site["origin"] == "call" && site["used"]["blocks"] == false)
        .map(of_site)
        .filter(|bytes| *bytes >= 1 << 20)
        .sum()
}

fn pairs(of: &[(&str, &str)]) -> BTreeMap<String, String> {
    of.iter().map(|&(maker, node)| (maker.to_owned(), node.to_owned())).collect()
}

#[test]
fn spaces_of_openmp_are_ours() {
    for name in ["libmemkind.so.0", "libmemkind.so"] {
        let stage = Stage { folder: tempfile::tempdir().unwrap() };
        let source = OPENMP.replace("%NAME%", name);
        compile(stage.folder.path(), "app", &source, &["-rdynamic"]);
        let program = ["./app", "hosted"];
        stage.plan(&program, Unplanned::Slowest);
        let slow = pairs(&[("make_high", "0"), ("make_large", "1"), ("make_plain", "1")]);
        assert_eq!(stage.nodes(&program), slow, "{name}");
        stage.plan(&program, Unplanned::Budget);
        let fast = pairs(&[("make_high", "0"), ("make_large", "1"), ("make_plain", "0")]);
        assert_eq!(stage.nodes(&program), fast, "{name}");
    }
}

/// Arrays in and out of a `with` block; one that grows stays with its handler.
const NUMPY: &str = r#"
import os
import select
import sys
import numpy
import tiercel
from numpy.core.multiarray import get_handler_name

def make_high():
    with tiercel.numpy_space("high-bandwidth"):
        return numpy.zeros(1 << 18)

def make_large():
    with tiercel.numpy_space("large-capacity"):
        return numpy.ones(1 << 18)

high, large, plain = make_high(), make_large(), numpy.zeros(1 << 18)
assert get_handler_name(plain) == "default_allocator" == get_handler_name()
assert (get_handler_name(high) == "tiercel") == tiercel.is_hosted()
try:
    with tiercel.numpy_space("fast"):
        raise SystemExit("an unknown space")
except ValueError as error:
    assert "large-capacity" in str(error)
large.resize(3 << 18, refcheck=False)
print(os.environ.get("TIERCEL_SOCKET"), flush=True)
high += 1
large += 1
plain += 1
while not select.select([sys.stdin], [], [], 0)[0]:
    high += 1
    large += 1
    plain += 1
assert high[0] == large[-1] == plain[7] and large[0] == high[0] + 1
"#;

#[test]
fn arrays_of_numpy_are_born_in_spaces() {
    let stage = Stage { folder: tempfile::tempdir().unwrap() };
    std::fs::write(stage.path("arrays.py"), NUMPY).unwrap();
    // The module lies beside the program, as a user would put it.
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/tiercel.py");
    std::fs::copy(module, stage.path("tiercel.py")).unwrap();
    let program = ["/usr/bin/python3", "arrays.py"];
    let mut plain = std::process::Command::new(program[0]);
    let plain = plain.arg(program[1]).current_dir(stage.folder.path()).output().unwrap();
    assert!(plain.status.success(), "package python3-numpy: {}", stderr(&plain));
    stage.plan(&program, Unplanned::Slowest);
    let on = |sites: &[&Value], node| sites.iter().map(|site| located(site, node)).sum::<u64>();
    let summary =
        stage.summary(&program, |sites| on(sites, "0") >= 2 << 20 && on(sites, "1") >= 8 << 20);
    // Two arrays of 2 MiB in the slow memory, one of which grew to 6 MiB, and one in the fast.
    assert_eq!(bytes_of(&summary, "0"), 2 << 20, "{summary:#}");
}

#[test]
fn programs_without_openmp_see_no_memkind_of_ours() {
    let stage = Stage { folder: tempfile::tempdir().unwrap() };
    let source = OPENMP.replace("%NAME%", "libmemkind.so.0").replace("omp_init", "other_init");
    compile(stage.folder.path(), "app", &source, &["-rdynamic"]);
    let real = Path::new("/usr/lib/x86_64-linux-gnu/libmemkind.so.0").exists();
    let output = stage.tiercel(&["run", "--quiet", "--", "./app", "hosted"]);
    assert_eq!(output.status.code() == Some(4), !real, "{}", stderr(&output));
}
