//! Rows of the application's memory that lie apart, and how much memory is sane.

use crate::Region;

/// Rows that are named one by one in a message over a socket, and the gap in bytes between them from which it is worth it.
const MOST_REGIONS: usize = 1 << 14;
const LEAST_GAP: usize = 64;

/// Bytes. No buffer is larger: a larger size is a mistake or an attack.
pub const MAX_BUFFER_BYTES: i128 = 1 << 40;

/// `count`, if elements of `stride` bytes each make a sane size.
#[inline]
pub fn count(count: i128, stride: usize) -> Option<usize> {
    if count < 0 || count.saturating_mul(stride as i128) > MAX_BUFFER_BYTES {
        return None;
    }
    usize::try_from(count).ok()
}

/// Rows of one length that lie apart, in planes that lie apart. All lengths are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    pub width: usize,
    pub rows: usize,
    /// From the beginning of a row to that of the next.
    pub pitch: usize,
    pub planes: usize,
    /// From the beginning of a plane to that of the next.
    pub step: usize,
}

impl Rows {
    /// From numbers that both sides have checked with [`span`]; what did not pass there has no rows.
    pub fn new(width: i128, rows: i128, pitch: i128, planes: i128, step: i128, stride: usize) -> Rows {
        let bytes = |n: i128| count(n, stride).unwrap_or(0) * stride;
        let number = |n: i128| count(n, 1).unwrap_or(0);
        match span(width, rows, pitch, planes, step) {
            0 | -1 => Rows { width: 0, rows: 0, pitch: 0, planes: 0, step: 0 },
            _ => Rows {
                width: bytes(width),
                rows: number(rows),
                pitch: bytes(pitch),
                planes: number(planes),
                step: bytes(step),
            },
        }
    }

    /// Where each piece begins, and its length, within the first `limit` bytes. Rows without a gap are one piece.
    pub fn pieces(self, limit: usize) -> impl Iterator<Item = (usize, usize)> {
        let dense = self.pitch == self.width || self.rows == 1;
        let (rows, width) = if dense { (self.rows.min(1), self.width * self.rows) } else { (self.rows, self.width) };
        let begin = move |plane: usize, row: usize| {
            plane.checked_mul(self.step).and_then(|at| at.checked_add(row.checked_mul(self.pitch)?))
        };
        let within = move |(plane, row)| {
            let at = begin(plane, row).filter(|at| *at < limit)?;
            Some((at, width.min(limit - at)))
        };
        (0..self.planes).flat_map(move |plane| (0..rows).map(move |row| (plane, row))).map_while(within)
    }

    /// The parts of a block of `bytes` bytes at `offset` that travel: the rows, unless naming each of them takes more
    /// than the gaps that are left out.
    pub fn regions(self, offset: u64, bytes: usize) -> impl Iterator<Item = Region> {
        let dense = self.pitch == self.width || self.rows == 1;
        let count = self.planes.saturating_mul(if dense { self.rows.min(1) } else { self.rows });
        let gap = if dense { self.step.saturating_sub(self.width * self.rows) } else { self.pitch - self.width };
        let apart = count <= MOST_REGIONS && gap >= LEAST_GAP;
        let whole = (!apart && count > 0).then_some((0, bytes));
        let pieces = self.pieces(if apart { bytes } else { 0 });
        whole.into_iter().chain(pieces).map(move |(at, length)| Region { offset: offset + at as u64, length })
    }
}

/// Elements from the first row's beginning to the last one's end. -1: a number is negative, or rows or planes overlap.
pub fn span(width: i128, rows: i128, pitch: i128, planes: i128, step: i128) -> i128 {
    if width < 0 || rows < 0 || planes < 0 {
        return -1;
    }
    if width == 0 || rows == 0 || planes == 0 {
        return 0;
    }
    if rows > 1 && pitch < width {
        return -1;
    }
    let plane = pitch.saturating_mul(rows - 1).saturating_add(width);
    if planes > 1 && step < plane {
        return -1;
    }
    step.saturating_mul(planes - 1).saturating_add(plane)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_inside_their_span_or_refused() {
        let pieces = |rows: Rows, limit| rows.pieces(limit).collect::<Vec<_>>();
        assert_eq!((span(3, 2, 5, 1, 0), span(3, 2, 5, 2, 8), span(3, 1, 0, 1, 0)), (8, 16, 3));
        assert_eq!((span(3, 2, 2, 1, 0), span(3, 2, -5, 1, 0), span(3, 2, 5, 2, 7)), (-1, -1, -1));
        assert_eq!((span(-1, 1, 0, 1, 0), span(1, -1, 0, 1, 0), span(1, 1, 0, -1, 0)), (-1, -1, -1));
        assert_eq!((span(0, 5, -1, 1, 0), span(5, 0, 1, 1, 0), span(5, 5, 5, 0, 0)), (0, 0, 0));
        assert_eq!(span(1, i128::from(u64::MAX), i128::from(u64::MAX), i128::from(u64::MAX), i128::MAX), i128::MAX);
        let two = Rows::new(3, 2, 5, 2, 10, 4);
        assert_eq!(pieces(two, 1000), [(0, 12), (20, 12), (40, 12), (60, 12)]);
        assert_eq!(pieces(two, 64), [(0, 12), (20, 12), (40, 12), (60, 4)]);
        assert_eq!(pieces(Rows::new(5, 4, 5, 1, 0, 1), 1000), [(0, 20)]);
        assert_eq!(pieces(Rows::new(3, 2, 2, 1, 0, 1), 1000), []);
        assert_eq!(pieces(Rows::new(1, i128::MAX, i128::MAX, 1, 0, 1), 1000), []);
    }
}
