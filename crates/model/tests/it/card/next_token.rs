//! Layers that guess the token after the next on each GPU that is here, against torch's numbers.

use model::{DeviceChoice, KvType, LoadOptions, Model, ModelPart};

use super::{devices, options};
use crate::families::distance;
use crate::next_token::{forms, golden, hidden_of, run};

const BOUND: f64 = 1e-3;

#[test]
fn the_layer_equals_the_published_code() {
    for device in devices() {
        for name in crate::next_token::NAMES {
            let golden = golden(name);
            let n = golden.tokens.len() - 1;
            let (form, checkpoint) = forms(name).pop().unwrap();
            let load = |device, part| {
                Model::load(&checkpoint, LoadOptions { part, kv_type: KvType::F32, ..options(device) }).unwrap()
            };
            let hidden = hidden_of(&mut load(DeviceChoice::Cpu, ModelPart::Whole), &golden.tokens);
            let mut layer = load(device, ModelPart::NextToken);
            let (logits, states) = run(&mut layer, &golden.tokens[1..], &hidden, &[n - 2, 1, 1]);
            let errors = [distance(&logits, &golden.logits), distance(&states, &golden.hidden)];
            println!("{name:10} {form:12} {}: {errors:?}", layer.device());
            assert!(errors.iter().all(|error| *error < BOUND), "{name} {form}: {errors:?}");
        }
    }
}
