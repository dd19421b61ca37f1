//! The kernels on each GPU that is here, against f64 and integers of the host.

use gpu::{Queue, Slice, SliceMut};
use half::f16;
use kernel::{Call, Loaded};
use kernel_examples::{RightFactor, kernels};
use test_support::Random;
use test_support::golden::relative_error;

fn each_gpu(test: impl Fn(&Queue, &Loaded)) {
    for device in test_support::gpus::open() {
        let queue = Queue::new(&device).unwrap();
        test(&queue, &kernel_examples::load(&device).unwrap());
        queue.wait().unwrap();
    }
}

fn halves(random: &mut Random, n: usize) -> Vec<f16> {
    random.numbers(n).into_iter().map(f16::from_f32).collect()
}

/// Row after row, in f64; `b` as (row, column) gives it.
fn product(a: &[f16], b: impl Fn(usize, usize) -> f16, [m, n, k]: [usize; 3]) -> Vec<f64> {
    let dot = |i: usize| (0..k).map(|step| a[i / n * k + step].to_f64() * b(step, i % n).to_f64()).sum();
    (0..m * n).map(dot).collect()
}

#[test]
fn products_of_any_shape() {
    each_gpu(|queue, loaded| {
        let mut random = Random::new(3);
        // One tile, whole tiles, more tiles than a block has waves, edges on every side, less than a tile.
        for shape in [[16, 16, 16], [32, 48, 64], [80, 96, 32], [33, 17, 50], [5, 3, 7], [1, 40, 1]] {
            let [m, n, k] = shape;
            let (a, b) = (halves(&mut random, m * k), halves(&mut random, k * n));
            for lies in [RightFactor::Rows, RightFactor::Columns] {
                let truth =
                    product(&a, |r, c| if lies == RightFactor::Rows { b[r * n + c] } else { b[c * k + r] }, shape);
                let (on_a, on_b) = (queue.buffer_from(&a).unwrap(), queue.buffer_from(&b).unwrap());
                let mut c = queue.buffer_from(&vec![f32::NAN; m * n]).unwrap();
                let call = (on_b.all(), lies);
                let shape = shape.map(|x| x as u32);
                kernel_examples::gemm(loaded, &queue.launcher(), shape, on_a.all(), call, c.all_mut()).unwrap();
                let found = queue.read(c.all()).unwrap().into_iter().map(f64::from);
                let error = relative_error(found, truth.iter().copied());
                assert!(error < 1e-6, "{shape:?} {lies:?}: off by {error:.2e}");
            }
        }
    });
}

/// Each number of a factor and of the sums is where it belongs: a matrix of single ones picks rows and columns.
#[test]
fn every_number_has_its_place() {
    each_gpu(|queue, loaded| {
        let numbers: Vec<f16> = (0..256).map(|i| f16::from_f32(i as f32)).collect();
        let one: Vec<f16> = (0..256).map(|i| f16::from_f32(f32::from(u8::from(i / 16 == i % 16)))).collect();
        let expected: Vec<f32> = numbers.iter().map(|x| x.to_f32()).collect();
        for (a, b) in [(&numbers, &one), (&one, &numbers)] {
            let (a, b) = (queue.buffer_from(a).unwrap(), queue.buffer_from(b).unwrap());
            let mut c = queue.alloc_zeroed::<f32>(256).unwrap();
            let call = (b.all(), RightFactor::Rows);
            kernel_examples::gemm(loaded, &queue.launcher(), [16; 3], a.all(), call, c.all_mut()).unwrap();
            assert_eq!(queue.read(c.all()).unwrap(), expected);
        }
    });
}

#[test]
fn a_matrix_of_another_size_is_refused() {
    each_gpu(|queue, loaded| {
        let (a, b) = (queue.alloc_zeroed::<f16>(256).unwrap(), queue.alloc_zeroed::<f16>(255).unwrap());
        let mut c = queue.alloc_zeroed::<f32>(256).unwrap();
        let call = (b.all(), RightFactor::Rows);
        let error = kernel_examples::gemm(loaded, &queue.launcher(), [16; 3], a.all(), call, c.all_mut()).unwrap_err();
        assert!(error.to_string().contains("B has 255 values, 16 x 16 are due"), "{error}");
    });
}

#[test]
fn blocks_hand_on_their_sums() {
    each_gpu(|queue, loaded| {
        let mut random = Random::new(5);
        for (n, blocks) in [(1000, 1), (5000, 3), (100_000, 37)] {
            let values: Vec<u32> = (0..n).map(|_| random.bits() as u32).collect();
            let truth: u64 = values.iter().map(|x| u64::from(*x)).sum();
            let values = queue.buffer_from(&values).unwrap();
            for is_for_all in [false, true] {
                let mut parts = queue.alloc_zeroed::<u64>(blocks).unwrap();
                let mut done = queue.alloc_zeroed::<u32>(1).unwrap();
                let mut total = queue.alloc_zeroed::<u64>(1).unwrap();
                let (values, parts) = (values.all(), parts.all_mut());
                let call = match is_for_all {
                    true => kernels::sum_for_all(values, parts, done.all_mut(), total.all_mut()),
                    false => kernels::sum(values, parts, done.all_mut(), total.all_mut()),
                };
                loaded.launch(&queue.launcher(), blocks as u32, &call).unwrap();
                drop(call);
                assert_eq!(queue.read(total.all()).unwrap(), [truth], "{n} values, {blocks} blocks, {is_for_all}");
                assert_eq!(queue.read(done.all()).unwrap(), [blocks as u32]);
            }
        }
    });
}

/// What a kernel of atomics finds among `values`.
fn found_by(
    (queue, loaded): (&Queue, &Loaded),
    blocks: u32,
    values: &[u64],
    kernel: impl for<'a> Fn(Slice<'a, u64>, SliceMut<'a, u64>) -> Call<'a>,
) -> Vec<u64> {
    let values = queue.buffer_from(values).unwrap();
    let mut found = queue.buffer_from(&[0, 0, u64::MAX, 0, 0, 0, 0]).unwrap();
    loaded.launch(&queue.launcher(), blocks, &kernel(values.all(), found.all_mut())).unwrap();
    queue.read(found.all()).unwrap()
}

#[test]
fn atomics_on_64_bits() {
    each_gpu(|queue, loaded| {
        let mut random = Random::new(9);
        let values: Vec<u64> = (0..700).map(|_| random.bits()).collect();
        let sum = values.iter().fold(0, |sum: u64, x| sum.wrapping_add(*x));
        let (largest, smallest) = (*values.iter().max().unwrap(), *values.iter().min().unwrap());
        let bits = values.iter().fold(0, |all, x| all | x);
        let on = (queue, loaded);
        for (scope, found) in [
            ("device", found_by(on, 6, &values, |values, found| kernels::atomics_on_words(values, found))),
            ("system", found_by(on, 6, &values, |values, found| kernels::atomics_of_the_system(values, found))),
            ("block", found_by(on, 1, &values, |values, found| kernels::atomics_of_a_block(values, found))),
        ] {
            assert_eq!(found[..5], [sum, largest, smallest, bits, values.len() as u64], "{scope}");
            // Each value was swapped in once, and out once but for the last.
            assert!(values.contains(&found[5]), "{scope}");
            assert_eq!(found[5].wrapping_add(found[6]), sum, "{scope}");
        }
    });
}

#[test]
fn floats_are_added_atomically() {
    each_gpu(|queue, loaded| {
        // Sums of small integers are exact in any order.
        let values: Vec<f32> = (0..1000).map(|i| (i % 17) as f32 - 5.0).collect();
        let sum: f32 = values.iter().sum();
        let values = queue.buffer_from(&values).unwrap();
        let mut sums = queue.alloc_zeroed::<f32>(2).unwrap();
        loaded.launch_over(&queue.launcher(), 1000, &kernels::float_sums(values.all(), sums.all_mut())).unwrap();
        assert_eq!(queue.read(sums.all()).unwrap(), [sum, sum]);
    });
}

/// What ships is what `kernels.rs` says. After a change: `cargo run -p roci-kernel-build -- src/kernels.rs --out objects`
/// with the chips that `objects.rs` lists, in this crate's folder.
#[test]
fn objects_are_of_this_source() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let made_from = std::fs::read_to_string(folder.join("objects/fingerprint")).unwrap();
    let source = kernel_build::Build::new(folder.join("src/kernels.rs")).fingerprint().unwrap();
    assert_eq!(made_from.trim(), format!("{source:016x}"), "crates/kernel-examples/objects is stale");
}
