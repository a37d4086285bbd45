//! Finds the system's own Debian mirror in apt's source lists.
//! In: the text of `*.sources` (deb822) and `*.list` (one-line) files. Out: [`Mirror`].
//! Knows nothing of the network; a wrong guess is caught later by the archive's signature.

/// A source of Debian's packages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mirror {
    /// Its address, as in the source list: `http:`, `https:`, `file:` or `mirror+file:`, for
    /// example.
    pub uri: String,
    /// Its suite, as in the source list: a code name or an alias such as `stable`.
    pub suite: String,
}

/// Format of a source list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Stanzas of `Key: value`, files named `*.sources`.
    Deb822,
    /// `deb [options] uri suite component...`, files named `*.list`.
    OneLine,
}

/// The names under which the running release may be listed.
const ALIASES: [&str; 5] = ["stable", "oldstable", "oldoldstable", "testing", "unstable"];

/// One entry of a source list.
#[derive(Clone, Debug, Default)]
struct Entry {
    uris: Vec<String>,
    suites: Vec<String>,
    components: Vec<String>,
    signed_by: String,
}

/// The first entry that can be Debian's own for this release: binary packages, the release's plain
/// suite, component `main`, and Debian's keyring or none. Others are ignored.
pub(crate) fn debian_mirror<'a>(
    files: impl IntoIterator<Item = (Form, &'a str)>,
    codename: &str,
) -> Option<Mirror> {
    files
        .into_iter()
        .flat_map(|(form, text)| match form {
            Form::Deb822 => deb822(text),
            Form::OneLine => text.lines().filter_map(one_line).collect(),
        })
        .find_map(|entry| own_mirror(&entry, codename))
}

fn own_mirror(entry: &Entry, codename: &str) -> Option<Mirror> {
    let foreign_key = !entry.signed_by.is_empty() && !entry.signed_by.contains("debian-archive");
    if foreign_key || !entry.components.iter().any(|c| c == "main") {
        return None;
    }
    let suite = entry.suites.iter().find(|s| *s == codename || ALIASES.contains(&s.as_str()))?;
    let uri = entry.uris.iter().find(|uri| uri.contains(':') && !uri.starts_with("cdrom:"))?;
    Some(Mirror { uri: uri.clone(), suite: suite.clone() })
}

fn deb822(text: &str) -> Vec<Entry> {
    let mut entries = Vec::new();
    let mut fields: Vec<(String, String)> = Vec::new();
    for line in text.lines().chain([""]) {
        if line.starts_with('#') {
            continue;
        }
        if line.trim().is_empty() {
            entries.extend(stanza(&fields));
            fields.clear();
        } else if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = fields.last_mut() {
                value.push(' ');
                value.push_str(line.trim());
            }
        } else if let Some((key, value)) = line.split_once(':') {
            fields.push((key.trim().to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    entries
}

fn stanza(fields: &[(String, String)]) -> Option<Entry> {
    let field = |key: &str| {
        fields.iter().find(|(name, _)| name == key).map_or("", |(_, value)| value.as_str())
    };
    let words = |key: &str| field(key).split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let enabled = !matches!(field("enabled"), "no" | "false" | "off" | "0");
    (enabled && words("types").iter().any(|t| t == "deb")).then(|| Entry {
        uris: words("uris"),
        suites: words("suites"),
        components: words("components"),
        signed_by: field("signed-by").to_owned(),
    })
}

fn one_line(line: &str) -> Option<Entry> {
    let line = line.split('#').next()?.trim();
    let rest = line.strip_prefix("deb")?;
    let rest = rest.strip_prefix([' ', '\t'])?.trim_start();
    let (options, rest) = match rest.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => ("", rest),
    };
    let signed_by =
        options.split_whitespace().find_map(|o| o.strip_prefix("signed-by=")).unwrap_or_default();
    let mut words = rest.split_whitespace().map(str::to_owned);
    Some(Entry {
        uris: vec![words.next()?],
        suites: vec![words.next()?],
        components: words.collect(),
        signed_by: signed_by.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(form: Form, text: &str, expect: Option<(&str, &str)>) {
        let got = debian_mirror([(form, text)], "bookworm");
        let expect =
            expect.map(|(uri, suite)| Mirror { uri: uri.to_owned(), suite: suite.to_owned() });
        assert_eq!(got, expect, "{text}");
    }

    #[test]
    fn deb822_stanza() {
        check(
            Form::Deb822,
            "Types: deb\n# a comment\nURIs: http://mirror.example/debian\n\
             Suites: bookworm bookworm-updates\nComponents: main\n\
             Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n",
            Some(("http://mirror.example/debian", "bookworm")),
        );
    }

    #[test]
    fn continued_fields_and_aliases() {
        check(
            Form::Deb822,
            "types: deb deb-src\nuris:\n http://mirror.example/debian\nsuites: stable\n\
             components: main contrib\n",
            Some(("http://mirror.example/debian", "stable")),
        );
    }

    #[test]
    fn foreign_and_disabled_stanzas_are_skipped() {
        check(
            Form::Deb822,
            "Types: deb\nURIs: https://vendor.example/apt\nSuites: bookworm\nComponents: main\n\
             Signed-By: /etc/apt/keyrings/vendor.gpg\n\n\
             Enabled: no\nTypes: deb\nURIs: http://off.example/debian\nSuites: bookworm\n\
             Components: main\n\n\
             Types: deb-src\nURIs: http://source.example/debian\nSuites: bookworm\n\
             Components: main\n",
            None,
        );
    }

    #[test]
    fn one_line_with_options() {
        check(
            Form::OneLine,
            "# deb http://old.example/debian bookworm main\n\
             deb cdrom:[Debian]/ bookworm main\n\
             deb-src http://mirror.example/debian bookworm main\n\
             deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] \
             http://mirror.example/debian bookworm main # own\n",
            Some(("http://mirror.example/debian", "bookworm")),
        );
    }

    #[test]
    fn entries_of_other_releases_or_components_are_ignored() {
        check(Form::OneLine, "deb http://mirror.example/debian trixie main\n", None);
        check(Form::OneLine, "deb http://vendor.example/debian bookworm stable\n", None);
        check(Form::OneLine, "deb\ndeb [\ndeb [x] \n", None);
    }
}
