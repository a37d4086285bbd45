//! The label of a site for people: the function to which its objects are attributed, and the line.
//! In: a [`Site`]. Out: a text. Knows nothing of how names were found.

use std::path::Path;

use crate::profile::{Frame, Name, Site};
use tiercel_symbolize::is_wrapper;

/// `function file.c:12`, `function (module)`, `module+0x12`, or `unknown site`.
pub fn site_label(site: &Site) -> String {
    if let Some((frame, name)) = owning_frame(site) {
        return short(frame, name);
    }
    match site.frames.first() {
        Some(frame) => address(frame),
        None => "unknown site".to_owned(),
    }
}

/// The innermost function that is not an allocation wrapper, with its frame; the outermost if all
/// are wrappers; `None` if no frame has a name.
pub fn owning_frame(site: &Site) -> Option<(&Frame, &Name)> {
    let named = || {
        let frames = site.frames.iter();
        frames.flat_map(|frame| frame.names.iter().map(move |name| (frame, name)))
    };
    named().find(|(_, name)| !is_wrapper(&name.function)).or_else(|| named().last())
}

fn short(frame: &Frame, name: &Name) -> String {
    let file = |path: &str| {
        let name = Path::new(path).file_name();
        name.map_or_else(|| path.to_owned(), |name| name.to_string_lossy().into_owned())
    };
    match (name.file.is_empty(), frame.module.is_empty()) {
        (false, _) => format!("{} {}:{}", name.function, file(&name.file), name.line),
        (true, false) => format!("{} ({})", name.function, file(&frame.module)),
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
        check(&[("xmalloc", "/src/x.c", 3), ("table", "/src/t.c", 7)], "table t.c:7");
        check(&[("xmalloc", "", 0)], "xmalloc (app)");
        assert_eq!(site_label(&Site::default()), "unknown site");
    }
}
