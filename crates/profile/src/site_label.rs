//! The label of a site for people: the function to which its objects are attributed, and the line.
//! In: a [`Site`]. Out: a text. Knows nothing of how names were found.

use std::path::Path;

use crate::profile::{Frame, Name, Site};
use tiercel_symbolize::is_wrapper;

/// `function file.c:12`, `function (module+0x12)`, `module+0x12`, or `unknown site`: as summaries
/// name it.
pub fn site_label(site: &Site) -> String {
    match owner(site) {
        Some((frame, Some(name))) => short(frame, name),
        Some((frame, None)) => address(frame),
        None => "unknown site".to_owned(),
    }
}

/// The innermost function that is not an allocation wrapper, with its frame; the outermost if all
/// are wrappers; `None` if it has no name.
pub fn owning_frame(site: &Site) -> Option<(&Frame, &Name)> {
    owner(site).and_then(|(frame, name)| Some((frame, name?)))
}

/// As `tiercel_symbolize::Symbols::owning_frame` chooses it. A frame without a name is not skipped:
/// the next one with a name, of a stripped program, is libc's that calls `main`.
fn owner(site: &Site) -> Option<(&Frame, Option<&Name>)> {
    for frame in &site.frames {
        if frame.names.is_empty() {
            return Some((frame, None));
        }
        if let Some(name) = frame.names.iter().find(|name| !is_wrapper(&name.function)) {
            return Some((frame, Some(name)));
        }
    }
    site.frames.last().map(|frame| (frame, frame.names.last()))
}

fn short(frame: &Frame, name: &Name) -> String {
    let file = |path: &str| {
        let name = Path::new(path).file_name();
        name.map_or_else(|| path.to_owned(), |name| name.to_string_lossy().into_owned())
    };
    match (name.file.is_empty(), frame.module.is_empty()) {
        (false, _) => format!("{} {}:{}", name.function, file(&name.file), name.line),
        (true, false) => format!("{} ({})", name.function, address(frame)),
        (true, true) => name.function.to_string(),
    }
}

fn address(frame: &Frame) -> String {
    let module = Path::new(&*frame.module).file_name();
    let module = module.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let plus = if module.is_empty() { "" } else { "+" };
    format!("{module}{plus}{:#x}", frame.address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(names: &[(&str, &str, u32)], expect: &str) {
        let names = names.iter().map(|&(function, file, line)| Name {
            function: function.into(),
            file: file.into(),
            line,
        });
        let frame = Frame {
            module: "/usr/bin/app".into(),
            build_id: "".into(),
            address: 0x1234,
            names: names.collect(),
        };
        assert_eq!(site_label(&Site { hash: 1, frames: vec![frame] }), expect);
    }

    #[test]
    fn the_label_skips_allocation_wrappers() {
        check(&[], "app+0x1234");
        let unnamed = Frame { module: "/usr/bin/app".into(), address: 0x99, ..Frame::default() };
        let start = Name { function: "__libc_start_main".into(), ..Name::default() };
        let caller = Frame { names: vec![start], ..Frame::default() };
        let stripped = Site { hash: 1, frames: vec![unnamed, caller] };
        assert_eq!((site_label(&stripped).as_str(), owning_frame(&stripped)), ("app+0x99", None));
        check(&[("xmalloc", "/src/x.c", 3), ("table", "/src/t.c", 7)], "table t.c:7");
        check(&[("xmalloc", "", 0)], "xmalloc (app+0x1234)");
        assert_eq!(site_label(&Site::default()), "unknown site");
    }
}
