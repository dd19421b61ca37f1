//! What a checkpoint says about single layers: which have a window, which have rotary positions, and numbers that each
//! layer has of its own.

use ops::{Activation, NormKind, Xielu};

use crate::Error;
use crate::config::Temperature;
use crate::family::{Family, FamilyKind, Rotation, Windows};
use crate::keys::MetadataKeys;
use crate::names::{At, Names};

/// The window, and of each layer whether it has it.
pub fn windows(keys: &MetadataKeys, family: &Family, n_layers: usize) -> Result<(Option<usize>, Vec<bool>), Error> {
    let usual = family.chunked.map(|chunked| chunked.window);
    let window = keys.count("attention.sliding_window")?.or(usual).filter(|n| *n > 0);
    // Files of encoders have both sides of it together; here it counts the token and those to one side.
    let window = match family.kind {
        FamilyKind::Encoder => window.map(|n| n / 2 + 1),
        FamilyKind::Decoder | FamilyKind::Assistant => window,
    };
    let period = keys.period("attention.sliding_window_pattern");
    let listed = keys.flags("attention.sliding_window_pattern")?.filter(|list| list.len() >= n_layers);
    let is_windowed = |layer_idx: usize| match (&listed, family.windows) {
        (Some(list), _) => list[layer_idx],
        (None, Windows::All) => true,
        (None, Windows::AllBut(n)) => !(layer_idx + 1).is_multiple_of(n),
        (None, Windows::AllButFirstOf(n)) => !layer_idx.is_multiple_of(period.unwrap_or(n)),
    };
    Ok((window, (0..n_layers).map(|layer_idx| window.is_some() && is_windowed(layer_idx)).collect()))
}

/// Of each layer, whether positions turn its queries and keys.
pub fn rotated(family: &Family, is_windowed: &[bool]) -> Vec<bool> {
    let has_windows = is_windowed.contains(&true);
    let layers = is_windowed.iter().enumerate();
    let is_rotated = |(layer_idx, is_windowed): (usize, &bool)| match family.rotation {
        Rotation::All => true,
        Rotation::Windowed => *is_windowed || !has_windows,
        Rotation::AllBut(n) => !(layer_idx + 1).is_multiple_of(n),
        Rotation::None => false,
    };
    layers.map(is_rotated).collect()
}

/// By the key of the family's kind of norm, or of the other: Phi-3.5 MoE has layer norms and the key of the others.
pub fn norm_eps(keys: &MetadataKeys, family: &Family) -> Result<f32, Error> {
    let mut names = ["attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"];
    if family.norm == NormKind::Layer {
        names.reverse();
    }
    let found = keys.positive(names[0])?;
    Ok(found.or(keys.positive(names[1])?).unwrap_or(1e-5))
}

/// Encoders of one family differ in it.
pub fn activation(keys: &MetadataKeys, family: &Family) -> Result<Activation, Error> {
    match (family.kind, keys.word("hidden_activation")?) {
        (FamilyKind::Decoder | FamilyKind::Assistant, _) | (_, None) => Ok(family.activation),
        (_, Some("silu" | "swish")) => Ok(Activation::Silu),
        (_, Some("gelu")) => Ok(Activation::Gelu),
        (_, Some("gelu_pytorch_tanh" | "gelu_new")) => Ok(Activation::GeluTanh),
        (_, Some(other)) => Err(keys.error("hidden_activation", format!("`{other}` is not supported"))),
    }
}

/// The length comes from what rope was first made for, where the file has no key of its own.
pub fn temperature(keys: &MetadataKeys, family: &Family, has_window: bool) -> Result<Option<Temperature>, Error> {
    let usual = family.chunked.filter(|_| has_window).map(|chunked| chunked.temperature);
    let name = "attention.temperature_scale";
    let is_off = usual.is_some() && keys.is_there(name) && keys.positive(name)?.is_none();
    let Some(scale) = keys.positive(name)? else { return Ok(usual.filter(|_| !is_off)) };
    let length = keys.count("attention.temperature_length")?.or(keys.count("rope.scaling.original_context_length")?);
    match length.filter(|n| *n > 0) {
        Some(length) => {
            let (first, is_for_unrotated) = usual.map_or((0, false), |usual| (usual.first, usual.is_for_unrotated));
            Ok(Some(Temperature { scale, length, first, is_for_unrotated }))
        }
        None => Err(keys.error("attention.temperature_length", "missing".into())),
    }
}

/// KV heads of layers without a window and of those with one, where the file lists them.
pub fn listed_kv_heads(keys: &MetadataKeys, is_windowed: &[bool]) -> Result<Option<[usize; 2]>, Error> {
    let name = "attention.head_count_kv";
    let Some(list) = keys.counts(name)?.filter(|list| list.len() >= is_windowed.len()) else { return Ok(None) };
    let of = |kind: bool| {
        // Layers without attention have none.
        let attends = list.iter().zip(is_windowed).filter(|(n, windowed)| **n > 0 && **windowed == kind);
        let mut counts = attends.map(|(n, _)| *n);
        let first = counts.next();
        (first, counts.all(|n| Some(n) == first))
    };
    let ((others, is_same), (windowed, is_same_too)) = (of(false), of(true));
    let Some(n) = others.or(windowed) else { return Ok(None) };
    let both = [n, windowed.unwrap_or(n)];
    if !is_same || !is_same_too {
        return Err(keys.error(name, format!("{list:?}: only layers with a window may differ from the others")));
    }
    Ok(Some(both))
}

/// Of each layer: whose keys and values it reads. The last layers may read those of the last layer of their kind that
/// has some.
pub fn kv_sources(keys: &MetadataKeys, is_windowed: &[bool]) -> Result<Vec<usize>, Error> {
    let (name, n_layers) = ("attention.shared_kv_layers", is_windowed.len());
    let n_own = n_layers.saturating_sub(keys.count(name)?.unwrap_or(0));
    let source = |layer_idx: usize| match layer_idx < n_own {
        true => Some(layer_idx),
        false => (0..n_own).rev().find(|own| is_windowed[*own] == is_windowed[layer_idx]),
    };
    let sources = (0..n_layers).map(source).collect::<Option<Vec<usize>>>();
    sources.ok_or_else(|| keys.error(name, format!("none of the first {n_own} layers can be shared by the others")))
}

/// Of each layer: how many deviations a column of the feed-forward gate must stand out.
pub fn sparsity(keys: &MetadataKeys, family: &Family, n_layers: usize) -> Result<Vec<f32>, Error> {
    let name = "activation_sparsity_scale";
    let (true, Some(list)) = (family.has_streams, keys.numbers(name)?) else { return Ok(Vec::new()) };
    // Shares of zero are -inf deviations.
    let list: Vec<f32> = list.iter().map(|k| if *k == f32::NEG_INFINITY { 0.0 } else { *k }).collect();
    if list.len() != n_layers || !list.iter().all(|k| k.is_finite()) {
        return Err(keys.error(name, format!("{list:?} is not a number for each of {n_layers} layers")));
    }
    Ok(list)
}

/// What the stream is multiplied with behind each layer.
pub fn learned_scales(names: &Names, n_layers: usize) -> Result<Vec<f32>, Error> {
    if names.find(At::Layer(0), "layer_output_scale", "weight").is_none() {
        return Ok(Vec::new());
    }
    (0..n_layers).map(|layer_idx| number(names, layer_idx, "layer_output_scale")).collect()
}

/// A tensor of one number.
fn number(names: &Names, layer_idx: usize, name: &str) -> Result<f32, Error> {
    let tensor = names.tensor(At::Layer(layer_idx), name)?;
    if tensor.n_elements() != 1 || tensor.dtype.block_len() != 1 {
        let found = tensor.shape.clone();
        return Err(Error::Shape { name: tensor.name.clone(), found, expected: vec![1] });
    }
    let mut number = [0.0];
    ops::quant::dequantize(tensor.dtype, &tensor.bytes, &mut number);
    Ok(number[0])
}

/// The numbers of xIELU as GGUF lists them, if it does.
pub fn listed_xielu(keys: &MetadataKeys, n_layers: usize) -> Result<Vec<Xielu>, Error> {
    // The only keys of a model without the family's name before them.
    let list = |name: &str| keys.metadata.f32s(name).map(|found| found.filter(|list| list.len() >= n_layers));
    let lists = [list("xielu.alpha_p")?, list("xielu.alpha_n")?, list("xielu.beta")?, list("xielu.eps")?];
    let [Some(alpha_p), Some(alpha_n), Some(beta), Some(eps)] = lists else { return Ok(Vec::new()) };
    Ok((0..n_layers).map(|i| xielu([alpha_p[i], alpha_n[i], beta[i], eps[i]])).collect())
}

/// As [`listed_xielu`], from safetensors, which keep them as tensors.
pub fn learned_xielu(names: &Names, n_layers: usize) -> Result<Vec<Xielu>, Error> {
    if names.find(At::Layer(0), "xielu_alpha_p", "weight").is_none() {
        return Ok(Vec::new());
    }
    let of = |i: usize| -> Result<Xielu, Error> {
        let all = ["xielu_alpha_p", "xielu_alpha_n", "xielu_beta", "xielu_eps"].map(|name| number(names, i, name));
        let [alpha_p, alpha_n, beta, eps] = all;
        Ok(xielu([alpha_p?, alpha_n?, beta?, eps?]))
    };
    (0..n_layers).map(of).collect()
}

/// Both alphas are kept before a softplus.
fn xielu([alpha_p, alpha_n, beta, eps]: [f32; 4]) -> Xielu {
    let softplus = |x: f32| f64::from(x).exp().ln_1p() as f32;
    Xielu { alpha_p: softplus(alpha_p), alpha_n: beta + softplus(alpha_n), beta, eps }
}
