//! Where the name stands in a C declaration: in `int (*(*get)(int))(float)` deep inside.

/// The parts of a type's spelling before and after the place of a name.
pub fn split(spelling: &str) -> (&str, &str) {
    spelling.split_at(place(spelling).unwrap_or(spelling.len()))
}

/// A declaration of `name`.
pub fn declare(spelling: &str, name: &str) -> String {
    let (before, after) = split(spelling);
    let space = if before.ends_with(['*', ' ', '(']) { "" } else { " " };
    format!("{before}{space}{name}{}", if after.starts_with('[') { after } else { after.trim_start() })
}

/// None: the name comes last.
fn place(spelling: &str) -> Option<usize> {
    // The parenthesis of `_Atomic(int)` belongs to the type itself.
    let own = spelling.find("_Atomic(").and_then(|at| Some(at + spelling[at..].find(')')?)).unwrap_or(0);
    let mut at = own + spelling[own..].find(['(', '['])?;
    // A parenthesis with a star behind it holds a declarator; one inside it, a deeper one.
    if !spelling[at..].starts_with("(*") {
        return Some(at);
    }
    loop {
        at += 1;
        at += stars(&spelling[at..]);
        if !spelling[at..].starts_with("(*") {
            return Some(at);
        }
    }
}

/// How many bytes of a text are stars and qualifiers of pointers.
fn stars(text: &str) -> usize {
    let mut rest = text;
    loop {
        let before = rest;
        rest = rest.trim_start_matches(['*', ' ']);
        for word in ["const", "volatile", "restrict", "__restrict", "_Nullable", "_Nonnull", "_Null_unspecified"] {
            if let Some(behind) = rest.strip_prefix(word)
                && !behind.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
            {
                rest = behind;
            }
        }
        if rest == before {
            return text.len() - rest.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_where_c_wants_them() {
        let cases = [
            ("int", "int x"),
            ("const char *", "const char *x"),
            ("char *const", "char *const x"),
            ("int[4]", "int x[4]"),
            ("int[3][4]", "int x[3][4]"),
            ("int *[4]", "int *x[4]"),
            ("int (*)[5]", "int (*x)[5]"),
            ("void (*)(int)", "void (*x)(int)"),
            ("void (*[4])(int)", "void (*x[4])(int)"),
            ("void (*const)(int)", "void (*const x)(int)"),
            ("void (**)(int)", "void (**x)(int)"),
            ("int (*(*)(int))(float)", "int (*(*x)(int))(float)"),
            ("int (*(*(*)(char))(int))[2]", "int (*(*(*x)(char))(int))[2]"),
            ("void (int)", "void x(int)"),
            ("void *(void (*)(int))", "void *x(void (*)(int))"),
            ("_Atomic(int) *", "_Atomic(int) *x"),
        ];
        for (spelling, expected) in cases {
            assert_eq!(declare(spelling, "x"), expected, "{spelling}");
        }
    }
}
