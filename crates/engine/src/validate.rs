//! Validation of a request before it costs anything. Pure. The handle calls it on the caller's thread, so a bad request
//! never reaches the engine.

use batch::{Attention, PooledStates, TokenId};
use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    protocol::{RequestId, Sampling, Submit, VectorRequest},
    sequence::Sequence,
};

/// The numbers a request is held against.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Serialize, Deserialize)]
pub struct Bounds {
    pub n_vocab: usize,
    pub n_ctx: usize,
    pub n_blocks: usize,
    pub max_batch_tokens: usize,
    pub max_output_rows: usize,
    pub constraints: Constraints,
}

#[derive(Copy, Clone, Eq, PartialEq, Debug, Serialize, Deserialize)]
pub enum Constraints {
    Supported,
    None,
}

pub fn submit(submit: &Submit, bounds: &Bounds) -> Result<()> {
    let id = submit.id;
    check_tokens(id, "the prompt", submit.prompt.iter().copied(), bounds)?;
    check_tokens(id, "`generated`", submit.generated.iter().copied(), bounds)?;
    check_tokens(id, "the prediction", submit.prediction.iter().copied(), bounds)?;
    let sampling = &submit.sampling;
    check_tokens(id, "logit_bias", sampling.logit_bias.iter().map(|&(token, _)| token), bounds)?;
    check_tokens(id, "the list of banned tokens", sampling.banned.iter().copied(), bounds)?;
    check_tokens(id, "the list of allowed tokens", sampling.allowed.iter().flatten().copied(), bounds)?;
    check_size(id, submit.prompt.len(), 1, bounds)?;
    check_sampling(id, &submit.sampling)?;
    if let Some(n) = submit.logprobs.filter(|&n| n > bounds.n_vocab) {
        let expected = "at most the size of the vocabulary";
        return Err(Error::Sampling { id, field: "logprobs", value: n.to_string(), expected });
    }
    if submit.constraint.is_some() && bounds.constraints == Constraints::None {
        return Err(Error::NoConstraints { id });
    }
    Ok(())
}

pub fn embed(embed: &VectorRequest, bounds: &Bounds) -> Result<()> {
    let (id, n_tokens) = (embed.id, embed.tokens.len());
    check_tokens(id, "the input", embed.tokens.iter().copied(), bounds)?;
    check_size(id, n_tokens, 0, bounds)?;
    // Full attention sees all tokens at once, so they cannot be cut into steps.
    let max_rows = match embed.pooling.states() {
        PooledStates::Mean => bounds.max_batch_tokens.min(bounds.max_output_rows),
        PooledStates::First | PooledStates::Last => bounds.max_batch_tokens,
    };
    if embed.attention == Attention::Full && n_tokens > max_rows {
        return Err(Error::StepTooSmall { id, n_rows: n_tokens, max_rows });
    }
    Ok(())
}

fn check_tokens(
    id: RequestId,
    what: &'static str,
    mut tokens: impl Iterator<Item = TokenId>,
    bounds: &Bounds,
) -> Result<()> {
    match tokens.find(|token| token.0 as usize >= bounds.n_vocab) {
        Some(token) => Err(Error::TokenOutOfRange { id, what, token: token.0, n_vocab: bounds.n_vocab }),
        None => Ok(()),
    }
}

fn check_size(id: RequestId, n_tokens: usize, n_more: usize, bounds: &Bounds) -> Result<()> {
    if n_tokens == 0 {
        return Err(Error::EmptyPrompt { id });
    }
    if n_tokens + n_more > bounds.n_ctx {
        return Err(Error::ContextTooSmall { id, n_tokens, n_ctx: bounds.n_ctx });
    }
    let n_needed = Sequence::blocks_for(n_tokens + n_more);
    if n_needed > bounds.n_blocks {
        return Err(Error::PoolTooSmall { id, n_tokens: n_tokens + n_more, n_needed, n_blocks: bounds.n_blocks });
    }
    Ok(())
}

fn check_sampling(id: RequestId, sampling: &Sampling) -> Result<()> {
    // Far beyond any use, and small enough that sums with logits stay finite.
    const LARGEST: f32 = 1e4;
    let check = |field, value: f32, is_good: bool, expected| match is_good {
        true => Ok(()),
        false => Err(Error::Sampling { id, field, value: value.to_string(), expected }),
    };
    let Sampling { temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, .. } = *sampling;
    let is_temperature = temperature.is_finite() && temperature >= 0.0;
    check("temperature", temperature, is_temperature, "a number from 0 up")?;
    check("top_p", top_p, top_p > 0.0 && top_p <= 1.0, "a number above 0 and up to 1")?;
    check("min_p", min_p, (0.0..=1.0).contains(&min_p), "a number from 0 to 1")?;
    let is_repetition = repetition_penalty > 0.0 && repetition_penalty <= LARGEST;
    check("repetition_penalty", repetition_penalty, is_repetition, "a number above 0 and up to 10000")?;
    for (field, value) in [("presence_penalty", presence_penalty), ("frequency_penalty", frequency_penalty)] {
        check(field, value, value.abs() <= LARGEST, "a number from -10000 to 10000")?;
    }
    let Sampling { typical_p, top_n_sigma, dynatemp_range, dynatemp_exponent, xtc, .. } = *sampling;
    check("typical_p", typical_p, typical_p > 0.0 && typical_p <= 1.0, "a number above 0 and up to 1")?;
    check("xtc probability", xtc.probability, (0.0..=1.0).contains(&xtc.probability), "a number from 0 to 1")?;
    check("xtc threshold", xtc.threshold, (0.0..=1.0).contains(&xtc.threshold), "a number from 0 to 1")?;
    let (dry, mirostat) = (&sampling.dry, sampling.mirostat.unwrap_or_default());
    for (field, value) in [
        ("top_n_sigma", top_n_sigma),
        ("dynatemp_range", dynatemp_range),
        ("dynatemp_exponent", dynatemp_exponent),
        ("dry multiplier", dry.multiplier),
        ("mirostat tau", mirostat.tau),
        ("mirostat eta", mirostat.eta),
    ] {
        check(field, value, (0.0..=LARGEST).contains(&value), "a number from 0 to 10000")?;
    }
    check("dry base", dry.base, (1.0..=LARGEST).contains(&dry.base), "a number from 1 to 10000")?;
    if !dry.breakers.is_sorted() {
        let value = format!("{} tokens", dry.breakers.len());
        return Err(Error::Sampling { id, field: "dry breakers", value, expected: "ascending token ids" });
    }
    for (at, stage) in sampling.order.iter().enumerate() {
        if sampling.order[..at].contains(stage) {
            let expected = "each stage at most once";
            return Err(Error::Sampling { id, field: "order", value: stage.name().into(), expected });
        }
    }
    for &(_, bias) in &sampling.logit_bias {
        let is_bias = bias.abs() <= LARGEST || bias == f32::NEG_INFINITY;
        check("logit_bias", bias, is_bias, "numbers from -10000 to 10000, or negative infinity")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Normalize;
    use crate::protocol::Pooling;

    const BOUNDS: Bounds = Bounds {
        n_vocab: 100,
        n_ctx: 64,
        n_blocks: 3,
        max_batch_tokens: 32,
        max_output_rows: 8,
        constraints: Constraints::None,
    };

    fn check(change: impl FnOnce(&mut Submit), expected: &str) {
        let mut request = Submit::new(RequestId(7), vec![TokenId(1); 10], 5);
        change(&mut request);
        let text = submit(&request, &BOUNDS).map_or_else(|error| error.to_string(), |()| "ok".into());
        assert!(text.ends_with(expected), "`{text}` does not end with `{expected}`");
    }

    #[test]
    fn bad_requests_are_refused_with_the_field_and_the_numbers() {
        check(|_| {}, "ok");
        check(|s| s.max_tokens = 0, "ok");
        check(|s| s.prompt.clear(), "request 7: the prompt is empty");
        check(|s| s.prompt[3] = TokenId(100), "the prompt contains token 100, but the vocabulary has only 100");
        check(|s| s.generated = vec![TokenId(200)], "`generated` contains token 200, but the vocabulary has only 100");
        let breakers = |s: &mut Submit| s.sampling.dry.breakers = vec![TokenId(3), TokenId(1)];
        check(breakers, "dry breakers is 2 tokens, expected ascending token ids");
        check(
            |s| s.sampling.logit_bias = vec![(TokenId(100), 0.0)],
            "logit_bias contains token 100, but the vocabulary has only 100",
        );
        check(|s| s.prompt = vec![TokenId(1); 64], "64 prompt tokens and one to generate do not fit the context of 64");
        check(|s| s.prompt = vec![TokenId(1); 47], "ok");
        check(
            |s| s.prompt = vec![TokenId(1); 48],
            "49 tokens need 4 KV blocks, the pool has 3 in all; give the model more KV memory or shorten the prompt",
        );
        check(|s| s.logprobs = Some(101), "logprobs is 101, expected at most the size of the vocabulary");
        check(|s| s.constraint = Some("x".into()), "this engine was started without support for constraints");
    }

    #[test]
    fn absurd_sampling_is_refused() {
        for bad in [-1.0, f32::NAN, f32::INFINITY] {
            check(|s| s.sampling.temperature = bad, &format!("temperature is {bad}, expected a number from 0 up"));
        }
        for bad in [0.0, -0.1, 1.5, f32::NAN] {
            check(|s| s.sampling.top_p = bad, &format!("top_p is {bad}, expected a number above 0 and up to 1"));
        }
        for bad in [-0.1, 1.1, f32::NAN] {
            check(|s| s.sampling.min_p = bad, &format!("min_p is {bad}, expected a number from 0 to 1"));
        }
        for bad in [0.0, -2.0, f32::NAN, f32::INFINITY] {
            check(|s| s.sampling.repetition_penalty = bad, "a number above 0 and up to 10000");
        }
        for bad in [f32::NAN, f32::INFINITY, -1e9] {
            check(|s| s.sampling.presence_penalty = bad, "a number from -10000 to 10000");
            check(|s| s.sampling.frequency_penalty = bad, "a number from -10000 to 10000");
        }
        for bad in [f32::NAN, f32::INFINITY] {
            check(|s| s.sampling.logit_bias = vec![(TokenId(1), bad)], "or negative infinity");
        }
        check(|s| s.sampling.logit_bias = vec![(TokenId(1), f32::NEG_INFINITY)], "ok");
    }

    #[test]
    fn an_encoder_must_fit_one_step() {
        let mut request = VectorRequest {
            id: RequestId(1),
            tokens: vec![TokenId(1); 33],
            pooling: Pooling::Last,
            attention: Attention::Causal,
            normalize: Normalize::Unit,
            priority: 0,
            group: 0,
        };
        assert_eq!(embed(&request, &BOUNDS), Ok(()));
        request.attention = Attention::Full;
        let error = Error::StepTooSmall { id: RequestId(1), n_rows: 33, max_rows: 32 };
        assert_eq!(embed(&request, &BOUNDS), Err(error));
        request.tokens.truncate(9);
        request.pooling = Pooling::Mean;
        assert!(matches!(embed(&request, &BOUNDS), Err(Error::StepTooSmall { max_rows: 8, .. })));
        request.tokens.clear();
        assert_eq!(embed(&request, &BOUNDS), Err(Error::EmptyPrompt { id: RequestId(1) }));
    }
}
