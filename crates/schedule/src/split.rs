//! The device time of jobs whose work overlaps.

/// A device's way with the work of several jobs.
///
/// ```
/// use aviary_schedule::{DeviceKind, split};
///
/// // Two jobs had work on the device for the same 10 ns.
/// let mut preemptive = [10, 10];
/// split(DeviceKind::Preemptive, 10, &mut preemptive);
/// assert_eq!(preemptive, [5, 5]);
/// // Without preemption the first one's work was done first.
/// let mut exclusive = [10, 10];
/// split(DeviceKind::Exclusive, 10, &mut exclusive);
/// assert_eq!(exclusive, [10, 0]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceKind {
    /// It does one job's work at a time, in the order of submission: accelerators without preemption, CPU devices,
    /// FPGAs.
    Exclusive,
    /// It gives the contexts of processes time slices by itself, also in the middle of a kernel: CUDA devices.
    Preemptive,
}

/// Divides `time` among jobs that had work on the device for `busy` nanoseconds each, in the order in which they were
/// admitted. The sum never exceeds `time`, whatever API servers report.
pub fn split(kind: DeviceKind, time: u64, busy: &mut [u64]) {
    match kind {
        // The work of an earlier job is done first.
        DeviceKind::Exclusive => {
            let mut left = time;
            for busy in busy {
                *busy = (*busy).min(left);
                left -= *busy;
            }
        }
        // Each of n jobs has an n-th of the device while all n have work there. For more than two it is not known how
        // much of their work overlapped with how many others': by what they have, which is the same for equals.
        DeviceKind::Preemptive => {
            busy.iter_mut().for_each(|busy| *busy = (*busy).min(time));
            let sum: u128 = busy.iter().map(|busy| u128::from(*busy)).sum();
            if let [one, two] = busy {
                let overlap = u64::try_from(sum.saturating_sub(u128::from(time))).unwrap_or(time);
                *one -= overlap / 2;
                *two -= overlap - overlap / 2;
            } else if sum > u128::from(time) {
                for busy in busy {
                    *busy = u64::try_from(u128::from(*busy) * u128::from(time) / sum).unwrap_or(time);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn overlap_is_the_first_jobs_or_halved() {
        let mut busy = [100, 30];
        split(DeviceKind::Exclusive, 110, &mut busy);
        assert_eq!(busy, [100, 10]);
        let mut busy = [100, 100, 100];
        split(DeviceKind::Preemptive, 100, &mut busy);
        assert_eq!(busy, [33, 33, 33]);
        let mut busy = [60, 40];
        split(DeviceKind::Preemptive, 100, &mut busy);
        assert_eq!(busy, [60, 40]);
    }

    proptest! {
        #[test]
        fn nothing_is_charged_twice(time in any::<u64>(), reported in proptest::collection::vec(any::<u64>(), 0..6)) {
            for kind in [DeviceKind::Exclusive, DeviceKind::Preemptive] {
                let mut busy = reported.clone();
                split(kind, time, &mut busy);
                let sum: u128 = busy.iter().map(|busy| u128::from(*busy)).sum();
                prop_assert!(sum <= u128::from(time));
                prop_assert!(busy.iter().zip(&reported).all(|(charged, reported)| charged <= reported));
            }
        }
    }
}
