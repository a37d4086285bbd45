//! Circles of imports. In: files. Out: files of one crate that need one another, and C headers that
//! include one another. Knows nothing of what is imported; `modules` says what counts as a use.

use std::collections::{BTreeMap, BTreeSet};

use super::Problem;
use super::modules;
use super::source::{File, normal};

/// Where the C headers are that may include each other.
const HEADER_FOLDERS: &[&str] = &["include/", "runtime/", "workloads/", "bpf/"];

/// Who uses whom, by path, and the names used.
type Graph = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// Every circle; `path` is the crate's folder, or the headers'.
pub fn check(files: &[File]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for folder in crate_folders(files) {
        let modules = modules::of_crate(files, &format!("{folder}/src/"));
        let mut graph = Graph::new();
        for ((user, used), names) in modules::edges(&modules) {
            let (user, used) = (&modules[user].file.path, &modules[used].file.path);
            graph.entry(user.clone()).or_default().insert(used.clone(), names);
        }
        problems.extend(circles(&graph).iter().map(|circle| problem(&folder, circle, &graph)));
    }
    let headers = headers(files);
    let of_headers = circles(&headers);
    problems.extend(of_headers.iter().map(|circle| problem("headers", circle, &headers)));
    problems
}

fn problem(folder: &str, circle: &BTreeSet<String>, graph: &Graph) -> Problem {
    let mut what = format!("a circle of {} files that need one another:", circle.len());
    for user in circle {
        for (used, names) in graph[user].iter().filter(|(used, _)| circle.contains(*used)) {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            what.push_str(&format!("\n  {user} -> {used}: {}", names.join(", ")));
        }
    }
    Problem { path: folder.into(), line: 0, what }
}

fn crate_folders(files: &[File]) -> BTreeSet<String> {
    let is_root =
        |file: &&File| ["/src/lib.rs", "/src/main.rs"].iter().any(|end| file.path.ends_with(end));
    let folders = files.iter().filter(is_root).filter_map(|file| file.path.split_once("/src/"));
    folders.map(|(folder, _)| folder.to_owned()).collect()
}

/// The sets of two and more that all lead to one another.
fn circles(graph: &Graph) -> Vec<BTreeSet<String>> {
    let reached: BTreeMap<&String, BTreeSet<&String>> =
        graph.keys().map(|from| (from, reachable(graph, from))).collect();
    let mut circles: Vec<BTreeSet<String>> = Vec::new();
    for (from, seen) in &reached {
        let back = |to: &&&String| reached.get(**to).is_some_and(|seen| seen.contains(from));
        let circle: BTreeSet<String> = seen.iter().filter(back).map(|to| (*to).clone()).collect();
        if circle.len() > 1 && !circles.contains(&circle) {
            circles.push(circle);
        }
    }
    circles
}

fn reachable<'a>(graph: &'a Graph, from: &String) -> BTreeSet<&'a String> {
    let mut seen = BTreeSet::new();
    let mut open = vec![from];
    while let Some(at) = open.pop() {
        for next in graph.get(at).into_iter().flat_map(BTreeMap::keys) {
            if seen.insert(next) {
                open.push(next);
            }
        }
    }
    seen
}

/// Headers and the headers they include by `#include "..."`, whose path is looked up from the
/// header's own folder, then from the folders that the Makefiles name.
fn headers(files: &[File]) -> Graph {
    let is_header = |file: &&File| {
        matches!(file.extension(), "h" | "hpp")
            && HEADER_FOLDERS.iter().any(|folder| file.path.starts_with(folder))
    };
    let headers: Vec<&File> = files.iter().filter(is_header).collect();
    let mut graph = Graph::new();
    for header in &headers {
        let own = header.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for included in header.text().lines().filter_map(included) {
            let folders = [own].into_iter().chain(HEADER_FOLDERS.iter().copied());
            let paths: Vec<String> = folders.map(|folder| normal(folder, included)).collect();
            let found = paths.iter().find(|path| headers.iter().any(|one| one.path == **path));
            if let Some(path) = found {
                let used = graph.entry(header.path.clone()).or_default();
                used.entry(path.clone()).or_default().insert(included.to_owned());
            }
        }
    }
    graph
}

/// `a.h` of a line `#include "a.h"`.
fn included(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("include")?;
    rest.trim_start().strip_prefix('"')?.split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(files: &[(&str, &str)]) -> usize {
        let files: Vec<File> = files.iter().map(|(path, text)| File::new(path, text)).collect();
        check(&files).len()
    }

    #[test]
    fn files_that_import_one_another_are_a_circle() {
        let root = ("crates/x/src/lib.rs", "mod a;\nmod b;\nmod c;\n");
        let a = ("crates/x/src/a.rs", "use crate::b::B;\n");
        let b = ("crates/x/src/b.rs", "use crate::c::C;\n");
        assert_eq!(count(&[root, a, b, ("crates/x/src/c.rs", "fn c(_: crate::a::A) {}\n")]), 1);
        assert_eq!(count(&[root, a, b, ("crates/x/src/c.rs", "")]), 0);
    }

    #[test]
    fn a_child_may_import_its_parent_but_not_through_a_sibling() {
        let root = ("crates/x/src/lib.rs", "mod p;\nmod b;\n");
        let parent = ("crates/x/src/p/mod.rs", "mod child;\nuse child::C;\n");
        let child = ("crates/x/src/p/child.rs", "use super::P;\nuse crate::b::B;\n");
        assert_eq!(count(&[root, parent, child, ("crates/x/src/b.rs", "")]), 0);
        assert_eq!(count(&[root, parent, child, ("crates/x/src/b.rs", "use crate::p::P;\n")]), 1);
    }

    #[test]
    fn headers_that_include_one_another_are_a_circle() {
        let a = ("runtime/a/a.h", "#include \"../b.h\"\n");
        assert_eq!(count(&[a, ("runtime/b.h", "# include \"a/a.h\"\n")]), 1);
        assert_eq!(count(&[a, ("runtime/b.h", "#include <a/a.h>\n")]), 0);
    }
}
