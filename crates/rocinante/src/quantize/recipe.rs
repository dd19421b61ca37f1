//! Mixes: which type each tensor takes. The choices are llama.cpp's, so that a name means the same here and there; they
//! are facts in a table, and the first row that fits a tensor wins.

use weights::{Checkpoint, Dtype, Tensor};

/// What a tensor does in a model, by its name in GGUF.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Role {
    Output,
    Embedding,
    /// Values, and what holds them: joined projections, MLA's second half.
    AttnV,
    AttnQkv,
    AttnK,
    AttnQ,
    AttnOut,
    Up,
    Gate,
    Down,
    Other,
}

const ROLES: [(&str, Role); 19] = [
    ("attn_qkv.weight", Role::AttnQkv),
    ("attn_kv_b.weight", Role::AttnV),
    ("attn_v.weight", Role::AttnV),
    ("attn_k.weight", Role::AttnK),
    ("attn_q.weight", Role::AttnQ),
    ("attn_output.weight", Role::AttnOut),
    ("ffn_up", Role::Up),
    ("ffn_gate", Role::Gate),
    ("ffn_down", Role::Down),
    ("per_layer_token_embd.weight", Role::Embedding),
    // In safetensors.
    ("embed_tokens.weight", Role::Embedding),
    ("lm_head.weight", Role::Output),
    ("v_proj.weight", Role::AttnV),
    ("k_proj.weight", Role::AttnK),
    ("q_proj.weight", Role::AttnQ),
    ("o_proj.weight", Role::AttnOut),
    ("up_proj", Role::Up),
    ("gate_proj", Role::Gate),
    ("down_proj", Role::Down),
];

/// Small, or not to be rounded: left as they are.
const KEPT: [&str; 12] = [
    "_norm.weight",
    "ffn_gate_inp.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "position_embd",
    "token_types",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "position_embeddings",
    ".gate.weight",
    "router",
];

/// Where a tensor stands.
#[derive(Copy, Clone, Debug)]
struct TensorPlace {
    role: Role,
    layer: usize,
    n_layers: usize,
    n_experts: usize,
    /// Query heads that share a key.
    n_shared: usize,
    has_importance: bool,
}

impl TensorPlace {
    /// The first and last eighth of the layers, and every third between.
    fn more_bits(&self) -> bool {
        let eighth = self.n_layers / 8;
        self.layer < eighth || self.layer >= 7 * self.n_layers / 8 || (self.layer - eighth) % 3 == 2
    }

    fn early(&self) -> bool {
        self.layer < self.n_layers / 8
    }

    fn middle(&self) -> bool {
        !self.early() && self.layer < 7 * self.n_layers / 8
    }
}

#[derive(Debug)]
struct TypeRule(Role, fn(&TensorPlace) -> bool, Dtype);

/// A named recipe.
#[derive(Debug)]
pub struct Mix {
    /// As llama.cpp spells it.
    pub name: &'static str,
    /// llama.cpp's number, kept in `general.file_type`.
    pub file_type: u32,
    /// The type of most tensors.
    pub base: Dtype,
    /// Of the output, and of an embedding that is tied to it.
    output: Option<Dtype>,
    rules: &'static [TypeRule],
}

const fn mix(
    name: &'static str,
    file_type: u32,
    base: Dtype,
    output: Option<Dtype>,
    rules: &'static [TypeRule],
) -> Mix {
    Mix { name, file_type, base, output, rules }
}

fn always(_: &TensorPlace) -> bool {
    true
}

fn shares(place: &TensorPlace) -> bool {
    place.n_shared >= 4
}

fn shares_or_experts(place: &TensorPlace) -> bool {
    place.n_shared >= 4 || place.n_experts >= 4
}

const Q6: Option<Dtype> = Some(Dtype::Q6K);
const Q5: Option<Dtype> = Some(Dtype::Q5K);

/// The rules of mixes of few bits: `low` for what is kept a little better, `out` for the attention's output.
const fn low_bit_rules(low: Dtype, out: Dtype) -> [TypeRule; 9] {
    [
        TypeRule(Role::Embedding, always, low),
        TypeRule(Role::AttnV, shares_or_experts, Dtype::Q4K),
        TypeRule(Role::AttnQkv, shares_or_experts, Dtype::Q4K),
        TypeRule(Role::AttnV, always, low),
        TypeRule(Role::AttnQkv, always, low),
        TypeRule(Role::AttnK, |p| p.n_experts == 8, Dtype::Q4K),
        TypeRule(Role::Down, TensorPlace::early, low),
        TypeRule(Role::AttnOut, |p| p.n_experts == 8, Dtype::Q5K),
        TypeRule(Role::AttnOut, always, out),
    ]
}

const SMALLEST_1: &[TypeRule] = &low_bit_rules(Dtype::Q2K, Dtype::IQ2XXS);
/// Without a rule for the attention's output: it gets the mix's own type.
const SMALLEST: &[TypeRule] = SMALLEST_1.split_at(8).0;
const SMALL: &[TypeRule] = &low_bit_rules(Dtype::IQ3S, Dtype::IQ3S);
const FOUR_BIT_LEVELS: &[TypeRule] = &[
    EXPERT_V,
    TypeRule(Role::AttnV, shares, Dtype::Q5K),
    EXPERT_K,
    TypeRule(Role::Down, |p| p.early() && !p.has_importance, Dtype::Q5K),
    EXPERT_OUT,
];
/// Models of eight experts have little in their attention: it is kept well.
const EXPERT_V: TypeRule = TypeRule(Role::AttnV, |p| p.n_experts == 8, Dtype::Q8_0);
const EXPERT_K: TypeRule = TypeRule(Role::AttnK, |p| p.n_experts == 8, Dtype::Q8_0);
const EXPERT_OUT: TypeRule = TypeRule(Role::AttnOut, |p| p.n_experts == 8, Dtype::Q5K);

const MIXES: &[Mix] = &[
    mix("F32", 0, Dtype::F32, None, &[]),
    mix("F16", 1, Dtype::F16, None, &[]),
    mix("BF16", 32, Dtype::BF16, None, &[]),
    mix("Q8_0", 7, Dtype::Q8_0, None, &[]),
    mix("Q6_K", 18, Dtype::Q6K, Q6, &[EXPERT_V, EXPERT_K]),
    mix(
        "Q5_K_M",
        17,
        Dtype::Q5K,
        Q6,
        &[
            EXPERT_V,
            TypeRule(Role::AttnV, TensorPlace::more_bits, Dtype::Q6K),
            EXPERT_K,
            TypeRule(Role::Down, TensorPlace::more_bits, Dtype::Q6K),
            TypeRule(Role::AttnQkv, always, Dtype::Q6K),
        ],
    ),
    mix("Q5_K_S", 16, Dtype::Q5K, Q6, &[EXPERT_V, EXPERT_K]),
    mix(
        "Q4_K_M",
        15,
        Dtype::Q4K,
        Q6,
        &[
            EXPERT_V,
            TypeRule(Role::AttnV, TensorPlace::more_bits, Dtype::Q6K),
            EXPERT_K,
            TypeRule(Role::Down, TensorPlace::more_bits, Dtype::Q6K),
            TypeRule(Role::AttnQkv, always, Dtype::Q5K),
            EXPERT_OUT,
        ],
    ),
    mix(
        "Q4_K_S",
        14,
        Dtype::Q4K,
        Q6,
        &[
            EXPERT_V,
            TypeRule(Role::AttnV, |p| p.layer < 4, Dtype::Q5K),
            EXPERT_K,
            TypeRule(Role::Down, TensorPlace::early, Dtype::Q5K),
            EXPERT_OUT,
        ],
    ),
    mix(
        "Q3_K_L",
        13,
        Dtype::Q3K,
        Q6,
        &[
            EXPERT_V,
            TypeRule(Role::AttnV, always, Dtype::Q5K),
            EXPERT_K,
            TypeRule(Role::Down, always, Dtype::Q5K),
            TypeRule(Role::AttnOut, |p| p.n_experts != 8, Dtype::Q5K),
            TypeRule(Role::AttnQkv, always, Dtype::Q4K),
        ],
    ),
    mix(
        "Q3_K_M",
        12,
        Dtype::Q3K,
        Q6,
        &[
            EXPERT_V,
            TypeRule(Role::AttnV, |p| p.layer < 2, Dtype::Q5K),
            TypeRule(Role::AttnV, always, Dtype::Q4K),
            EXPERT_K,
            TypeRule(Role::Down, |p| p.layer < p.n_layers / 16, Dtype::Q5K),
            TypeRule(Role::Down, always, Dtype::Q4K),
            EXPERT_OUT,
            TypeRule(Role::AttnOut, always, Dtype::Q4K),
            TypeRule(Role::AttnQkv, always, Dtype::Q4K),
        ],
    ),
    mix("Q3_K_S", 11, Dtype::Q3K, Q6, &[EXPERT_V, EXPERT_K, EXPERT_OUT]),
    mix(
        "Q2_K",
        10,
        Dtype::Q2K,
        Q6,
        &[
            EXPERT_V,
            TypeRule(Role::AttnV, shares, Dtype::Q4K),
            TypeRule(Role::AttnV, always, Dtype::Q3K),
            EXPERT_K,
            TypeRule(Role::Down, always, Dtype::Q3K),
            EXPERT_OUT,
            TypeRule(Role::AttnOut, always, Dtype::Q3K),
        ],
    ),
    mix(
        "Q2_K_S",
        21,
        Dtype::Q2K,
        Q6,
        &[
            EXPERT_V,
            TypeRule(Role::AttnV, shares, Dtype::Q4K),
            EXPERT_K,
            TypeRule(Role::Down, TensorPlace::early, Dtype::Q4K),
        ],
    ),
    mix("Q5_1", 9, Dtype::Q5_1, Q6, &[EXPERT_V, EXPERT_K]),
    mix(
        "Q5_0",
        8,
        Dtype::Q5_0,
        Q6,
        &[EXPERT_V, EXPERT_K, TypeRule(Role::Down, |p| p.has_importance && p.early(), Dtype::Q5_1)],
    ),
    mix("Q4_1", 3, Dtype::Q4_1, Q6, &[EXPERT_V, EXPERT_K]),
    mix(
        "Q4_0",
        2,
        Dtype::Q4_0,
        Q6,
        &[EXPERT_V, EXPERT_K, TypeRule(Role::Down, |p| p.has_importance && p.early(), Dtype::Q4_1)],
    ),
    mix("IQ4_NL", 25, Dtype::IQ4NL, Q6, FOUR_BIT_LEVELS),
    mix("IQ4_XS", 30, Dtype::IQ4XS, Q6, FOUR_BIT_LEVELS),
    mix(
        "IQ3_M",
        27,
        Dtype::IQ3S,
        Q6,
        &[
            EXPERT_V,
            TypeRule(Role::AttnV, always, Dtype::Q4K),
            EXPERT_K,
            TypeRule(Role::Down, |p| p.early() || (p.n_experts == 8 && p.more_bits()), Dtype::Q4K),
            EXPERT_OUT,
            TypeRule(Role::AttnOut, always, Dtype::Q4K),
            TypeRule(Role::AttnQkv, always, Dtype::Q4K),
        ],
    ),
    mix("IQ3_S", 26, Dtype::IQ3S, Q6, &[EXPERT_V, TypeRule(Role::AttnV, shares, Dtype::Q4K), EXPERT_K, EXPERT_OUT]),
    mix(
        "IQ3_XS",
        22,
        Dtype::IQ3S,
        Q6,
        &[
            EXPERT_V,
            TypeRule(Role::AttnV, shares, Dtype::Q4K),
            EXPERT_K,
            TypeRule(Role::AttnK, always, Dtype::IQ3XXS),
            TypeRule(Role::AttnQ, always, Dtype::IQ3XXS),
            EXPERT_OUT,
            TypeRule(Role::Gate, TensorPlace::middle, Dtype::IQ3XXS),
            TypeRule(Role::Up, TensorPlace::middle, Dtype::IQ3XXS),
        ],
    ),
    mix(
        "IQ3_XXS",
        23,
        Dtype::IQ3XXS,
        Q5,
        &[
            TypeRule(Role::Embedding, always, Dtype::IQ3S),
            EXPERT_V,
            TypeRule(Role::AttnV, shares, Dtype::Q4K),
            TypeRule(Role::AttnV, |p| !p.has_importance, Dtype::IQ3S),
            EXPERT_K,
            TypeRule(Role::AttnK, always, Dtype::IQ2S),
            TypeRule(Role::AttnQ, always, Dtype::IQ2S),
            TypeRule(Role::Down, |p| !p.has_importance && p.early(), Dtype::Q4K),
            TypeRule(Role::Down, |p| !p.has_importance, Dtype::Q3K),
            EXPERT_OUT,
            TypeRule(Role::AttnOut, always, Dtype::IQ3S),
        ],
    ),
    mix("IQ2_M", 29, Dtype::IQ2S, Q5, SMALL),
    mix("IQ2_S", 28, Dtype::IQ2XS, Q5, SMALL),
    mix("IQ2_XS", 20, Dtype::IQ2XS, Q5, SMALLEST),
    mix("IQ2_XXS", 19, Dtype::IQ2XXS, Q5, SMALLEST),
    mix("IQ1_M", 31, Dtype::IQ1M, Q5, SMALLEST_1),
    mix("IQ1_S", 24, Dtype::IQ1S, Q5, SMALLEST_1),
    mix("TQ2_0", 37, Dtype::TQ2_0, Q6, &[TypeRule(Role::Embedding, always, Dtype::Q4K), EXPERT_V, EXPERT_K]),
    mix("TQ1_0", 36, Dtype::TQ1_0, Q6, &[TypeRule(Role::Embedding, always, Dtype::Q4K), EXPERT_V, EXPERT_K]),
    mix("NVFP4", 39, Dtype::NVFP4, Q6, &[EXPERT_V, EXPERT_K]),
    mix("MXFP4", 38, Dtype::MXFP4, Some(Dtype::Q8_0), &[]),
    mix("Q2_0", 41, Dtype::Q2_0, Q6, &[TypeRule(Role::Embedding, always, Dtype::Q4K), EXPERT_V, EXPERT_K]),
    mix("Q1_0", 40, Dtype::Q1_0, Q6, &[EXPERT_V, EXPERT_K]),
];

/// What becomes of each tensor, in the checkpoint's order.
#[derive(Debug)]
pub struct TypePlan {
    /// The type each tensor takes.
    pub types: Vec<Dtype>,
    /// Tensors whose rows fill no blocks of the type the recipe names.
    pub n_fallback: usize,
    /// Tensors of types that ggml encodes only with an importance matrix.
    pub n_blind: usize,
}

impl Mix {
    /// By name, in any case.
    pub fn find(name: &str) -> Option<&'static Self> {
        MIXES.iter().find(|mix| mix.name.eq_ignore_ascii_case(name))
    }

    /// All names, with spaces between.
    pub fn names() -> String {
        MIXES.iter().map(|mix| mix.name).collect::<Vec<_>>().join(" ")
    }

    /// Which type each tensor of this checkpoint takes.
    pub fn plan(&self, checkpoint: &Checkpoint, has_importance: bool) -> TypePlan {
        let traits = ModelTraits::of(checkpoint);
        let mut plan = TypePlan { types: Vec::new(), n_fallback: 0, n_blind: 0 };
        for tensor in checkpoint.tensors() {
            if !is_rounded(tensor, self.base) {
                plan.types.push(tensor.dtype);
                continue;
            }
            let place = traits.place(&tensor.name, has_importance);
            let wanted = if self.base.is_plain() { self.base } else { self.choose(&place, &traits, tensor.n_cols()) };
            let fitting = wanted.for_rows_of(tensor.n_cols());
            plan.n_fallback += usize::from(fitting != wanted);
            plan.n_blind += usize::from(!has_importance && is_blind(fitting));
            plan.types.push(fitting);
        }
        plan
    }

    fn choose(&self, place: &TensorPlace, traits: &ModelTraits, n_cols: usize) -> Dtype {
        if place.role == Role::Output || (place.role == Role::Embedding && traits.is_tied) {
            return match self.output {
                _ if !n_cols.is_multiple_of(self.base.block_len()) => Dtype::Q8_0,
                Some(output) => output,
                None => self.base,
            };
        }
        // Experts take the type, everything else eight bits.
        if self.base == Dtype::MXFP4 && traits.n_experts > 0 {
            return if matches!(place.role, Role::Up | Role::Gate | Role::Down) { self.base } else { Dtype::Q8_0 };
        }
        let rule = self.rules.iter().find(|rule| rule.0 == place.role && rule.1(place));
        rule.map_or(self.base, |rule| rule.2)
    }
}

/// What a model's metadata says that recipes depend on.
struct ModelTraits {
    n_layers: usize,
    n_experts: usize,
    n_shared: usize,
    is_tied: bool,
}

impl ModelTraits {
    fn of(checkpoint: &Checkpoint) -> Self {
        let metadata = checkpoint.metadata();
        let family = metadata.string("general.architecture").ok().flatten().unwrap_or_default();
        let config = checkpoint.hub().map(|hub| &hub.config);
        let count = |key: &str, hub_key: &str| {
            let stored = metadata.u64(&format!("{family}.{key}")).ok().flatten();
            stored.or_else(|| config?[hub_key].as_u64()).unwrap_or(0) as usize
        };
        let heads = count("attention.head_count", "num_attention_heads");
        let kv_heads = count("attention.head_count_kv", "num_key_value_heads");
        Self {
            n_layers: count("block_count", "num_hidden_layers"),
            n_experts: count("expert_count", "num_local_experts"),
            n_shared: heads.checked_div(kv_heads).unwrap_or(1),
            is_tied: checkpoint.find("output.weight").is_none() && checkpoint.find("lm_head.weight").is_none(),
        }
    }

    fn place(&self, name: &str, has_importance: bool) -> TensorPlace {
        let role = match name {
            "output.weight" => Role::Output,
            "token_embd.weight" => Role::Embedding,
            _ => ROLES.iter().find(|(part, _)| name.contains(part)).map_or(Role::Other, |(_, role)| *role),
        };
        // The first number of a name is its layer's, in either format.
        let number = name.split('.').find_map(|part| part.parse().ok());
        let (n_layers, n_experts, n_shared) = (self.n_layers, self.n_experts, self.n_shared);
        TensorPlace { role, layer: number.unwrap_or(0), n_layers, n_experts, n_shared, has_importance }
    }
}

fn is_rounded(tensor: &Tensor, base: Dtype) -> bool {
    let (name, shape) = (&tensor.name, &tensor.shape);
    // ggml does not count dimensions of one at the outer end. Its converter does: no other half precision stays behind.
    let n_dims = match tensor.dtype {
        Dtype::F16 | Dtype::BF16 if base.is_plain() => shape.len(),
        _ => shape.iter().skip_while(|dim| **dim == 1).count(),
    };
    n_dims >= 2 && name.ends_with("weight") && !KEPT.iter().any(|part| name.contains(part))
}

fn is_blind(dtype: Dtype) -> bool {
    use Dtype::{IQ1M, IQ1S, IQ2S, IQ2XS, IQ2XXS, IQ3XXS};
    [IQ3XXS, IQ2XXS, IQ2XS, IQ2S, IQ1M, IQ1S].contains(&dtype)
}
