//! rocRAND and cuRAND against published values and the moments of their distributions.

use gpu::Queue;
use gpu_libs::rand::{Generator, Method};

use super::{on_each, read, refused};

fn mean_and_variance(data: &[f64]) -> (f64, f64) {
    let mean = data.iter().sum::<f64>() / data.len() as f64;
    (mean, data.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / data.len() as f64)
}

/// Within five standard errors of a sample of n.
#[track_caller]
fn expect(found: f64, wanted: f64, deviation: f64, n: usize) {
    let error = deviation / (n as f64).sqrt();
    assert!((found - wanted).abs() < 5.0 * error, "{found}, not {wanted} +- {error}");
}

#[test]
fn moments_of_each_distribution() {
    on_each(|queue| {
        let n = 2048;
        for method in [Method::Philox, Method::Xorwow, Method::Mrg32k3a] {
            let mut generator = Generator::new(queue, method)?;
            generator.set_seed(7)?;
            let mut data = queue.alloc_zeroed::<f32>(n)?;
            generator.uniform(data.all_mut())?;
            let found: Vec<f64> = read(queue, data.all()).into_iter().map(f64::from).collect();
            assert!(found.iter().all(|x| *x > 0.0 && *x <= 1.0));
            let (mean, variance) = mean_and_variance(&found);
            expect(mean, 0.5, (1.0f64 / 12.0).sqrt(), n);
            expect(variance, 1.0 / 12.0, (1.0f64 / 180.0).sqrt(), n);
        }
        let mut generator = Generator::new(queue, Method::Philox)?;
        let mut data = queue.alloc_zeroed::<f64>(n)?;
        generator.normal(1.0, 2.0, data.all_mut())?;
        let (mean, variance) = mean_and_variance(&read(queue, data.all()));
        expect(mean, 1.0, 2.0, n);
        expect(variance, 4.0, 4.0 * 2f64.sqrt(), n);
        generator.log_normal(0.5, 0.25, data.all_mut())?;
        let logs: Vec<f64> = read(queue, data.all()).iter().map(|x| x.ln()).collect();
        let (mean, variance) = mean_and_variance(&logs);
        expect(mean, 0.5, 0.25, n);
        expect(variance, 0.0625, 0.0625 * 2f64.sqrt(), n);
        let mut counts = queue.alloc_zeroed::<u32>(n)?;
        generator.poisson(4.0, counts.all_mut())?;
        let counts: Vec<f64> = read(queue, counts.all()).into_iter().map(f64::from).collect();
        let (mean, variance) = mean_and_variance(&counts);
        expect(mean, 4.0, 2.0, n);
        expect(variance, 4.0, (4.0f64 + 2.0 * 16.0).sqrt(), n);
        Ok(())
    });
}

/// Random123's known answer for Philox4x32-10 with a zero counter and a zero key.
#[test]
fn philox_starts_with_its_known_answer() {
    on_each(|queue| {
        let mut generator = Generator::new(queue, Method::Philox)?;
        generator.set_seed(0)?;
        let mut bits = queue.alloc_zeroed::<u32>(64)?;
        generator.bits(bits.all_mut())?;
        let found = read(queue, bits.all());
        assert_eq!(found[..4], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        generator.set_offset(4)?;
        generator.bits(bits.all_mut())?;
        assert_eq!(read(queue, bits.all())[..60], found[4..]);
        Ok(())
    });
}

/// The first Sobol numbers in Gray code order, as `scipy.stats.qmc.Sobol(1, scramble=False).random(8)` gives them.
#[test]
fn sobol_fills_space_in_its_known_order() {
    on_each(|queue| {
        let mut generator = Generator::new(queue, Method::Sobol32)?;
        generator.set_dimensions(1)?;
        let mut data = queue.alloc_zeroed::<f64>(8)?;
        generator.uniform(data.all_mut())?;
        let truth = [0.0, 0.5, 0.75, 0.25, 0.375, 0.875, 0.625, 0.125];
        for (found, wanted) in read(queue, data.all()).iter().zip(truth) {
            assert!((found - wanted).abs() < 1e-9, "{found}, not {wanted}");
        }
        Ok(())
    });
}

#[test]
fn misuse_is_refused() {
    on_each(|queue| {
        let mut generator = Generator::new(queue, Method::Philox)?;
        let mut odd = queue.alloc_zeroed::<f32>(7)?;
        refused(generator.normal(0.0, 1.0, odd.all_mut()), "come in pairs");
        refused(generator.set_dimensions(3), "no dimensions");
        let other = Queue::new(queue.device())?;
        let mut foreign = other.alloc_zeroed::<f32>(8)?;
        refused(generator.uniform(foreign.all_mut()), "belongs to queue");
        let mut sobol = Generator::new(queue, Method::Sobol32)?;
        refused(sobol.set_seed(1), "no seed");
        Ok(())
    });
}
