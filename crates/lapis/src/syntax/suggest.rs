//! "Did you mean": the most similar known name.

/// The candidate nearest to `name`, if it is near enough to be a slip of the finger.
pub fn similar<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (name.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .filter(|c| *c != name && c.len().abs_diff(name.len()) <= limit)
        .map(|c| (distance(name, c), c))
        .filter(|(d, _)| *d <= limit)
        .min_by_key(|(d, c)| (*d, c.len()))
        .map(|(_, c)| c)
}

/// Edit distance in which a change of case costs nothing when that is the only change,
/// and exchanging two neighbours counts once.
fn distance(a: &str, b: &str) -> usize {
    if a.eq_ignore_ascii_case(b) {
        return 0;
    }
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let change = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = change.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before[j - 2] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_slips_only() {
        let names = ["kernel_invocations", "device_memory"];
        assert_eq!(similar("kernel_invocation", names), Some("kernel_invocations"));
        assert_eq!(similar("memory", names), None);
        assert_eq!(similar("bufer", ["buffer", "out"]), Some("buffer"));
        assert_eq!(similar("aysnc", ["async", "sync"]), Some("async"));
        assert_eq!(similar("IN", ["in", "out"]), Some("in"));
        assert_eq!(similar("x", ["yy"]), None);
    }
}
