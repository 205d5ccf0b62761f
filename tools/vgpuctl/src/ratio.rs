//! Counts as numbers to divide.

/// Counts here stay far below 2^53.
#[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
pub const fn as_f64(n: u64) -> f64 {
    n as f64
}
