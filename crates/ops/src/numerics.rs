//! What the bits of a result may depend on.
//!
//! Sums of floating-point numbers depend on their order, and the fastest order depends on how many rows there are. So the
//! same request gets slightly different numbers in another batch, unless every kernel that may see a row adds in one
//! order. Which kernels do is said in `plan.rs` for products and beside each walk over a context for attention; all other
//! ops treat rows one by one and have one order anyway.

/// Who decides the order of sums.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Default, Debug, serde::Serialize, serde::Deserialize)]
pub enum Numerics {
    /// The batch: each gets its fastest kernels.
    #[default]
    Fastest,
    /// The row alone: its bits do not depend on the other rows, on how a prompt was cut, or on the number of threads.
    RowInvariant,
}
