//! Text that comes from anywhere, made harmless for HTML and SVG.
//! In: any text. Out: the same as character data. Knows nothing of where it stands.

/// Escapes what markup is made of. Control characters, and those that turn the direction of writing
/// (so that a name could look like another), become `?`.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}' => {
                out.push('?');
            }
            c if c.is_control() => out.push('?'),
            c => out.push(c),
        }
    }
    out
}

/// At most so many characters, with `…` where some are missing.
pub fn shortened(text: &str, chars_max: usize) -> String {
    if text.chars().count() <= chars_max {
        return text.to_owned();
    }
    let kept: String = text.chars().take(chars_max.saturating_sub(1)).collect();
    kept + "…"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_is_text() {
        let hostile = "</svg><script>x('&')</script>\u{1b}[2J\n\u{202e}";
        let expect = "&lt;/svg&gt;&lt;script&gt;x(&#39;&amp;&#39;)&lt;/script&gt;?[2J??";
        assert_eq!(escaped(hostile), expect);
        assert_eq!(escaped("\"größe\""), "&quot;größe&quot;");
    }

    #[test]
    fn long_names_end_in_dots() {
        assert_eq!(shortened("größer", 6), "größer");
        assert_eq!(shortened("größer", 4), "grö…");
    }
}
