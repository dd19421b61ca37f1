//! Sorting on AMD and NVIDIA GPUs, and its relatives: argsort, top-k, prefix sums, reductions, histograms.
//!
//! The sort is an LSD radix sort: stable, linear in the number of keys, any length. Its kernels are Rust (`kernels/`), the
//! same text for both vendors, and ship as machine code: nothing is compiled on the user's machine, and a build needs no
//! GPU software. Floats are ordered as by `f32::total_cmp`: -NaN, -inf, ..., -0, +0, ..., +inf, NaN.
//!
//! ```no_run
//! use gpu::{Device, Queue, Vendor};
//! use sort::Sorter;
//!
//! # fn main() -> gpu::Result<()> {
//! let queue = Queue::new(&Device::open(Vendor::Amd, 0)?)?;
//! let sorter = Sorter::new(queue.device())?;
//! let mut keys = queue.buffer_from(&[3.5_f32, -1.0, 2.0])?;
//! sorter.sort(&queue, keys.all_mut())?;
//! assert_eq!(queue.read(keys.all())?, [-1.0, 2.0, 3.5]);
//! # Ok(())
//! # }
//! ```
//!
//! What it does not do: it keeps no memory between calls (a sort takes a second buffer of its keys and a count for every 16
//! of them from the queue, and gives them back), and it never waits.

mod kernels;
mod key;
mod primitives;
mod sorter;

pub use key::{Key, Payload};
pub use primitives::{Reduce, Reducible, Scannable};
pub use sorter::{SortOrder, Sorter};
