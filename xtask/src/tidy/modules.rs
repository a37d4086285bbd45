//! The modules of a crate and the names each takes from others. In: a crate's files. Out: edges
//! from file to file, each with the imported names. Knows nothing of types, nor of other crates.
//!
//! An edge is an import (`use`, unless it has a visibility: a re-export passes a name on and uses
//! nothing) or a path in the code that begins with `crate`, `super`, `self` or a child module. A
//! name is followed through re-exports to the file that defines it. Declaring a module is no edge,
//! nor is anything in test code, nor a use of an ancestor: a child may import its parent.

use std::collections::{BTreeMap, BTreeSet};

use super::source::File;

/// How many re-exports a name is followed through: more than any chain has, less than for ever.
const REEXPORTS_MAX: usize = 16;

const ITEM_KEYWORDS: &[&str] =
    &["fn", "struct", "enum", "trait", "type", "const", "static", "union"];

/// Uses of other files of the same crate: (user, used), as indices into the modules, and the names.
pub type Edges = BTreeMap<(usize, usize), BTreeSet<String>>;

/// One file of a crate that is not test code.
pub struct Module<'a> {
    pub file: &'a File,
    /// Names from the crate's root to this module; empty for `lib.rs` and `main.rs`.
    path: Vec<String>,
    tokens: Vec<String>,
    /// Child modules, those of tests not among them.
    children: BTreeSet<String>,
    /// Items that the file defines outside of any braces.
    items: BTreeSet<String>,
    imports: Vec<Import>,
}

/// One name of a `use` declaration.
struct Import {
    path: Vec<String>,
    /// What it is called here; `*` for all names of a module.
    alias: String,
    is_reexport: bool,
}

/// The modules of the crate whose sources are below `folder`, which ends in `/src/`.
pub fn of_crate<'a>(files: &'a [File], folder: &str) -> Vec<Module<'a>> {
    let sources = files.iter().filter(|file| file.is_rust() && file.path.starts_with(folder));
    let all: Vec<Module> = sources.map(|file| Module::new(file, folder)).collect();
    let declared: BTreeSet<Vec<String>> = all
        .iter()
        .flat_map(|module| module.children.iter().map(|child| join(&module.path, child)))
        .collect();
    all.into_iter().filter(|one| one.path.is_empty() || declared.contains(&one.path)).collect()
}

/// Who uses names of whom.
pub fn edges(modules: &[Module]) -> Edges {
    let mut edges = Edges::new();
    for (user, module) in modules.iter().enumerate() {
        for path in module.used_paths() {
            let Some(used) = resolve(modules, user, &path, 0) else { continue };
            if !module.path.starts_with(&modules[used].path) {
                let name = path.last().cloned().unwrap_or_default();
                edges.entry((user, used)).or_default().insert(name);
            }
        }
    }
    edges
}

fn join(path: &[String], name: &str) -> Vec<String> {
    path.iter().cloned().chain([name.to_owned()]).collect()
}

impl<'a> Module<'a> {
    fn new(file: &'a File, folder: &str) -> Module<'a> {
        let inside = file.path[folder.len()..].trim_end_matches(".rs");
        let mut path: Vec<String> = inside.split('/').map(String::from).collect();
        if path.last().is_some_and(|last| matches!(last.as_str(), "mod" | "lib" | "main")) {
            path.pop();
        }
        let tokens = tokens(&file.code_lines().join("\n"));
        let children = names_after(&tokens, &["mod"]);
        let items = items(&tokens);
        let imports = imports(&tokens);
        Module { file, path, tokens, children, items, imports }
    }

    /// The paths of all imports that are no re-exports, and those in the code.
    fn used_paths(&self) -> Vec<Vec<String>> {
        let imports = self.imports.iter().filter(|import| !import.is_reexport);
        let mut paths: Vec<Vec<String>> = imports.map(|import| import.path.clone()).collect();
        let mut in_use = false;
        for (n, token) in self.tokens.iter().enumerate() {
            in_use = if in_use { token != ";" } else { token == "use" };
            let begins = matches!(token.as_str(), "crate" | "super" | "self")
                || self.children.contains(token);
            let follows = n > 0 && matches!(self.tokens[n - 1].as_str(), "::" | ".");
            if !in_use && begins && !follows {
                paths.push(path_at(&self.tokens, n));
            }
        }
        paths.retain(|path| path.len() > 1);
        paths
    }
}

/// The module that defines what `path` names, seen from module `from`; `None` for another crate's.
fn resolve(modules: &[Module], from: usize, path: &[String], depth: usize) -> Option<usize> {
    let find = |path: &[String]| modules.iter().position(|module| module.path == path);
    let (first, rest) = path.split_first()?;
    let here = &modules[from];
    let start = match first.as_str() {
        "crate" => find(&[])?,
        "self" => from,
        "super" => find(here.path.split_last().map_or(&[][..], |(_, parent)| parent))?,
        child if here.children.contains(child) => find(&join(&here.path, child))?,
        _ => return None,
    };
    let mut at = start;
    for (n, name) in rest.iter().enumerate() {
        let module = &modules[at];
        if name == "super" {
            at = find(module.path.split_last().map_or(&[][..], |(_, parent)| parent))?;
        } else if let Some(child) = find(&join(&module.path, name)) {
            at = child;
        } else {
            let via = imported(modules, at, name, depth);
            let Some((next, is_module)) = via else { return Some(at) };
            if !is_module || n + 1 == rest.len() {
                return Some(next);
            }
            at = next;
        }
    }
    Some(at)
}

/// Where `name` comes from when module `at` imports it, and whether it is a module itself.
fn imported(modules: &[Module], at: usize, name: &str, depth: usize) -> Option<(usize, bool)> {
    let module = &modules[at];
    if depth >= REEXPORTS_MAX || module.items.contains(name) {
        return None;
    }
    if let Some(import) = module.imports.iter().find(|import| import.alias == name) {
        let target = resolve(modules, at, &import.path, depth + 1)?;
        return Some((target, modules[target].path.last() == import.path.last()));
    }
    let globs = module.imports.iter().filter(|import| import.alias == "*");
    globs
        .filter_map(|import| resolve(modules, at, &import.path, depth + 1))
        .filter(|target| *target != at)
        .find(|target| modules[*target].items.contains(name))
        .map(|target| (target, false))
}

/// Identifiers, `::` and single characters.
fn tokens(code: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    let mut inside = false;
    for c in code.chars() {
        let is_part = c.is_alphanumeric() || c == '_';
        match tokens.last_mut() {
            Some(last) if is_part && inside => last.push(c),
            Some(last) if c == ':' && last == ":" => *last = "::".into(),
            _ if c.is_whitespace() => {}
            _ => tokens.push(c.into()),
        }
        inside = is_part;
    }
    tokens
}

fn names_after(tokens: &[String], keywords: &[&str]) -> BTreeSet<String> {
    let pairs = tokens.windows(2);
    pairs.filter(|two| keywords.contains(&two[0].as_str())).map(|two| two[1].clone()).collect()
}

/// What the file defines at its top level.
fn items(tokens: &[String]) -> BTreeSet<String> {
    let mut items = BTreeSet::new();
    let mut depth = 0_usize;
    for two in tokens.windows(2) {
        match two[0].as_str() {
            "{" => depth += 1,
            "}" => depth = depth.saturating_sub(1),
            keyword if depth == 0 && ITEM_KEYWORDS.contains(&keyword) => {
                items.insert(two[1].clone());
            }
            _ => {}
        }
    }
    items
}

/// The path `a::b::C` that begins at token `at`.
fn path_at(tokens: &[String], at: usize) -> Vec<String> {
    let mut path = vec![tokens[at].clone()];
    let mut n = at + 1;
    while let [separator, name, ..] = &tokens[n..] {
        if separator != "::" || !name.starts_with(|c: char| c.is_alphabetic() || c == '_') {
            break;
        }
        path.push(name.clone());
        n += 2;
    }
    path
}

fn imports(tokens: &[String]) -> Vec<Import> {
    let mut imports = Vec::new();
    for (n, token) in tokens.iter().enumerate() {
        if token == "use" {
            let is_reexport = n > 0 && matches!(tokens[n - 1].as_str(), "pub" | ")");
            let mut at = n + 1;
            use_tree(tokens, &mut at, &[], is_reexport, &mut imports);
        }
    }
    imports
}

/// Reads one tree of a `use` declaration, `a::{b, c as d, e::*}`, below the path `prefix`.
fn use_tree(
    tokens: &[String],
    at: &mut usize,
    prefix: &[String],
    is_reexport: bool,
    imports: &mut Vec<Import>,
) {
    let mut path = prefix.to_vec();
    let mut alias = None;
    let begin = *at;
    while let Some(token) = tokens.get(*at) {
        match token.as_str() {
            "{" => {
                while tokens.get(*at).is_some_and(|token| token != "}" && token != ";") {
                    *at += 1;
                    use_tree(tokens, at, &path, is_reexport, imports);
                }
                *at += 1;
                return;
            }
            "," | "}" | ";" => break,
            "::" => {}
            "*" => alias = Some("*".into()),
            "as" => {
                *at += 1;
                alias = tokens.get(*at).cloned();
            }
            "self" if !path.is_empty() => {}
            name => path.push(name.into()),
        }
        *at += 1;
    }
    if *at > begin {
        let alias = alias.or_else(|| path.last().cloned()).unwrap_or_default();
        imports.push(Import { path, alias, is_reexport });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Edges of a crate `x` as `user -> used: names`.
    fn edges_of(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<File> = files
            .iter()
            .map(|(name, text)| File::new(&format!("crates/x/src/{name}"), text))
            .collect();
        let modules = of_crate(&files, "crates/x/src/");
        let name = |n: usize| modules[n].file.path["crates/x/src/".len()..].to_owned();
        let edges = edges(&modules);
        let line = |((user, used), names): (&(usize, usize), &BTreeSet<String>)| {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            format!("{} -> {}: {}", name(*user), name(*used), names.join(" "))
        };
        edges.iter().map(line).collect()
    }

    #[test]
    fn imports_and_paths_are_edges() {
        let root = "mod a;\nmod b;\n";
        let a = "use crate::b::{B, c::{self, D as E}};\nuse std::fmt;\n";
        assert_eq!(
            edges_of(&[("lib.rs", root), ("a.rs", a), ("b.rs", "")]),
            ["a.rs -> b.rs: B D c"]
        );
        for a in ["fn f() { crate::b::g(); }\n", "fn f(x: super::b::g) {}\n", "use super::b::g;\n"]
        {
            assert_eq!(
                edges_of(&[("lib.rs", root), ("a.rs", a), ("b.rs", "")]),
                ["a.rs -> b.rs: g"]
            );
        }
    }

    #[test]
    fn a_reexported_name_leads_to_its_definition() {
        let b = "pub struct B;\npub fn g() {}\n";
        for root in ["mod a;\nmod b;\npub use b::B;\n", "mod a;\nmod b;\npub(crate) use b::*;\n"] {
            for a in ["use crate::B;\n", "use super::{B};\n", "fn f() { crate::B::new(); }\n"] {
                let edges = edges_of(&[("lib.rs", root), ("a.rs", a), ("b.rs", b)]);
                assert!(edges.len() == 1 && edges[0].starts_with("a.rs -> b.rs: "), "{edges:?}");
            }
        }
    }

    #[test]
    fn reexports_comments_and_tests_are_not_edges() {
        let root = "mod a;\nmod b;\npub use a::A;\npub struct Root;\n#[cfg(test)]\nmod t;\n";
        let a = "use super::Root;\n// crate::b::B\n#[cfg(test)]\nmod tests { use crate::b::B; }\n";
        let t = "use crate::b::B;\n";
        let files = [("lib.rs", root), ("a.rs", a), ("b.rs", "use std::fs;\n"), ("t.rs", t)];
        assert!(edges_of(&files).is_empty(), "{:?}", edges_of(&files));
    }

    #[test]
    fn a_parent_that_uses_its_child_has_an_edge() {
        let a = "mod b;\nuse self::b::B;\nfn f() { b::g(); }\n";
        let files = [("lib.rs", "mod a;\n"), ("a/mod.rs", a), ("a/b.rs", "use super::f;\n")];
        assert_eq!(edges_of(&files), ["a/mod.rs -> a/b.rs: B g"]);
    }
}
