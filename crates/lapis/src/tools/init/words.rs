//! Words of names.

/// The words of a name, in lower case; a number of its version is none.
pub fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let characters: Vec<char> = name.chars().collect();
    for (n, &c) in characters.iter().enumerate() {
        let before = n.checked_sub(1).map(|n| characters[n]);
        let after = characters.get(n + 1);
        let begins = c.is_ascii_uppercase()
            && (before.is_some_and(|b| !b.is_ascii_uppercase()) || after.is_some_and(|a| a.is_ascii_lowercase()));
        if c == '_' || begins {
            words.push(String::new());
        }
        if c != '_'
            && let Some(word) = words.last_mut()
        {
            word.push(c.to_ascii_lowercase());
        }
    }
    let version = |w: &String| w.trim_start_matches('v').chars().all(|c| c.is_ascii_digit());
    words.retain(|w| !w.is_empty() && !version(w));
    words
}

/// True if a name has one of these words.
pub fn has_word(name: &str, among: &[&str]) -> bool {
    words(name).iter().any(|word| among.contains(&word.as_str()))
}

/// A name as its words say it, without the letters in front that some houses put there (`p`, `ph`, `pp`, `n`).
pub fn stem(name: &str) -> String {
    let mut words = words(name);
    let is_mark = |w: &String| ["p", "pp", "h", "ph", "lp", "out", "ptr"].contains(&w.as_str());
    if words.len() > 1 && words.first().is_some_and(is_mark) {
        words.remove(0);
    }
    words.concat()
}

/// True if a name is one of several things.
pub fn looks_plural(name: &str) -> bool {
    let stem = stem(name);
    let singular = [
        "ss",
        "us",
        "is",
        "status",
        "address",
        "params",
        "args",
        "props",
        "attributes",
        "properties",
        "bus",
        "bytes",
        "pos",
        "flags",
    ];
    (stem.ends_with('s') && !singular.iter().any(|end| stem.ends_with(end)))
        || has_word(name, &["list", "array", "vector"])
}

/// The singular of a stem.
pub fn singular(stem: &str) -> String {
    stem.strip_suffix("ies")
        .map(|s| format!("{s}y"))
        .unwrap_or_else(|| stem.strip_suffix('s').unwrap_or(stem).to_string())
}

/// True if a name says that it is a list.
pub fn looks_listed(name: &str) -> bool {
    has_word(name, &["list", "array", "vector", "values", "buffer"])
}
