//! Attention and its gradients.

use gpu::{Queue, Vendor};
use gpu_libs::dnn::{Attention, AttentionMask, Dnn};
use gpu_libs::{Error, Result};
use half::f16;

use super::super::{on_each, refused};
use super::{Case, From32};

fn attention<T: From32>(queue: &Queue, name: &str, mask: AttentionMask, bound: f64) -> Result<()> {
    let case = Case::named(name);
    let attention = Attention::<T>::new(&Dnn::new(queue)?, [2, 2, 5, 4], 0.5, mask)?;
    let [q, k, v, dy] = ["q", "k", "v", "dy"].map(|key| case.tensor(key).upload::<T>(queue));
    let truth = case.tensor("y");
    let mut y = truth.room::<T>(queue);
    attention.forward(q.all(), k.all(), v.all(), y.all_mut())?;
    truth.check(queue, &y, bound);
    let mut y = truth.room::<T>(queue);
    let saved = attention.forward_training(q.all(), k.all(), v.all(), y.all_mut())?;
    truth.check(queue, &y, bound);
    let [mut dq, mut dk, mut dv] = [(); 3].map(|()| truth.room::<T>(queue));
    let gradients = [dq.all_mut(), dk.all_mut(), dv.all_mut()];
    attention.backward(saved, [q.all(), k.all(), v.all()], y.all(), dy.all(), gradients)?;
    for (key, found) in [("dq", &dq), ("dk", &dk), ("dv", &dv)] {
        case.tensor(key).check(queue, found, 4.0 * bound);
    }
    Ok(())
}

#[test]
fn attention_of_all_steps() {
    on_each(|queue| attention::<f32>(queue, "attention", AttentionMask::None, 2e-6));
}

/// What MIOpen lacks is an error there.
#[test]
fn attention_of_one_library() {
    on_each(|queue| {
        let causal = attention::<f32>(queue, "attention_causal", AttentionMask::Causal, 2e-6);
        let short = attention::<f16>(queue, "attention", AttentionMask::None, 2e-3);
        if queue.device().vendor() == Vendor::Nvidia {
            return causal.and(short);
        }
        for (result, words) in [(causal, "Causal"), (short, "F16")] {
            let error = result.unwrap_err();
            assert!(matches!(&error, Error::Unsupported { what, .. } if what.contains(words)), "{error}");
        }
        Ok(())
    });
}

#[test]
fn attention_misuse() {
    on_each(|queue| {
        let attention = Attention::<f32>::new(&Dnn::new(queue)?, [1, 2, 3, 4], 0.5, AttentionMask::None)?;
        let (q, short) = (queue.alloc_zeroed::<f32>(24)?, queue.alloc_zeroed::<f32>(23)?);
        let mut y = queue.alloc_zeroed::<f32>(24)?;
        let wrong = attention.forward(q.all(), short.all(), q.all(), y.all_mut());
        refused(wrong, "k: 23 elements where 24 are due");
        let other = Queue::new(queue.device())?;
        let foreign = other.alloc_zeroed::<f32>(24)?;
        refused(attention.forward(foreign.all(), q.all(), q.all(), y.all_mut()), "belongs to queue");
        Ok(())
    });
}
