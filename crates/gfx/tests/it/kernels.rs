//! Whole kernels compiled by clang, run on the bare emulator and compared with f64 on the host.

use gfx_model::bare::{Arg, Device, Module};
use gfx_model::dispatch::Options;
use gfx_model::exec::value::{f32_to_half, half_to_f32};

use crate::tools::{self, Dice};

const CHIPS: [(&str, u32); 4] = [("gfx1100", 32), ("gfx1151", 32), ("gfx1201", 32), ("gfx942", 64)];

/// Runs `test` on every chip that can be built for.
pub fn on_each_chip(is_checked: bool, test: impl Fn(&Device, &Module, u32)) {
    for (chip, wave) in CHIPS {
        let Some(file) = tools::clang(&tools::crate_dir().join("testdata/kernels.hip"), chip, wave) else { return };
        let device = Device::new(chip, Options { is_checked, ..Options::default() }).expect("an emulator");
        let module = device.load(&file).expect("clang's code object");
        test(&device, &module, wave);
    }
}

fn floats(n: usize, seed: u64) -> Vec<f32> {
    let mut dice = Dice(seed);
    (0..n).map(|_| dice.unit() * 4.0).collect()
}

fn close(got: &[f32], want: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((*g as f64 - w).abs() <= tolerance * w.abs().max(1.0), "{what}[{i}]: {g} instead of {w}");
    }
}

fn halves(values: &[f32]) -> (Vec<u8>, Vec<f64>) {
    let bits: Vec<u16> = values.iter().map(|v| f32_to_half(*v)).collect();
    (bits.iter().flat_map(|h| h.to_le_bytes()).collect(), bits.iter().map(|h| half_to_f32(*h) as f64).collect())
}

#[test]
fn rmsnorm_softmax_silu() {
    on_each_chip(true, |device, module, _| {
        let (rows, n) = (3usize, 777usize);
        let (x, w) = (floats(rows * n, 1), floats(n, 2));
        let (dx, dw, dy) = (device.upload_f32(&x), device.upload_f32(&w), device.alloc(rows * n * 4));
        let args = [Arg::Buffer(&dx), Arg::Buffer(&dw), Arg::Buffer(&dy), Arg::I32(n as i32), Arg::F32(1e-5)];
        device.launch(module, "rmsnorm", [rows as u32, 1, 1], [256, 1, 1], &args).unwrap();
        let want: Vec<f64> = (0..rows * n)
            .map(|i| {
                let row = &x[i / n * n..][..n];
                let mean = row.iter().map(|v| (*v as f64).powi(2)).sum::<f64>() / n as f64;
                x[i] as f64 / (mean + 1e-5f32 as f64).sqrt() * w[i % n] as f64
            })
            .collect();
        close(&dy.f32s(), &want, 1e-6, "rmsnorm");

        let args = [Arg::Buffer(&dx), Arg::I32(n as i32), Arg::F32(1.7)];
        device.launch(module, "softmax", [rows as u32, 1, 1], [256, 1, 1], &args).unwrap();
        let want: Vec<f64> = (0..rows * n)
            .map(|i| {
                let row = &x[i / n * n..][..n];
                let e = |v: f32| (v as f64 * 1.7f32 as f64).exp();
                e(x[i]) / row.iter().map(|v| e(*v)).sum::<f64>()
            })
            .collect();
        close(&dx.f32s(), &want, 2e-6, "softmax");

        let (g, u) = (floats(1000, 3), floats(1000, 4));
        let (dg, du, d_out) = (device.upload_f32(&g), device.upload_f32(&u), device.alloc(4000));
        let args = [Arg::Buffer(&dg), Arg::Buffer(&du), Arg::Buffer(&d_out), Arg::I32(1000)];
        device.launch(module, "silu_mul", [4, 1, 1], [256, 1, 1], &args).unwrap();
        let want: Vec<f64> =
            g.iter().zip(&u).map(|(g, u)| *g as f64 / (1.0 + (-*g as f64).exp()) * *u as f64).collect();
        close(&d_out.f32s(), &want, 1e-6, "silu_mul");
    });
}

#[test]
fn argmax_takes_the_first_of_equals() {
    on_each_chip(true, |device, module, _| {
        let mut x = floats(5000, 5);
        x[1234] = 9.0;
        x[4321] = 9.0;
        let (dx, out) = (device.upload_f32(&x), device.alloc(4));
        device
            .launch(module, "argmax", [1, 1, 1], [256, 1, 1], &[Arg::Buffer(&dx), Arg::Buffer(&out), Arg::I32(5000)])
            .unwrap();
        assert_eq!(out.u32s(), [1234]);
    });
}

/// Blocks of 32: a half scale, then 32 signed bytes (or 16 bytes of nibbles).
fn blocks(n: usize, n_quants: usize, dice: &mut Dice) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..n {
        bytes.extend_from_slice(&f32_to_half(dice.unit().abs() * 0.1 + 0.01).to_le_bytes());
        bytes.extend((0..n_quants).map(|_| dice.next() as u8));
    }
    bytes
}

fn scale(block: &[u8]) -> f64 {
    half_to_f32(u16::from_le_bytes([block[0], block[1]])) as f64
}

#[test]
fn packed_matrix_vector_products() {
    on_each_chip(true, |device, module, wave| {
        let (rows, n_blocks) = (13usize, 37usize);
        let mut dice = Dice(6);
        let x = blocks(n_blocks, 32, &mut dice);
        let value = |k: usize| scale(&x[k / 32 * 34..]) * (x[k / 32 * 34 + 2 + k % 32] as i8) as f64;
        let groups = [rows.div_ceil(256 / wave as usize) as u32, 1, 1];
        for (kernel, n_quants) in [("matvec_q8_0", 32), ("matvec_q4_0", 16)] {
            let w = blocks(rows * n_blocks, n_quants, &mut dice);
            let weight = |row: usize, k: usize| {
                let block = &w[(row * n_blocks + k / 32) * (2 + n_quants)..];
                let (at, bytes) = (k % 32, &block[2..]);
                let q = match (n_quants, at) {
                    (32, _) => bytes[at] as i8 as f64,
                    (_, 0..16) => (bytes[at] & 15) as f64 - 8.0,
                    _ => (bytes[at - 16] >> 4) as f64 - 8.0,
                };
                scale(block) * q
            };
            let (dw, dx, dy) = (device.upload(&w), device.upload(&x), device.alloc(rows * 4));
            let args = [
                Arg::Buffer(&dw),
                Arg::Buffer(&dx),
                Arg::Buffer(&dy),
                Arg::I32(rows as i32),
                Arg::I32(n_blocks as i32),
            ];
            device.launch(module, kernel, groups, [256, 1, 1], &args).unwrap();
            let want: Vec<f64> = (0..rows).map(|r| (0..n_blocks * 32).map(|k| weight(r, k) * value(k)).sum()).collect();
            close(&dy.f32s(), &want, 2e-5, kernel);
        }
        let n = 512;
        let (w_bytes, w) = halves(&floats(rows * n, 7));
        let x = floats(n, 8);
        let (dw, dx, dy) = (device.upload(&w_bytes), device.upload_f32(&x), device.alloc(rows * 4));
        let args = [Arg::Buffer(&dw), Arg::Buffer(&dx), Arg::Buffer(&dy), Arg::I32(rows as i32), Arg::I32(n as i32)];
        device.launch(module, "matvec_f16", groups, [256, 1, 1], &args).unwrap();
        let want: Vec<f64> = (0..rows).map(|r| (0..n).map(|k| w[r * n + k] * x[k] as f64).sum()).collect();
        close(&dy.f32s(), &want, 1e-5, "matvec_f16");
    });
}

#[test]
fn attention_over_a_half_cache() {
    on_each_chip(true, |device, module, _| {
        let (heads, ctx) = (2usize, 91usize);
        let q = floats(heads * 128, 9);
        let (k_bytes, k) = halves(&floats(ctx * 128, 10));
        let (v_bytes, v) = halves(&floats(ctx * 128, 11));
        let (dq, dk, dv, d_out) =
            (device.upload_f32(&q), device.upload(&k_bytes), device.upload(&v_bytes), device.alloc(heads * 512));
        let args = [
            Arg::Buffer(&dq),
            Arg::Buffer(&dk),
            Arg::Buffer(&dv),
            Arg::Buffer(&d_out),
            Arg::I32(ctx as i32),
            Arg::F32(0.05),
        ];
        device.launch(module, "attention", [heads as u32, 1, 1], [256, 1, 1], &args).unwrap();
        let mut want = Vec::new();
        for h in 0..heads {
            let score =
                |t: usize| (0..128).map(|d| q[h * 128 + d] as f64 * 0.05f32 as f64 * k[t * 128 + d]).sum::<f64>().exp();
            let total: f64 = (0..ctx).map(score).sum();
            want.extend((0..128).map(|d| (0..ctx).map(|t| score(t) * v[t * 128 + d]).sum::<f64>() / total));
        }
        close(&d_out.f32s(), &want, 1e-5, "attention");
    });
}

#[test]
fn matrix_units() {
    on_each_chip(true, |device, module, wave| {
        let (m, n, k) = (32usize, 48usize, 64usize);
        let (a_bytes, a) = halves(&floats(m * k, 12));
        let (b_bytes, b) = halves(&floats(n * k, 13));
        let (da, db, dc) = (device.upload(&a_bytes), device.upload(&b_bytes), device.alloc(m * n * 4));
        let args = |a, b, c| [Arg::Buffer(a), Arg::Buffer(b), Arg::Buffer(c), Arg::I32(n as i32), Arg::I32(k as i32)];
        let groups = [n as u32 / 16, m as u32 / 16, 1];
        let report = device.launch(module, "gemm_f16", groups, [wave, 1, 1], &args(&da, &db, &dc)).unwrap();
        let want: Vec<f64> = (0..m * n).map(|i| (0..k).map(|j| a[i / n * k + j] * b[i % n * k + j]).sum()).collect();
        close(&dc.f32s(), &want, 1e-5, "gemm_f16");
        assert_eq!(report.counters.matrix, 6 * 4, "one matrix instruction per tile and 16 of k, on both families");

        let mut dice = Dice(14);
        let a: Vec<u8> = (0..m * k).map(|_| dice.next() as u8).collect();
        let b: Vec<u8> = (0..n * k).map(|_| dice.next() as u8).collect();
        let (da, db, dc) = (device.upload(&a), device.upload(&b), device.alloc(m * n * 4));
        device.launch(module, "gemm_i8", groups, [wave, 1, 1], &args(&da, &db, &dc)).unwrap();
        let product =
            |i: usize| (0..k).map(|j| a[i / n * k + j] as i8 as i32 * b[i % n * k + j] as i8 as i32).sum::<i32>();
        let want: Vec<u32> = (0..m * n).map(|i| product(i) as u32).collect();
        assert_eq!(dc.u32s(), want);
    });
}

/// op_sel on pairs of registers, by AMD's pseudocode: the move picks one register of each source.
#[test]
fn pairs_of_floats() {
    on_each_chip(true, |device, module, wave| {
        let pair = |seed| -> Vec<u64> {
            let parts = floats(2 * wave as usize, seed);
            parts.chunks(2).map(|p| u64::from(p[1].to_bits()) << 32 | u64::from(p[0].to_bits())).collect()
        };
        let (a, b, c) = (pair(21), pair(22), pair(23));
        let upload = |x: &[u64]| device.upload(&x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
        let (da, db, dc, out) = (upload(&a), upload(&b), upload(&c), device.alloc(wave as usize * 40));
        let args = [Arg::Buffer(&da), Arg::Buffer(&db), Arg::Buffer(&dc), Arg::Buffer(&out)];
        device.launch(module, "pairs", [1, 1, 1], [wave, 1, 1], &args).unwrap();
        let word = |x: u64, n: u64| x >> (32 * n) & 0xffff_ffff;
        let float = |x: u64, n: u64| f32::from_bits(word(x, n) as u32);
        let mut want = Vec::new();
        for l in 0..wave as usize {
            for (s0, s1) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
                want.push(word(a[l], s0) | word(b[l], s1) << 32);
            }
            let lo = float(a[l], 0).mul_add(float(b[l], 1), float(c[l], 0));
            let hi = float(a[l], 0).mul_add(float(b[l], 0), float(c[l], 1));
            want.push(u64::from(hi.to_bits()) << 32 | u64::from(lo.to_bits()));
        }
        let found: Vec<u64> = out.bytes().chunks(8).map(|x| u64::from_le_bytes(x.try_into().unwrap())).collect();
        assert_eq!(found, want);
    });
}

#[test]
fn scratch_integers_doubles_atomics() {
    on_each_chip(true, |device, module, _| {
        let at: Vec<u32> = (0..20).map(|i| i * 7).collect();
        let (d_at, out) = (device.upload_u32(&at), device.alloc(64 * 4));
        device
            .launch(
                module,
                "scratch_sum",
                [1, 1, 1],
                [64, 1, 1],
                &[Arg::Buffer(&d_at), Arg::Buffer(&out), Arg::I32(20)],
            )
            .unwrap();
        let want: Vec<f64> = (0..64).map(|t| at.iter().map(|a| ((a & 63) * t) as f64).sum()).collect();
        close(&out.f32s(), &want, 0.0, "scratch_sum");

        let n = 1000;
        let mut dice = Dice(15);
        let x: Vec<u32> = (0..n).map(|_| dice.next() as u32).collect();
        let (dx, out) = (device.upload_u32(&x), device.alloc(n * 8));
        device
            .launch(
                module,
                "integers",
                [4, 1, 1],
                [256, 1, 1],
                &[Arg::Buffer(&dx), Arg::Buffer(&out), Arg::I32(n as i32)],
            )
            .unwrap();
        let want = |i: usize| {
            let (a, b) = (x[i], x[(i + 1) % n]);
            let mut r = a as u64 * b as u64;
            r ^= ((a / (b | 1)) as u64) << 32 | (a % (b | 1)) as u64;
            r = r.wrapping_add((a.count_ones() as u64) << 7);
            r ^= ((a << 3) as i32 as i64 as u64) >> (b & 31);
            r << (a & 31) | r >> 3
        };
        let got: Vec<u64> = out.bytes().as_chunks::<8>().0.iter().map(|c| u64::from_le_bytes(*c)).collect();
        assert_eq!(got, (0..n).map(want).collect::<Vec<_>>());

        let x: Vec<f64> = (0..n).map(|_| (dice.unit() as f64 + 1.0) * 50.0).collect();
        let dx = device.upload(&x.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>());
        device
            .launch(
                module,
                "doubles",
                [4, 1, 1],
                [256, 1, 1],
                &[Arg::Buffer(&dx), Arg::Buffer(&out), Arg::I32(n as i32)],
            )
            .unwrap();
        for (i, c) in out.bytes().as_chunks::<8>().0.iter().enumerate() {
            let want = x[i].sqrt() / (x[i] + 1.0) - x[i].floor() * 0.25;
            assert!((f64::from_le_bytes(*c) - want).abs() < 1e-12, "doubles[{i}]");
        }

        let (counter, last) = (device.upload_u32(&[0]), device.upload_u32(&[0]));
        let args = [Arg::Buffer(&counter), Arg::Buffer(&last), Arg::I32(100)];
        device.launch(module, "count_tickets", [100, 1, 1], [64, 1, 1], &args).unwrap();
        assert_eq!(counter.u32s(), [100]);
        assert!((1..=100).contains(&last.u32s()[0]));
    });
}
