//! Keys by which a stack is recognized after a rebuild.
//! In: frames by name. Out: texts that are equal for equivalent stacks. Knows nothing of addresses.

use std::path::Path;

use tiercel_wire::layout::NUMBERED_MAX;

/// A stack as text, exactly and less exactly. Innermost frame first; `None` without a known
/// function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StackKeys {
    /// Functions, source files and lines.
    pub by_lines: Option<String>,
    /// Functions alone: lines move with every edit above them.
    pub by_functions: Option<String>,
}

impl StackKeys {
    /// For frames (module's path, function, file, line), with empty texts and 0 where unknown. If
    /// there is no module, the line is the number of the birth (see [`numbered`]).
    pub fn of<'a>(frames: impl IntoIterator<Item = (&'a str, &'a str, &'a str, u32)>) -> StackKeys {
        let (mut by_lines, mut by_functions, mut named) = (String::new(), String::new(), false);
        for (module, function, file, line) in frames {
            named |= !function.is_empty();
            let number = format!("#{line}");
            let name = match (function.is_empty(), module.is_empty()) {
                (true, true) => &number,
                (true, false) => base(module),
                (false, _) => function,
            };
            by_functions.push_str(name);
            by_functions.push('\n');
            by_lines.push_str(name);
            if line > 0 && !function.is_empty() {
                by_lines.push_str(&format!(" {}:{line}", base(file)));
            }
            by_lines.push('\n');
        }
        let key = |text| named.then_some(text);
        StackKeys { by_lines: key(by_lines), by_functions: key(by_functions) }
    }
}

/// Which birth of a site it is, by its outermost frame (has a module, offset); 0 where births are
/// not numbered.
pub fn numbered(outermost: Option<(bool, u64)>) -> u32 {
    match outermost {
        Some((false, number)) if number <= u64::from(NUMBERED_MAX) => {
            u32::try_from(number).unwrap_or(0)
        }
        _ => 0,
    }
}

/// The last part of a path.
pub(crate) fn base(path: &str) -> &str {
    Path::new(path).file_name().and_then(|name| name.to_str()).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Frame = (&'static str, &'static str, &'static str, u32);

    fn check(left: &[Frame], right: &[Frame], by_lines: bool, by_functions: bool) {
        let (left, right) = (StackKeys::of(left.to_vec()), StackKeys::of(right.to_vec()));
        assert_eq!(left.by_lines == right.by_lines, by_lines, "{left:?} {right:?}");
        assert_eq!(left.by_functions == right.by_functions, by_functions, "{left:?} {right:?}");
    }

    #[test]
    fn lines_and_functions() {
        let frame = ("/a/app", "make", "/src/x.c", 12);
        check(&[frame], &[("/b/app", "make", "x.c", 12)], true, true);
        check(&[frame], &[("/a/app", "make", "x.c", 13)], false, true);
        check(&[frame], &[("/a/app", "other", "x.c", 12)], false, false);
        check(&[frame, frame], &[frame], false, false);
        let libc = ("/lib/libc.so.6", "", "", 0);
        check(&[frame, libc], &[frame, ("/usr/lib/libc.so.6", "", "", 0)], true, true);
        assert_eq!(StackKeys::of([libc]), StackKeys::default());
    }
}
