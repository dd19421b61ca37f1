//! Kernels in Rust that use all of `roci-kernel`, and what launches them: a matrix product on the matrix units, sums that
//! blocks hand to one another, atomics of every type and scope.
//!
//! They ship as machine code in `objects/`, as those of a published crate would (`crates/kernel/README.md`).

pub mod kernels;

use gpu::{Device, Error, Launcher, Slice, SliceMut};
use half::f16;
use kernel::Loaded;

static OBJECTS: kernel::Objects = include!("../objects/objects.rs");

/// These kernels on a device.
#[track_caller]
pub fn load(device: &Device) -> gpu::Result<Loaded> {
    // SAFETY: `objects/` is made from kernels.rs, as a test checks.
    unsafe { OBJECTS.load(device) }
}

/// How the right factor of a product lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RightFactor {
    /// Row after row.
    Rows,
    /// Column after column.
    Columns,
}

/// C = A B, where A is `m` x `k`, B `k` x `n` and C `m` x `n`. A and C lie row after row.
#[track_caller]
pub fn gemm(
    kernels: &Loaded,
    launcher: &Launcher<'_>,
    [m, n, k]: [u32; 3],
    a: Slice<'_, f16>,
    (b, lies): (Slice<'_, f16>, RightFactor),
    c: SliceMut<'_, f32>,
) -> gpu::Result<()> {
    let at = std::panic::Location::caller();
    for (name, len, rows, columns) in [("A", a.len(), m, k), ("B", b.len(), k, n), ("C", c.len(), m, n)] {
        if len as u64 != u64::from(rows) * u64::from(columns) {
            let why = format!("{name} has {len} values, {rows} x {columns} are due");
            return Err(Error::Bounds { what: "a matrix", why, at });
        }
    }
    let n_tiles = m.div_ceil(16) as usize * n.div_ceil(16) as usize;
    // 32 threads of a block for each tile: half as many as a wave of 64 lanes wants, which then does two.
    let call = match lies {
        RightFactor::Rows => kernels::gemm(a, b, c, m, n, k),
        RightFactor::Columns => kernels::gemm_of_columns(a, b, c, m, n, k),
    };
    kernels.launch_over(launcher, n_tiles * 32, &call)
}
