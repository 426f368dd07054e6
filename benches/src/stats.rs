//! Medians, percentiles and their intervals, without an assumption about the distribution.

use serde::Serialize;

/// What is told of one quantity of one contestant.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Summary {
    pub(crate) n: usize,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    /// Interval of the median; none with fewer than six samples.
    pub(crate) ci95: Option<(f64, f64)>,
    pub(crate) samples: Vec<f64>,
}

impl Summary {
    /// None of no samples.
    pub(crate) fn of(samples: &[f64]) -> Option<Self> {
        let sorted = sorted(samples);
        Some(Self {
            n: sorted.len(),
            p50: median(&sorted)?,
            p90: nearest_rank(&sorted, 0.9)?,
            p99: nearest_rank(&sorted, 0.99)?,
            ci95: interval(&sorted),
            samples: samples.to_vec(),
        })
    }
}

/// Quotients of two contestants, round by round.
pub(crate) fn ratios(over: &[f64], under: &[f64]) -> Vec<f64> {
    over.iter().zip(under).map(|(a, b)| a / b).collect()
}

fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

fn median(sorted: &[f64]) -> Option<f64> {
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    Some((sorted[sorted.len() / 2 - 1] + upper) / 2.0)
}

/// The smallest sample that at least the share `p` of the samples does not exceed.
fn nearest_rank(sorted: &[f64], p: f64) -> Option<f64> {
    let rank = (p * sorted.len() as f64).ceil().max(1.0) as usize;
    sorted.get(rank - 1).copied()
}

/// The narrowest pair of order statistics, symmetric about the middle, that holds the median with
/// a probability of at least 95 %.
fn interval(sorted: &[f64]) -> Option<(f64, f64)> {
    let low = lower_rank(sorted.len())?;
    Some((sorted[low], sorted[sorted.len() - 1 - low]))
}

/// The largest `k` with P(at most `k` of `n` fair coins show heads) <= 2.5 %.
fn lower_rank(n: usize) -> Option<usize> {
    // ln of the binomial coefficient over 2^n, so that no power of two underflows.
    let mut term = -(n as f64) * std::f64::consts::LN_2;
    let mut below = 0.0;
    let mut found = None;
    for k in 0..n / 2 {
        below += term.exp();
        if below > 0.025 {
            break;
        }
        found = Some(k);
        term += ((n - k) as f64).ln() - ((k + 1) as f64).ln();
    }
    found
}

/// Random order of the contestants (splitmix64; nothing here needs a better one).
pub(crate) struct Shuffler(pub(crate) u64);

impl Shuffler {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The numbers below `n` in random order.
    pub(crate) fn order(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for last in (1..n).rev() {
            order.swap(last, (self.next() % (last as u64 + 1)) as usize);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples_and_the_median_is_the_middle() {
        let samples: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let summary = Summary::of(&samples).unwrap();
        assert_eq!((summary.p50, summary.p90, summary.p99), (50.5, 90.0, 99.0));
        assert_eq!(Summary::of(&[3.0, 1.0, 2.0]).unwrap().p50, 2.0);
        assert!(Summary::of(&[]).is_none());
    }

    #[test]
    fn the_interval_has_the_ranks_of_the_tables() {
        // Counted from zero; 1-based: 1 and 6 of 6, 2 and 9 of 10, 10 and 21 of 30, 40 and 61 of 100.
        assert_eq!(lower_rank(5), None);
        assert_eq!(lower_rank(6), Some(0));
        assert_eq!(lower_rank(10), Some(1));
        assert_eq!(lower_rank(30), Some(9));
        assert_eq!(lower_rank(100), Some(39));
        assert!(lower_rank(5000).is_some_and(|k| (2400..2450).contains(&k)));
    }

    #[test]
    fn an_order_has_everyone_once() {
        let mut shuffler = Shuffler(7);
        let mut order = shuffler.order(9);
        order.sort_unstable();
        assert_eq!(order, (0..9).collect::<Vec<_>>());
    }
}
