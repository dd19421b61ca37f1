//! The decision as tables, and that it depends on nothing else.

use super::*;

const ROWS: [usize; 8] = [1, 4, 9, 16, 17, 40, 64, 2048];

fn line(machine: Machine, numerics: Numerics, dtype: Dtype, layout: Layout) -> String {
    let weights = [Weight { dtype, layout }];
    let cells = ROWS.map(|n_rows| {
        let shape = ProductShape { n_rows, n_in: 4096, weights: &weights, may_be_coarse: true };
        let plan = plan(machine, numerics, &shape);
        format!("{:?}{}", plan.kernels[0], if plan.fuses_left { "+" } else { "" })
    });
    cells.join(" ")
}

fn chip(vendor: &str, arch: &str, blas: BlasTypes) -> Machine {
    let tuning = Tuning::with(vendor, arch, "").unwrap();
    let has_wgmma = arch == "sm_90";
    Machine::Gpu(ProductChip { tuning, has_matrix_units: true, has_wgmma, blas, activation_bytes: 1 << 30 })
}

/// `+`: a norm or a gate is computed on the way in. The columns are [`ROWS`].
#[test]
fn the_table() {
    let all = BlasTypes { is_there: true, halves: true, floats: true };
    let none = BlasTypes::default();
    let (rows, tiles, planes) = (Layout::Rows, Layout::Tiles, Layout::Planes);
    let cpu = Machine::Cpu;
    let table = [
        (cpu(Isa::Plain), Dtype::Q4K, rows, "Portable Portable Portable Portable Portable Portable Portable Portable"),
        (cpu(Isa::Neon), Dtype::Q4K, rows, "Neon Neon Neon Neon Neon Neon Neon Neon"),
        (cpu(Isa::Avx2), Dtype::Q4K, tiles, "Strip+ Strip+ Strip+ Strip+ Strip+ Unpacked+ Unpacked+ Unpacked+"),
        (cpu(Isa::Avx2), Dtype::F16, rows, "Dot Dot Panel Panel Panel Panel Panel Panel"),
        (cpu(Isa::Avx512), Dtype::Q4K, tiles, "Strip+ Strip+ Strip+ Strip+ Strip+ Unpacked+ Unpacked+ Unpacked+"),
        (cpu(Isa::Avx512), Dtype::Q5K, tiles, "Strip+ Strip+ Strip+ Strip+ Strip+ Unpacked+ Bytes+ Bytes+"),
        (cpu(Isa::Zen4), Dtype::Q4K, tiles, "Strip+ Strip+ Strip+ Strip+ Strip+ Winograd+ Winograd+ Winograd+"),
        (cpu(Isa::Zen4), Dtype::Q2K, tiles, "Strip+ Strip+ Strip+ Strip+ Strip+ Unpacked+ Unpacked+ Unpacked+"),
        (chip("cuda", "sm_90", all), Dtype::Q4K, planes, "Matvec+ Mma+ Mma+ Mma+ Mma+ Wide+ Wide+ Blas+"),
        (chip("cuda", "sm_90", all), Dtype::F16, rows, "Matvec Mma+ Mma+ Mma+ Mma+ Mma+ Mma+ Blas+"),
        (chip("cuda", "sm_90", all), Dtype::BF16, rows, "Matvec Matvec Matvec Matvec Blas Blas Blas Blas"),
        (chip("cuda", "sm_90", none), Dtype::Q4K, planes, "Matvec+ Mma+ Mma+ Mma+ Mma+ Wide+ Wide+ MatrixTiles"),
        (
            chip("rocm", "gfx1100", all),
            Dtype::Q4K,
            planes,
            "Matvec+ Matvec+ Mma+ Mma+ Mma+ MatrixTiles MatrixTiles Blas+",
        ),
        (
            chip("rocm", "gfx942", none),
            Dtype::Q6K,
            planes,
            "Matvec+ Mma+ Mma+ Mma+ Mma+ MatrixTiles MatrixTiles MatrixTiles",
        ),
        (
            chip("rocm", "gfx1100", none),
            Dtype::BF16,
            rows,
            "Matvec Matvec Matvec Matvec FloatTiles FloatTiles FloatTiles FloatTiles",
        ),
    ];
    for (machine, dtype, layout, expected) in table {
        let found = line(machine, Numerics::Fastest, dtype, layout);
        println!("{machine:?} {dtype}: {found}");
        assert_eq!(found, expected, "{machine:?} {dtype}");
    }
}

/// The columns are [`ROWS`].
#[test]
fn the_table_where_rows_do_not_matter() {
    let all = BlasTypes { is_there: true, halves: true, floats: true };
    let (rows, tiles, planes) = (Layout::Rows, Layout::Tiles, Layout::Planes);
    let cpu = Machine::Cpu;
    let table = [
        (cpu(Isa::Avx2), Dtype::Q5K, tiles, "Strip+ Strip+ Strip+ Strip+ Strip+ Unpacked+ Unpacked+ Unpacked+"),
        (cpu(Isa::Avx2), Dtype::F16, rows, "Dot Dot DotTiles DotTiles DotTiles DotTiles DotTiles DotTiles"),
        (cpu(Isa::Zen4), Dtype::Q5K, tiles, "Strip+ Strip+ Strip+ Strip+ Strip+ Strip+ Strip+ Strip+"),
        (chip("cuda", "sm_90", all), Dtype::Q4K, planes, "Mma+ Mma+ Mma+ Mma+ Mma+ Mma+ Mma+ Mma+"),
        (chip("cuda", "sm_90", all), Dtype::F16, rows, "Mma+ Mma+ Mma+ Mma+ Mma+ Mma+ Mma+ Mma+"),
        (chip("cuda", "sm_90", all), Dtype::BF16, rows, "Matvec Matvec Matvec Matvec Matvec Matvec Matvec Matvec"),
        (chip("rocm", "gfx942", all), Dtype::Q6K, planes, "Mma+ Mma+ Mma+ Mma+ Mma+ Mma+ Mma+ Mma+"),
    ];
    for (machine, dtype, layout, expected) in table {
        let found = line(machine, Numerics::RowInvariant, dtype, layout);
        assert_eq!(found, expected, "{machine:?} {dtype}");
    }
}

/// Every type on every machine, each number of rows in the order of one row.
#[test]
fn one_order_of_sums_where_rows_do_not_matter() {
    let all = BlasTypes { is_there: true, halves: true, floats: true };
    let isas = [Isa::Plain, Isa::Neon, Isa::Avx2, Isa::Avx512, Isa::Zen4];
    let chips = [("cuda", "sm_90"), ("rocm", "gfx1100"), ("rocm", "gfx942")];
    let cpus = isas.map(|isa| (Machine::Cpu(isa), Some(isa)));
    let gpus = chips.map(|(vendor, arch)| (chip(vendor, arch, all), None));
    let mut n_variant = 0;
    for (machine, isa) in cpus.into_iter().chain(gpus) {
        for dtype in crate::gpu::formats::DEVICE_FORMATS {
            let is_packed = dtype.block_len() > 1;
            let layout = match machine {
                Machine::Cpu(isa) if isa >= Isa::Avx2 && is_packed => Layout::Tiles,
                Machine::Gpu(_) if is_packed => Layout::Planes,
                _ => Layout::Rows,
            };
            let weights = [Weight { dtype, layout }];
            let orders = |numerics: Numerics| {
                let order = |n_rows: usize| {
                    let shape = ProductShape { n_rows, n_in: 4096, weights: &weights, may_be_coarse: true };
                    let plan = plan(machine, numerics, &shape);
                    (plan.kernels[0].sum_order(isa), plan.fuses_left)
                };
                (1..300).map(order).collect::<Vec<_>>()
            };
            let orders_of = |numerics| {
                orders(numerics).into_iter().fold(Vec::new(), |mut all, order| {
                    if !all.contains(&order) {
                        all.push(order);
                    }
                    all
                })
            };
            let found = orders_of(Numerics::RowInvariant);
            assert_eq!(found.len(), 1, "{machine:?} {dtype}: {found:?}");
            n_variant += usize::from(orders_of(Numerics::Fastest).len() > 1);
        }
    }
    assert!(n_variant > 0, "the mode makes a difference");
}

#[test]
fn why_a_fast_path_is_left_out() {
    let weights = [Weight { dtype: Dtype::BF16, layout: Layout::Rows }];
    let shape = ProductShape { n_rows: 100, n_in: 4096, weights: &weights, may_be_coarse: false };
    let found = plan(chip("rocm", "gfx1100", BlasTypes::default()), Numerics::Fastest, &shape);
    assert_eq!(found.refused, Some(PlanRefusal::Type(Dtype::BF16)));
    let weights = [Weight { dtype: Dtype::F16, layout: Layout::Rows }];
    let shape = ProductShape { n_in: 100, weights: &weights, ..shape };
    let found = plan(chip("rocm", "gfx1100", BlasTypes::default()), Numerics::Fastest, &shape);
    assert_eq!(found.refused, Some(PlanRefusal::Columns(100)));
}
