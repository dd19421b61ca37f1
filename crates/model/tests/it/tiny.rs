//! The tiny random model: a batch is only a batch, whatever it is made of.

use model::{
    Attention, Batch, BlockId, Error, LoadOptions, Model, Recipe, SeqRows, Synthetic, TokenId, synthetic,
    synthetic_layers,
};
use ops::{Isa, Pool};
use weights::Dtype;

use crate::support::{batch, table};

fn model(dtype: Dtype, isa: Isa) -> Model {
    let checkpoint = synthetic(Synthetic::Tiny, Recipe::Uniform(dtype), 7).unwrap();
    let options = LoadOptions { n_blocks: 24, max_batch_tokens: 128, ..LoadOptions::default() };
    Model::load_on(Pool::with_isa(2, isa), &checkpoint, options).unwrap()
}

fn prompt(seed: u32, n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 37 + seed * 101 + 5) % 320).collect()
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    assert!(a.iter().chain(b).all(|x| x.is_finite()));
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn instruction_sets_agree() {
    for dtype in Dtype::ALL {
        let tokens = prompt(1, 21);
        let mut truth: Option<Vec<f32>> = None;
        for isa in Isa::available() {
            let mut model = model(dtype, isa);
            let logits = model.forward(&batch(&tokens, 0, &table(0, 21), true)).unwrap().logits.to_vec();
            let truth = truth.get_or_insert_with(|| logits.clone());
            let largest = truth.iter().fold(1.0, |most: f32, x| most.max(x.abs()));
            let error = distance(truth, &logits) / largest;
            assert!(error < 3e-3, "{dtype} {isa}: {error}");
        }
    }
}

#[test]
fn chunks_equal_the_whole_prompt() {
    for isa in Isa::available() {
        let tokens = prompt(2, 50);
        let blocks: Vec<BlockId> = [7, 3, 11, 0].map(BlockId).to_vec();
        let mut model = model(Dtype::Q4_1, isa);
        let whole = model.forward(&batch(&tokens, 0, &blocks, false)).unwrap().logits.to_vec();
        let mut last = Vec::new();
        let mut first = 0;
        for n in [17, 1, 30, 2] {
            last = model.forward(&batch(&tokens[first..first + n], first, &blocks, false)).unwrap().logits.to_vec();
            first += n;
        }
        assert!(distance(&whole, &last) < 2e-3, "{isa}");
    }
}

#[test]
fn sequences_in_one_batch_do_not_see_each_other() {
    let prompts = [prompt(3, 20), prompt(4, 1), prompt(5, 33)];
    for isa in Isa::available() {
        let mut model = model(Dtype::Q8_0, isa);
        let alone: Vec<Vec<f32>> = prompts
            .iter()
            .map(|p| model.forward(&batch(p, 0, &table(0, p.len()), false)).unwrap().logits.to_vec())
            .collect();
        let mut together = Batch::default();
        let mut first_block = 0;
        for p in &prompts {
            let first_row = together.tokens.len() as u32;
            together.tokens.extend(p.iter().map(|&t| TokenId(t)));
            together.positions.extend(0..p.len() as u32);
            let block_table = table(first_block, p.len());
            first_block += block_table.len() as u32;
            together.seqs.push(SeqRows { first_row, n_rows: p.len() as u32, block_table });
            together.logits_rows.push(first_row + p.len() as u32 - 1);
        }
        let logits = model.forward(&together).unwrap().logits.to_vec();
        for (alone, row) in alone.iter().zip(logits.chunks(320)) {
            assert!(distance(alone, row) < 2e-3, "{isa}");
        }
    }
}

#[test]
fn hidden_states_come_with_and_without_logits() {
    let mut model = model(Dtype::F32, Isa::detect());
    let tokens = prompt(6, 9);
    let mut both = batch(&tokens, 0, &table(0, 9), false);
    both.pool_rows = vec![0, 4];
    both.attention = Attention::Full;
    let output = model.forward(&both).unwrap();
    let hidden = output.hidden.to_vec();
    assert_eq!((output.logits.len(), hidden.len()), (320, 512));
    both.logits_rows.clear();
    let output = model.forward(&both).unwrap();
    assert!(output.logits.is_empty());
    assert!(distance(&hidden, output.hidden) < 1e-4);
    // A full mask lets the first token see the last one.
    both.attention = Attention::Causal;
    assert!(distance(&hidden[..256], &model.forward(&both).unwrap().hidden[..256]) > 1e-3);
}

#[test]
fn broken_batches_are_refused() {
    let mut model = model(Dtype::F32, Isa::detect());
    let good = batch(&prompt(7, 20), 0, &table(0, 20), false);
    let mut check = |change: &dyn Fn(&mut Batch), part: &str| {
        let mut bad = good.clone();
        change(&mut bad);
        let error = model.forward(&bad).unwrap_err();
        assert!(matches!(error, Error::Batch(_)) && error.to_string().contains(part), "{error}");
    };
    check(&|b| b.tokens[3] = TokenId(320), "vocabulary");
    check(&|b| b.seqs[0].block_table.truncate(1), "20 tokens of context, room for 16");
    check(&|b| b.seqs[0].block_table[0] = BlockId(24), "block 24 of a pool of 24");
    check(&|b| b.seqs[0].n_rows = 19, "cover 19 rows of 20");
    check(&|b| b.positions[2] = 9, "follow");
    check(&|b| b.positions.truncate(19), "19 positions");
    check(&|b| b.logits_rows = vec![20], "inside the batch");
    check(&|b| b.tokens.clear(), "0 rows");
    assert!(model.forward(&good).is_ok());
}

/// Its attention is compressed, its first layer has no experts, and its rows do not fill the blocks of every type.
#[test]
fn deepseek_v2_lites_shape_computes_a_token() {
    let recipe = Recipe::from_name("Q4_K_M").unwrap();
    let checkpoint = synthetic_layers(Synthetic::DeepseekV2Lite, Some(2), recipe, 7).unwrap();
    let types = |name: &str| checkpoint.tensors().iter().find(|tensor| tensor.name == name).unwrap().dtype;
    assert_eq!(types("blk.1.ffn_gate_exps.weight"), Dtype::Q4K);
    assert_eq!(types("blk.1.ffn_down_exps.weight"), Dtype::Q8_0, "1408 columns are no blocks of 256");
    let options = LoadOptions { n_blocks: 2, max_batch_tokens: 4, ..LoadOptions::default() };
    let mut model = Model::load_on(Pool::with_isa(2, *Isa::available().last().unwrap()), &checkpoint, options).unwrap();
    let logits = model.forward(&batch(&[1, 2, 3], 0, &table(0, 3), true)).unwrap().logits.to_vec();
    assert!(logits.iter().all(|x| x.is_finite()) && logits.iter().any(|x| *x != logits[0]));
}
