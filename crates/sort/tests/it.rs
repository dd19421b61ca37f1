//! Sorts and their relatives on each GPU that is here, against the standard library's.

use std::cmp::Ordering;
use std::fmt::Debug;

use gpu::{Element, Queue};
use half::{bf16, f16};
use sort::{Key, Reduce, SortOrder, Sorter};
use test_support::Random;

fn each_gpu(test: impl Fn(&Queue, &Sorter)) {
    for device in test_support::gpus::open() {
        let queue = Queue::new(&device).unwrap();
        let sorter = Sorter::new(&device).unwrap();
        test(&queue, &sorter);
        queue.wait().unwrap();
    }
}

/// Around a tile (4096 keys), and more than one.
const LENGTHS: [usize; 7] = [0, 1, 2, 255, 4095, 4097, 9001];

fn check<K: Key + Debug>(
    queue: &Queue,
    sorter: &Sorter,
    keys: &[K],
    compare: impl Fn(&K, &K) -> Ordering,
    bits: impl Fn(&K) -> u64,
) {
    for order in [SortOrder::Ascending, SortOrder::Descending] {
        let directed = |a: &K, b: &K| if order == SortOrder::Ascending { compare(a, b) } else { compare(b, a) };
        let mut truth = keys.to_vec();
        truth.sort_by(directed);
        let mut buffer = queue.buffer_from(keys).unwrap();
        sorter.sort_by(queue, buffer.all_mut(), order).unwrap();
        let found = queue.read(buffer.all()).unwrap();
        assert!(found.iter().map(&bits).eq(truth.iter().map(&bits)), "{order:?} of {}", keys.len());

        let mut indices: Vec<u32> = (0..keys.len() as u32).collect();
        indices.sort_by(|a, b| directed(&keys[*a as usize], &keys[*b as usize]));
        let buffer = queue.buffer_from(keys).unwrap();
        let found = sorter.argsort(queue, buffer.all(), order).unwrap();
        assert_eq!(
            queue.read(found.all()).unwrap(),
            indices,
            "{order:?} of {}: equal keys keep their order",
            keys.len()
        );
    }
}

macro_rules! types {
    ($($name:ident: $ty:ty, |$a:ident, $b:ident| $compare:expr, |$bits:ident| $key:expr;)*) => {$(
        #[test]
        fn $name() {
            each_gpu(|queue, sorter| {
                let mut random = Random::new(7);
                for n in LENGTHS {
                    let keys: Vec<$ty> = (0..n).map(|_| { let $bits = random.bits(); $key }).collect();
                    check(queue, sorter, &keys, |$a, $b| $compare, |key| to_bits(*key));
                }
            });
        }
    )*};
}

/// Any bytes as a number, to compare NaNs and zeros by.
fn to_bits<T: Element>(value: T) -> u64 {
    let mut bytes = [0; 8];
    let size = size_of::<T>();
    // SAFETY: an element is plain bytes, at most 8 of them.
    unsafe { std::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), bytes.as_mut_ptr(), size) };
    u64::from_le_bytes(bytes)
}

types! {
    u8_keys: u8, |a, b| a.cmp(b), |r| r as u8;
    i8_keys: i8, |a, b| a.cmp(b), |r| r as i8;
    u16_keys: u16, |a, b| a.cmp(b), |r| r as u16;
    i16_keys: i16, |a, b| a.cmp(b), |r| r as i16;
    f16_keys: f16, |a, b| a.total_cmp(b), |r| f16::from_bits(r as u16);
    bf16_keys: bf16, |a, b| a.total_cmp(b), |r| bf16::from_bits(r as u16);
    u32_keys: u32, |a, b| a.cmp(b), |r| r as u32;
    i32_keys: i32, |a, b| a.cmp(b), |r| r as i32;
    f32_keys: f32, |a, b| a.total_cmp(b), |r| f32::from_bits(r as u32);
    u64_keys: u64, |a, b| a.cmp(b), |r| r;
    i64_keys: i64, |a, b| a.cmp(b), |r| r as i64;
    f64_keys: f64, |a, b| a.total_cmp(b), |r| f64::from_bits(r);
}

#[test]
fn adversarial_orders() {
    let n = 9000_u32;
    let equal = vec![42; n as usize];
    let reversed: Vec<u32> = (0..n).rev().collect();
    let sorted: Vec<u32> = (0..n).collect();
    let one_digit: Vec<u32> = (0..n).map(|i| (i % 2) << 31).collect();
    let special = [f32::NAN, -f32::NAN, 0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::MIN_POSITIVE / 2.0, -1.0];
    let special: Vec<f32> = (0..n as usize).map(|i| special[i * 7 % special.len()]).collect();
    each_gpu(|queue, sorter| {
        for keys in [&equal, &reversed, &sorted, &one_digit] {
            check(queue, sorter, keys, Ord::cmp, |key| u64::from(*key));
        }
        check(queue, sorter, &special, f32::total_cmp, |key| u64::from(key.to_bits()));
    });
}

#[test]
fn values_travel_with_their_keys() {
    each_gpu(|queue, sorter| {
        let mut random = Random::new(3);
        let keys: Vec<u16> = (0..5000).map(|_| random.bits() as u16 % 100).collect();
        let values: Vec<f64> = (0..5000).map(f64::from).collect();
        let mut pairs: Vec<(u16, f64)> = keys.iter().copied().zip(values.iter().copied()).collect();
        pairs.sort_by_key(|pair| pair.0);
        let (mut k, mut v) = (queue.buffer_from(&keys).unwrap(), queue.buffer_from(&values).unwrap());
        sorter.sort_by_key(queue, k.all_mut(), v.all_mut(), SortOrder::Ascending).unwrap();
        let found: Vec<(u16, f64)> =
            queue.read(k.all()).unwrap().into_iter().zip(queue.read(v.all()).unwrap()).collect();
        assert_eq!(found, pairs);

        let (best, places) =
            sorter.top_k(queue, queue.buffer_from(&values).unwrap().all(), 3, SortOrder::Descending).unwrap();
        assert_eq!(queue.read(best.all()).unwrap(), [4999.0, 4998.0, 4997.0]);
        assert_eq!(queue.read(places.all()).unwrap(), [4999, 4998, 4997]);
    });
}

#[test]
fn prefix_sums() {
    each_gpu(|queue, sorter| {
        let mut random = Random::new(5);
        for n in [0, 1, 2047, 2049, 7000] {
            let values: Vec<i32> = (0..n).map(|_| random.bits() as i32 % 1000).collect();
            let mut sum = 0;
            let inclusive: Vec<i32> = values
                .iter()
                .map(|v| {
                    sum += v;
                    sum
                })
                .collect();
            let exclusive: Vec<i32> = inclusive.iter().zip(&values).map(|(sum, v)| sum - v).collect();
            let mut buffer = queue.buffer_from(&values).unwrap();
            sorter.inclusive_scan(queue, buffer.all_mut()).unwrap();
            assert_eq!(queue.read(buffer.all()).unwrap(), inclusive);
            let mut buffer = queue.buffer_from(&values).unwrap();
            sorter.exclusive_scan(queue, buffer.all_mut()).unwrap();
            assert_eq!(queue.read(buffer.all()).unwrap(), exclusive);
            // Whole numbers: sums of floats are exact, in any order.
            let mut floats = queue.buffer_from(&values.iter().map(|v| *v as f32).collect::<Vec<_>>()).unwrap();
            sorter.inclusive_scan(queue, floats.all_mut()).unwrap();
            assert!(queue.read(floats.all()).unwrap().iter().zip(&inclusive).all(|(a, b)| *a == *b as f32));
        }
    });
}

#[test]
fn reductions_and_histograms() {
    each_gpu(|queue, sorter| {
        let one = |value: gpu::Result<gpu::Buffer<f32>>| queue.read(value.unwrap().all()).unwrap()[0];
        let mut values: Vec<f32> = (0..10_000).map(|i| ((i * 7919) % 10_007) as f32 - 5000.0).collect();
        let buffer = queue.buffer_from(&values).unwrap();
        let (least, most) = values.iter().fold((f32::MAX, f32::MIN), |(a, b), x| (a.min(*x), b.max(*x)));
        assert_eq!(one(sorter.reduce(queue, buffer.all(), Reduce::Min)), least);
        assert_eq!(one(sorter.reduce(queue, buffer.all(), Reduce::Max)), most);
        assert_eq!(one(sorter.reduce(queue, buffer.all(), Reduce::Sum)), values.iter().sum::<f32>());
        values[4321] = f32::NAN;
        let buffer = queue.buffer_from(&values).unwrap();
        assert!(one(sorter.reduce(queue, buffer.all(), Reduce::Min)).is_nan());
        let nothing = queue.buffer_from::<i64>(&[]).unwrap();
        let sum = sorter.reduce(queue, nothing.all(), Reduce::Sum).unwrap();
        assert_eq!(queue.read(sum.all()).unwrap(), [0]);

        let numbers: Vec<u32> = (0..5000).map(|i| i * i % 13).collect();
        let mut truth = vec![0; 10];
        numbers.iter().filter(|n| **n < 10).for_each(|n| truth[*n as usize] += 1);
        let mut bins = queue.alloc_zeroed::<u32>(10).unwrap();
        sorter.histogram(queue, queue.buffer_from(&numbers).unwrap().all(), bins.all_mut()).unwrap();
        assert_eq!(queue.read(bins.all()).unwrap(), truth);
    });
}

#[test]
fn misuse_is_refused() {
    each_gpu(|queue, sorter| {
        let (mut keys, mut values) = (queue.alloc_zeroed::<u32>(5).unwrap(), queue.alloc_zeroed::<u32>(4).unwrap());
        let error = sorter.sort_by_key(queue, keys.all_mut(), values.all_mut(), SortOrder::Ascending).unwrap_err();
        assert!(error.to_string().contains("5 keys and 4 values"), "{error}");
        let other = Queue::new(queue.device()).unwrap();
        let mut foreign = other.alloc_zeroed::<u32>(5).unwrap();
        let error = sorter.sort(queue, foreign.all_mut()).unwrap_err();
        assert!(error.to_string().contains("queue"), "{error}");
        assert!(sorter.top_k(queue, keys.all(), 6, SortOrder::Ascending).is_err());
    });
}

/// What ships is what `kernels.rs` says. After a change: `cargo run -p roci-kernel-build -- src/kernels.rs --out objects`
/// with the chips that `objects.rs` lists, in this crate's folder.
#[test]
fn objects_are_of_this_source() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let made_from = std::fs::read_to_string(folder.join("objects/fingerprint")).unwrap();
    let source = kernel_build::Build::new(folder.join("src/kernels.rs")).fingerprint().unwrap();
    assert_eq!(made_from.trim(), format!("{source:016x}"), "crates/sort/objects is stale");
}
