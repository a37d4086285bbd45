//! The fields of `/proc/PID/stat`.
//! In: its text. Out: a field. Knows nothing of what a field means.

/// A field by its number in proc_pid_stat(5), from 3 on: the program's name, which is the second,
/// may hold anything.
pub fn field(text: &str, number: usize) -> Option<&str> {
    let (_, rest) = text.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(number.checked_sub(3)?)
}

#[cfg(test)]
mod tests {
    use super::field;

    #[test]
    fn a_name_may_hold_anything() {
        let text = "7 (a) R 1 (b) c) S 1 7\n";
        assert_eq!(
            [3, 4, 5, 6].map(|number| field(text, number)),
            [Some("S"), Some("1"), Some("7"), None]
        );
        assert_eq!((field(text, 2), field("", 3), field("7 (a", 3)), (None, None, None));
    }
}
