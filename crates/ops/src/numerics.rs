//! What the bits of a result may depend on.
//!
//! Floating-point sums depend on their order, and the fastest order depends on the number of rows. So the same request
//! gets slightly different numbers in another batch, unless every kernel that may compute a row adds in the same order.
//! `plan.rs` says which kernels do for products; for attention, each walk over a context does. All other ops treat rows
//! one by one and have only one order.

/// Who decides the order of sums.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Default, Debug, serde::Serialize, serde::Deserialize)]
pub enum Numerics {
    /// The batch: each gets its fastest kernels.
    #[default]
    Fastest,
    /// The row alone: its bits do not depend on the other rows, on how a prompt was cut, or on the number of threads.
    RowInvariant,
}
