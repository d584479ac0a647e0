//! How often the pages of tenants were not what the node had written.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

const SPAN: Duration = Duration::from_secs(10);

/// Tenants whose pages were written, and how often since when: within [`SPAN`].
#[derive(Debug, Default)]
pub struct Rewrites(HashMap<String, (u32, Instant)>);

impl Rewrites {
    /// How often with this time.
    pub fn count(&mut self, tenant: &str, now: Instant) -> u32 {
        self.0.retain(|_, (_, since)| now.saturating_duration_since(*since) < SPAN);
        let (count, _) = self.0.entry(tenant.to_owned()).or_insert((0, now));
        *count += 1;
        *count
    }
}

#[cfg(test)]
mod tests {
    use crate::tenants::rewrites::*;

    #[test]
    fn rewrites_are_counted_within_a_span() {
        let (mut rewrites, now) = (Rewrites::default(), Instant::now());
        assert_eq!([0, 1, 2].map(|second| rewrites.count("a", now + Duration::from_secs(second))), [1, 2, 3]);
        assert_eq!(rewrites.count("b", now), 1);
        assert_eq!(rewrites.count("a", now + SPAN), 1);
    }
}
