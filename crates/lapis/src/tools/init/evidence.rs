//! Evidence that a header has beside its types: documentation comments, and macros in the manner of SAL.

use crate::header::Notes;

/// The way that the documentation says a parameter flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    In,
    Out,
    Both,
}

/// The meaning, for one parameter, of the words around a declaration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Evidence {
    pub flow: Option<Flow>,
    /// The count in `_In_reads_(n)`.
    pub count: Option<String>,
}

/// The evidence for each parameter of a function, by its notes.
pub fn evidence(notes: &Notes, parameters: &[String]) -> Vec<Evidence> {
    let marked = marks(&notes.text, parameters.len());
    let documented = parameters.iter().map(|name| documented(&notes.comment, name));
    documented
        .zip(marked)
        .map(|(comment, mark)| match (mark.flow, comment) {
            // Words that contradict each other say nothing.
            (Some(a), Some(b)) if a != b => Evidence::default(),
            (flow, comment) => Evidence { flow: flow.or(comment), count: mark.count },
        })
        .collect()
}

/// `@param[out] name`, `\\param name - Returned ...`, `@param name Reference in which to return ...`
fn documented(comment: &str, name: &str) -> Option<Flow> {
    for (at, _) in comment.match_indices("param") {
        if !comment[..at].ends_with(['@', '\\']) {
            continue;
        }
        let rest = comment[at + "param".len()..].trim_start_matches([' ', '\t']);
        let (mark, rest) = match rest.strip_prefix('[').and_then(|r| r.split_once(']')) {
            Some((mark, rest)) => (mark.replace(' ', ""), rest),
            None => (String::new(), rest),
        };
        let rest = rest.trim_start();
        let Some(text) = rest.strip_prefix(name) else { continue };
        if text.starts_with(|c: char| c.is_alphanumeric() || c == '_') {
            continue;
        }
        // Some write the mark behind the name.
        let behind = text.trim_start_matches([' ', '\t', '-', ':']).strip_prefix('[').and_then(|r| r.split_once(']'));
        let mark = match behind {
            Some((behind, _)) if mark.is_empty() => behind.replace(' ', ""),
            _ => mark,
        };
        return match mark.as_str() {
            "in" => Some(Flow::In),
            "out" => Some(Flow::Out),
            "in,out" | "inout" | "out,in" => Some(Flow::Both),
            _ => told(text),
        };
    }
    None
}

/// The first words of what is said about a parameter.
fn told(text: &str) -> Option<Flow> {
    let words: String =
        text.chars().map(|c| if c.is_alphanumeric() { c.to_ascii_lowercase() } else { ' ' }).take(160).collect();
    let words: Vec<&str> = words.split_whitespace().take(12).collect();
    let begins = |with: &[&str]| words.starts_with(with);
    if begins(&["returned"]) || begins(&["returns"]) || begins(&["reference", "in", "which", "to", "return"]) {
        return Some(Flow::Out);
    }
    let says = |what: &[&str]| words.windows(what.len()).any(|window| window == what);
    // "the room there is; on return the bytes that were written"
    if says(&["on", "return"]) || says(&["on", "exit"]) || says(&["on", "output"]) {
        return Some(Flow::Both);
    }
    says(&["will", "receive"]).then_some(Flow::Out)
}

/// `_In_`, `_Out_writes_(n)`, ... in the text of a declaration, parameter by parameter from the last one.
fn marks(text: &str, count: usize) -> Vec<Evidence> {
    let mut found = vec![Evidence::default(); count];
    let Some(open) = parameter_list(text) else { return found };
    let parts = split(&text[open + 1..]);
    for (evidence, part) in found.iter_mut().rev().zip(parts.iter().rev()) {
        *evidence = mark(part);
    }
    found
}

/// Where the last parenthesised list at the outermost level begins.
fn parameter_list(text: &str) -> Option<usize> {
    let (mut depth, mut last) = (0usize, None);
    for (at, c) in text.char_indices() {
        match c {
            '(' => {
                if depth == 0 {
                    last = Some(at);
                }
                depth += 1;
            }
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    last
}

fn split(list: &str) -> Vec<&str> {
    let (mut depth, mut from, mut parts) = (0usize, 0, Vec::new());
    for (at, c) in list.char_indices() {
        match c {
            '(' => depth += 1,
            ')' if depth == 0 => {
                parts.push(&list[from..at]);
                return parts;
            }
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&list[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[from..]);
    parts
}

fn mark(part: &str) -> Evidence {
    let Some(at) =
        ["_Inout_", "_In_", "_Out_", "_Outptr_", "_Frees_ptr_opt_"].iter().find_map(|m| Some((*m, part.find(m)?)))
    else {
        return Evidence::default();
    };
    let (word, from) = at;
    let flow = match word {
        "_Inout_" => Flow::Both,
        "_In_" | "_Frees_ptr_opt_" => Flow::In,
        _ => Flow::Out,
    };
    let rest = &part[from..];
    let name_end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    let counted = rest[..name_end].contains("reads") || rest[..name_end].contains("writes");
    let count = rest[name_end..].strip_prefix('(').and_then(|r| r.split_once(')')).map(|(n, _)| n.trim().to_string());
    Evidence { flow: Some(flow), count: count.filter(|_| counted) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_say_which_way_parameters_flow() {
        let comment = "/**\n * @param[in] a the source\n * \\param [out] ab the result\n * \\param pctx - Returned context handle\n \
                       * @param info Reference in which to return it\n * @param x a number\n \
                       * @param size [in,out] room\n * @param w pointer to an integer that will receive the width\n \
                       * @param room the room of it; on return what was used */";
        let flow = |name| documented(comment, name);
        assert_eq!(flow("a"), Some(Flow::In));
        assert_eq!(flow("ab"), Some(Flow::Out));
        assert_eq!(flow("pctx"), Some(Flow::Out));
        assert_eq!(flow("info"), Some(Flow::Out));
        assert_eq!(flow("x"), None);
        assert_eq!(flow("size"), Some(Flow::Both));
        assert_eq!(flow("w"), Some(Flow::Out));
        assert_eq!(flow("room"), Some(Flow::Both));
    }

    #[test]
    fn marks_belong_to_the_parameters_they_stand_before() {
        let text =
            "ORT_API2_STATUS(Run, _Inout_ S* s, _In_reads_(n) const char* const* names, size_t n, _Outptr_ V** out)";
        let all = marks(text, 4);
        assert_eq!(all[0].flow, Some(Flow::Both));
        assert_eq!(all[1], Evidence { flow: Some(Flow::In), count: Some("n".into()) });
        assert_eq!(all[2], Evidence::default());
        assert_eq!(all[3].flow, Some(Flow::Out));
    }
}
