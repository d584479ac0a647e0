//! Checks of `versions(...)`.

use super::Loader;
use crate::syntax::ast::Text;
use crate::syntax::diagnostics::Diagnostic;

/// Versions of one library. Each symbol that has one answers to all of them, and the dynamic linker looks at all.
const MAX_VERSIONS: usize = 4096;

impl Loader<'_> {
    /// Adds the versions of one item; those of several (imports) all count.
    pub(super) fn versions(&mut self, pattern: &Text, versions: &mut Vec<String>) {
        match expand(&pattern.value) {
            Err(wrong) => self.diagnostics.push(
                Diagnostic::error(pattern.span, format!("`{}` names no symbol versions", pattern.value))
                    .label(wrong)
                    .help("write one as `readelf -V` shows it, with ranges for numbers: `versions(\"LIB_1.{0-20}\");`"),
            ),
            Ok(names) => {
                for name in names {
                    if !versions.contains(&name) {
                        versions.push(name);
                    }
                }
            }
        }
    }
}

/// The names that a pattern stands for: `{1-3}` in it is each of the numbers 1, 2 and 3.
fn expand(pattern: &str) -> Result<Vec<String>, &'static str> {
    let mut names = vec![String::new()];
    let mut rest = pattern;
    while let Some((before, behind)) = rest.split_once('{') {
        let (range, after) = behind.split_once('}').ok_or("a range has no end")?;
        let number = |text: &str| text.parse::<usize>().map_err(|_| "a range is two numbers, `{0-9}`");
        let (first, last) = range.split_once('-').ok_or("a range is two numbers, `{0-9}`")?;
        let (first, last) = (number(first)?, number(last)?);
        let count = last.checked_sub(first).ok_or("the range is empty")?.saturating_add(1);
        if count.saturating_mul(names.len()) > MAX_VERSIONS {
            return Err("more than 4096 versions");
        }
        let each = |name: &String| (first..=last).map(|n| format!("{name}{before}{n}")).collect::<Vec<_>>();
        names = names.iter().flat_map(each).collect();
        rest = after;
    }
    names.iter_mut().for_each(|name| name.push_str(rest));
    let plain = |name: &String| name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.".contains(&b));
    if !pattern.is_empty() && names.iter().all(plain) { Ok(names) } else { Err("letters, digits, `_`, `.` and ranges") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_stand_for_their_numbers() {
        assert_eq!(expand("A_1.0"), Ok(vec!["A_1.0".into()]));
        assert_eq!(expand("A_{9-10}.{0-1}b").expect("names"), ["A_9.0b", "A_9.1b", "A_10.0b", "A_10.1b"]);
        for wrong in
            ["", "A B", "A{", "A}", "A{1}", "A{2-1}", "A{0-18446744073709551615}", "A-B", "{0-99}{0-99}", "A;{0-1}"]
        {
            assert!(expand(wrong).is_err(), "{wrong}");
        }
    }
}
