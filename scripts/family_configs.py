"""The tiny configuration of every model family: what `make_families.py` builds, and what llama.cpp's converter wants to
read besides what transformers writes. Long, because it is one table."""

import torch
import transformers as tf

SMALL = dict(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)


def small(**more):
    return {**SMALL, **more}


def rope(theta=10000.0, kind="default", **more):
    return dict(rope_theta=theta, rope_type=kind, **more)


def encoder(**more):
    return {key: value for key, value in small(**more).items() if key != "num_key_value_heads"}


def modern_bert(**more):
    return encoder(
        num_hidden_layers=4, local_attention=12, global_attn_every_n_layers=3, cls_token_id=1, sep_token_id=2, **more
    )


def gemma_embedding(**more):
    return small(
        head_dim=16, hidden_activation="gelu_pytorch_tanh", sliding_window=12, query_pre_attn_scalar=16,
        use_bidirectional_attention=True, tie_word_embeddings=True, **more,
    )


def falcon(**more):
    return dict(
        vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=2048,
        parallel_attn=True, alibi=False, bias=False, bos_token_id=1, eos_token_id=2, **more,
    )


def sees(text, sight):
    """A model that also sees: its text part is what is kept."""
    return dict(text_config=text, vision_config=sight, image_token_id=0, video_token_id=0, vision_start_token_id=0)


def granite_hybrid(**more):
    return small(
        num_hidden_layers=3, layer_types=["linear_attention", "full_attention", "linear_attention"],
        shared_intermediate_size=48, mamba_n_heads=8, mamba_d_head=8, mamba_d_state=16, mamba_n_groups=1,
        mamba_chunk_size=16, embedding_multiplier=3.0, residual_multiplier=0.5, attention_multiplier=0.2,
        logits_scaling=2.0, **more,
    )


def falcon_h1(**more):
    """The converter multiplies the weights and rounds them again: powers of two leave them as they are."""
    return small(
        head_dim=16, mamba_d_ssm=48, mamba_n_heads=6, mamba_d_head=8, mamba_n_groups=2, mamba_d_state=16,
        mamba_chunk_size=16, lm_head_multiplier=0.5, embedding_multiplier=2.0, mlp_multipliers=[0.5, 2.0],
        key_multiplier=0.5, attention_out_multiplier=0.25, attention_in_multiplier=2.0, ssm_in_multiplier=0.5,
        ssm_multipliers=[0.5, 2.0, 0.25, 4.0, 1.0], ssm_out_multiplier=0.5, **more,
    )


def nemotron_h(**more):
    config = small(
        head_dim=16, mamba_num_heads=8, mamba_head_dim=8, ssm_state_size=16, n_groups=2, chunk_size=16, **more,
    )
    return {key: value for key, value in config.items() if key != "num_hidden_layers"}


def delta(**more):
    """Gated delta nets with two value heads to a key head."""
    return small(
        num_hidden_layers=4, head_dim=16, linear_conv_kernel_dim=4, linear_key_head_dim=8, linear_value_head_dim=8,
        linear_num_key_heads=2, linear_num_value_heads=4, full_attention_interval=2, tie_word_embeddings=False, **more,
    )


def latent(**more):
    """Compressed attention."""
    return small(
        num_key_value_heads=4, kv_lora_rank=32, q_lora_rank=48, qk_rope_head_dim=16, qk_nope_head_dim=16, v_head_dim=16,
        **more,
    )


def indexed(**more):
    """Compressed attention with an indexer."""
    usual = dict(
        n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=1, moe_intermediate_size=32, n_group=1, topk_group=1,
        first_k_dense_replace=1, index_topk=64, index_head_dim=16, index_n_heads=2,
    )
    return {**latent(), **usual, "qk_rope_head_dim": 8, **more}


def llama4(**more):
    """Every second layer has experts, every fourth sees everything and turns nothing."""
    return small(
        num_hidden_layers=4, head_dim=8, intermediate_size=32, intermediate_size_mlp=64, num_local_experts=4,
        interleave_moe_layer_step=2, rope_parameters=rope(), **more,
    )


def gemma4(n_layers, **more):
    """Wider heads, with fewer rotated pairs, in the layers without a window."""
    return small(
        num_hidden_layers=n_layers, layer_types=["sliding_attention", "full_attention"] * (n_layers // 2), head_dim=8,
        global_head_dim=16, sliding_window=12, vocab_size_per_layer_input=96, final_logit_softcapping=30.0,
        rope_parameters=dict(
            sliding_attention=rope(), full_attention=rope(1000000.0, "proportional", partial_rotary_factor=0.25),
        ),
        **more,
    )


def mistral4(yarn):
    return latent(
        n_routed_experts=8, moe_intermediate_size=32, num_experts_per_tok=3, n_shared_experts=1,
        rope_parameters=rope(
            10000.0, "yarn", llama_4_scaling_beta=0.4, mscale=1.0, mscale_all_dim=1.0, partial_rotary_factor=0.5, **yarn,
        ),
    )


SECTIONS = dict(mrope_interleaved=True, mrope_section=[2, 1, 1])
QWEN3_SIGHT = dict(
    depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=32, num_position_embeddings=16,
    deepstack_visual_indexes=[0],
)
# Two positions are kept for padding.
XLM = dict(type_vocab_size=1, pad_token_id=1, bos_token_id=0, max_position_embeddings=130)
LONG = [1.0 + 0.3 * i for i in range(4)]
SHORT = [1.0 + 0.05 * i for i in range(4)]
YARN16 = dict(factor=4.0, original_max_position_embeddings=16, beta_fast=32.0, beta_slow=1.0)
YARN64 = dict(factor=2.0, original_max_position_embeddings=64, beta_fast=32.0, beta_slow=1.0)
YARN = dict(factor=4.0, original_max_position_embeddings=32, beta_fast=32.0, beta_slow=1.0)

# name: (configuration class, what differs from SMALL). The model class follows from `architectures`.
FAMILIES = {
    "llama": (tf.LlamaConfig, small(rope_parameters=rope(5000.0))),
    "llama3": (
        tf.LlamaConfig,
        small(
            tie_word_embeddings=True,
            rope_parameters=rope(
                5000.0,
                "llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=32,
            ),
        ),
    ),
    "llama-linear": (tf.LlamaConfig, small(rope_parameters=rope(10000.0, "linear", factor=4.0))),
    "mistral": (tf.MistralConfig, small(sliding_window=None, head_dim=16)),
    "mixtral": (
        tf.MixtralConfig,
        small(num_local_experts=4, num_experts_per_tok=2, intermediate_size=32, sliding_window=None),
    ),
    "granite": (
        tf.GraniteConfig,
        small(
            embedding_multiplier=6.0,
            residual_multiplier=0.4,
            attention_multiplier=0.11,
            logits_scaling=3.0,
            tie_word_embeddings=True,
        ),
    ),
    "qwen2": (tf.Qwen2Config, small(use_sliding_window=False)),
    "qwen2-yarn": (tf.Qwen2Config, small(use_sliding_window=False, rope_parameters=rope(10000.0, "yarn", **YARN))),
    "qwen2moe": (
        tf.Qwen2MoeConfig,
        small(
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=48,
            norm_topk_prob=False,
            decoder_sparse_step=1,
            mlp_only_layers=[],
            use_sliding_window=False,
        ),
    ),
    "qwen3": (tf.Qwen3Config, small(head_dim=16, use_sliding_window=False, tie_word_embeddings=True)),
    "qwen3moe": (
        tf.Qwen3MoeConfig,
        small(
            head_dim=16,
            num_experts=6,
            num_experts_per_tok=3,
            moe_intermediate_size=32,
            norm_topk_prob=True,
            decoder_sparse_step=1,
            mlp_only_layers=[],
            use_sliding_window=False,
        ),
    ),
    "gemma": (tf.GemmaConfig, small(head_dim=16, hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True)),
    "gemma2": (
        tf.Gemma2Config,
        small(
            head_dim=16,
            sliding_window=12,
            query_pre_attn_scalar=16,
            attn_logit_softcapping=4.0,
            final_logit_softcapping=3.0,
            tie_word_embeddings=True,
        ),
    ),
    "gemma3": (
        tf.Gemma3TextConfig,
        small(
            head_dim=16,
            num_hidden_layers=6,
            intermediate_size=64,
            sliding_window=12,
            query_pre_attn_scalar=16,
            tie_word_embeddings=True,
            rope_parameters={
                "full_attention": rope(1000000.0, "linear", factor=8.0),
                "sliding_attention": rope(10000.0),
            },
        ),
    ),
    "phi3": (tf.Phi3Config, small(sliding_window=None, rope_parameters=rope(10000.0))),
    "phi3-longrope": (
        tf.Phi3Config,
        small(
            sliding_window=None,
            original_max_position_embeddings=32,
            rope_parameters=rope(
                10000.0,
                "longrope",
                long_factor=LONG,
                short_factor=SHORT,
                original_max_position_embeddings=32,
                factor=4.0,
            ),
        ),
    ),
    "olmo2": (tf.Olmo2Config, small()),
    "stablelm": (
        tf.StableLmConfig,
        small(
            num_attention_heads=2,
            num_key_value_heads=1,
            use_qkv_bias=True,
            rope_parameters=dict(rope_theta=10000.0, rope_type="default", partial_rotary_factor=0.25),
        ),
    ),
    "glm4": (
        tf.Glm4Config,
        small(
            head_dim=16,
            attention_bias=True,
            rope_parameters=dict(rope_theta=10000.0, rope_type="default", partial_rotary_factor=0.5),
        ),
    ),
    "deepseek2": (
        tf.DeepseekV2Config,
        small(
            num_key_value_heads=4,
            num_hidden_layers=2,
            kv_lora_rank=32,
            q_lora_rank=48,
            qk_rope_head_dim=16,
            qk_nope_head_dim=16,
            v_head_dim=16,
            n_routed_experts=8,
            num_experts_per_tok=3,
            n_shared_experts=2,
            moe_intermediate_size=32,
            first_k_dense_replace=1,
            routed_scaling_factor=2.0,
            topk_method="group_limited_greedy",
            n_group=4,
            topk_group=2,
            norm_topk_prob=False,
        ),
    ),
    "deepseek3": (
        tf.DeepseekV3Config,
        small(
            num_key_value_heads=4,
            num_hidden_layers=2,
            kv_lora_rank=32,
            q_lora_rank=48,
            qk_rope_head_dim=16,
            qk_nope_head_dim=16,
            v_head_dim=16,
            n_routed_experts=8,
            num_experts_per_tok=3,
            n_shared_experts=1,
            moe_intermediate_size=32,
            first_k_dense_replace=1,
            routed_scaling_factor=2.5,
            n_group=4,
            topk_group=2,
            norm_topk_prob=True,
            rope_parameters=rope(10000.0, "yarn", mscale=1.0, mscale_all_dim=1.0, **YARN),
        ),
    ),
    "deepseek3-halves": (
        tf.DeepseekV3Config,
        small(
            num_key_value_heads=4,
            num_hidden_layers=2,
            kv_lora_rank=32,
            q_lora_rank=48,
            qk_rope_head_dim=16,
            qk_nope_head_dim=16,
            v_head_dim=16,
            n_routed_experts=8,
            num_experts_per_tok=3,
            n_shared_experts=1,
            moe_intermediate_size=32,
            first_k_dense_replace=1,
            routed_scaling_factor=2.5,
            n_group=4,
            topk_group=2,
            norm_topk_prob=True,
            rope_interleave=False,
            rope_parameters=rope(10000.0, "yarn", mscale=1.0, mscale_all_dim=1.0, **YARN),
        ),
    ),
    "gpt-oss": (
        tf.GptOssConfig,
        small(
            head_dim=16,
            intermediate_size=32,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=12,
            rope_parameters=rope(10000.0, "yarn", truncate=False, **YARN),
        ),
    ),
    "smollm3": (tf.SmolLM3Config, small(num_hidden_layers=4, intermediate_size=32, no_rope_layer_interval=4)),
    "olmo3": (
        tf.Olmo3Config,
        small(
            num_hidden_layers=4,
            intermediate_size=32,
            sliding_window=12,
            rope_parameters={
                "full_attention": rope(10000.0, "yarn", **YARN),
                "sliding_attention": rope(10000.0),
            },
        ),
    ),
    "olmoe": (
        tf.OlmoeConfig,
        small(num_experts=6, num_experts_per_tok=3, intermediate_size=32, norm_topk_prob=False, rms_norm_eps=1e-5),
    ),
    "exaone4": (
        tf.Exaone4Config,
        small(num_hidden_layers=4, intermediate_size=32, head_dim=16, sliding_window=12, sliding_window_pattern=4),
    ),
    "seed_oss": (tf.SeedOssConfig, small(head_dim=16, attention_bias=True, attention_out_bias=False)),
    "command-r": (tf.CohereConfig, small(logit_scale=0.3, use_qk_norm=True, tie_word_embeddings=True)),
    "cohere2": (
        tf.Cohere2Config,
        small(num_hidden_layers=4, intermediate_size=32, logit_scale=0.3, sliding_window=12, tie_word_embeddings=True),
    ),
    "ernie4_5": (tf.Ernie4_5Config, small(head_dim=16, tie_word_embeddings=True)),
    "ernie4_5-moe": (
        tf.Ernie4_5_MoeConfig,
        small(
            moe_num_experts=8,
            moe_k=3,
            moe_intermediate_size=32,
            moe_num_shared_experts=1,
            moe_layer_start_index=1,
            moe_layer_interval=1,
            tie_word_embeddings=True,
        ),
    ),
    "hunyuan-dense": (
        tf.HunYuanDenseV1Config,
        small(head_dim=16, tie_word_embeddings=True, rope_parameters=rope(10000.0)),
    ),
    "hunyuan-alpha": (
        tf.HunYuanDenseV1Config,
        small(head_dim=16, tie_word_embeddings=True, rope_parameters=rope(10000.0, "dynamic", alpha=5.0, factor=1.0)),
    ),
    "hunyuan-moe": (
        tf.HunYuanMoEV1Config,
        small(head_dim=8, num_experts=6, moe_topk=[2, 2], intermediate_size=32, tie_word_embeddings=True),
    ),
    "glm4moe": (
        tf.Glm4MoeConfig,
        small(
            head_dim=16,
            attention_bias=True,
            use_qk_norm=True,
            n_routed_experts=8,
            num_experts_per_tok=3,
            moe_intermediate_size=32,
            n_shared_experts=1,
            first_k_dense_replace=1,
            routed_scaling_factor=1.5,
            n_group=1,
            topk_group=1,
            num_nextn_predict_layers=0,
        ),
    ),
    "dots1": (
        tf.Dots1Config,
        small(
            head_dim=16,
            n_routed_experts=8,
            num_experts_per_tok=3,
            moe_intermediate_size=32,
            n_shared_experts=1,
            first_k_dense_replace=1,
            routed_scaling_factor=1.5,
            n_group=1,
            topk_group=1,
            norm_topk_prob=True,
            sliding_window=None,
        ),
    ),
    "minimax-m2": (
        tf.MiniMaxM2Config,
        small(
            head_dim=16,
            num_local_experts=8,
            num_experts_per_tok=3,
            intermediate_size=32,
            rope_parameters=rope(10000.0, partial_rotary_factor=0.5),
        ),
    ),
    "phi2": (
        tf.PhiConfig,
        small(num_key_value_heads=4, intermediate_size=128, rope_parameters=rope(partial_rotary_factor=0.5)),
    ),
    "starcoder2": (tf.Starcoder2Config, small(tie_word_embeddings=True)),
    "gpt2": (
        tf.GPT2Config,
        dict(vocab_size=96, n_positions=128, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2),
    ),
    "gptneox": (
        tf.GPTNeoXConfig,
        encoder(use_parallel_residual=True, rope_parameters=rope(partial_rotary_factor=0.5)),
    ),
    "gptneox-serial": (
        tf.GPTNeoXConfig,
        encoder(use_parallel_residual=False, rope_parameters=rope(partial_rotary_factor=0.5)),
    ),
    "falcon": (tf.FalconConfig, falcon(new_decoder_architecture=False, multi_query=True)),
    "falcon-40b": (tf.FalconConfig, falcon(new_decoder_architecture=True, num_kv_heads=2)),
    "bloom": (
        tf.BloomConfig,
        dict(vocab_size=96, hidden_size=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2, seq_length=128),
    ),
    "mpt": (
        tf.MptConfig,
        dict(
            vocab_size=96, d_model=32, n_layers=2, n_heads=4, max_seq_len=128, bos_token_id=1, eos_token_id=2,
            attn_config=dict(clip_qkv=1.5, alibi=True, alibi_bias_max=8),
        ),
    ),
    "nemotron": (tf.NemotronConfig, small(head_dim=8, rope_parameters=rope(partial_rotary_factor=0.5))),
    "apertus": (tf.ApertusConfig, small(rope_parameters=rope(10000.0))),
    "arcee": (tf.ArceeConfig, small(rope_parameters=rope(10000.0))),
    "granitemoe": (
        tf.GraniteMoeConfig,
        small(
            num_local_experts=6,
            num_experts_per_tok=3,
            intermediate_size=32,
            embedding_multiplier=6.0,
            residual_multiplier=0.4,
            attention_multiplier=0.11,
            logits_scaling=3.0,
            tie_word_embeddings=True,
        ),
    ),
    "dbrx": (
        tf.DbrxConfig,
        dict(
            vocab_size=96, d_model=32, n_layers=2, n_heads=4, max_seq_len=128, bos_token_id=1, eos_token_id=2,
            attn_config=dict(clip_qkv=1.5, kv_n_heads=2, rope_theta=10000.0),
            ffn_config=dict(hidden_size=32, ffn_hidden_size=32, moe_num_experts=6, moe_top_k=3),
            rope_parameters=rope(10000.0),
        ),
    ),
    "starcoder": (
        tf.GPTBigCodeConfig,
        dict(vocab_size=96, n_positions=128, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2),
    ),
    "mistral3": (
        tf.Ministral3Config,
        small(
            head_dim=16,
            rope_parameters=rope(10000.0, "yarn", llama_4_scaling_beta=0.4, mscale=1.0, mscale_all_dim=1.0, **YARN16),
        ),
    ),
    "minicpm3": (
        tf.MiniCPM3Config,
        small(
            num_key_value_heads=4,
            kv_lora_rank=32,
            q_lora_rank=48,
            qk_rope_head_dim=16,
            qk_nope_head_dim=16,
            v_head_dim=8,
            tie_word_embeddings=True,
            rope_parameters=rope(10000.0),
        ),
    ),
    "exaone-moe": (
        tf.ExaoneMoeConfig,
        small(
            num_hidden_layers=4,
            intermediate_size=32,
            head_dim=8,
            sliding_window=12,
            sliding_window_pattern=4,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            num_shared_experts=1,
            first_k_dense_replace=1,
            routed_scaling_factor=1.5,
            n_group=1,
            topk_group=1,
        ),
    ),
    "jais2": (tf.Jais2Config, small(head_dim=8, rope_parameters=rope(10000.0))),
    "bitnet": (tf.BitNetConfig, small(rope_parameters=rope(10000.0), tie_word_embeddings=True)),
    "chatglm": (
        tf.GlmConfig,
        small(head_dim=8, attention_bias=True, rope_parameters=rope(10000.0, partial_rotary_factor=0.5)),
    ),
    "youtu": (
        tf.YoutuConfig,
        small(
            num_key_value_heads=4,
            kv_lora_rank=32,
            q_lora_rank=48,
            qk_rope_head_dim=16,
            qk_nope_head_dim=16,
            v_head_dim=16,
            rope_parameters=rope(10000.0),
        ),
    ),
    "solar-open": (
        tf.SolarOpenConfig,
        small(
            head_dim=16,
            n_routed_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            n_shared_experts=1,
            routed_scaling_factor=1.5,
            n_group=1,
            topk_group=1,
            rope_parameters=rope(10000.0, partial_rotary_factor=1.0),
        ),
    ),
    "qwen2vl": (
        tf.Qwen2_5_VLConfig,
        sees(
            small(rope_parameters=rope(10000.0, mrope_section=[1, 1, 2])),
            dict(
                depth=1, hidden_size=16, out_hidden_size=32, intermediate_size=16, num_heads=2,
                fullatt_block_indexes=[0],
            ),
        ),
    ),
    "qwen3vl": (
        tf.Qwen3VLConfig,
        sees(
            small(head_dim=16, rope_parameters=rope(10000.0, mrope_section=[2, 3, 3], mrope_interleaved=True)),
            QWEN3_SIGHT,
        ),
    ),
    "lfm2": (
        tf.Lfm2Config,
        small(
            num_hidden_layers=4, intermediate_size=96, block_multiple_of=16, conv_L_cache=3,
            layer_types=["conv", "full_attention", "conv", "conv"],
        ),
    ),
    "lfm2moe": (
        tf.Lfm2MoeConfig,
        small(
            num_hidden_layers=3, conv_L_cache=4, moe_intermediate_size=32, num_dense_layers=1, num_experts=4,
            num_experts_per_tok=2, layer_types=["conv", "full_attention", "conv"],
        ),
    ),
    # With several groups transformers norms all of them together; the original and llama.cpp norm each by itself.
    "mamba2": (
        tf.Mamba2Config,
        dict(
            vocab_size=96, hidden_size=32, num_hidden_layers=3, num_heads=8, head_dim=8, state_size=16, n_groups=1,
            conv_kernel=4, chunk_size=16, bos_token_id=1, eos_token_id=2, pad_token_id=0,
        ),
    ),
    "mamba2-deep": (
        tf.Mamba2Config,
        dict(
            vocab_size=96, hidden_size=32, num_hidden_layers=3, num_heads=8, head_dim=8, state_size=272, n_groups=1,
            conv_kernel=4, chunk_size=16, bos_token_id=1, eos_token_id=2, pad_token_id=0,
        ),
    ),
    "granitehybrid": (tf.GraniteMoeHybridConfig, granite_hybrid(num_local_experts=0)),
    "granitehybrid-moe": (
        tf.GraniteMoeHybridConfig,
        granite_hybrid(num_local_experts=4, num_experts_per_tok=2, intermediate_size=32),
    ),
    "falcon-h1": (tf.FalconH1Config, falcon_h1(mamba_rms_norm=False)),
    "falcon-h1-norm": (tf.FalconH1Config, falcon_h1(mamba_rms_norm=True, mamba_norm_before_gate=False)),
    "nemotron_h": (
        tf.NemotronHConfig,
        nemotron_h(layers_block_type=["linear_attention", "mlp", "full_attention", "linear_attention", "mlp"]),
    ),
    "nemotron_h_moe": (
        tf.NemotronHConfig,
        nemotron_h(
            layers_block_type=["linear_attention", "moe", "full_attention", "moe", "linear_attention"],
            n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, n_group=1, topk_group=1,
            moe_shared_expert_intermediate_size=48, routed_scaling_factor=1.5, norm_topk_prob=True,
        ),
    ),
    "jamba": (
        tf.JambaConfig,
        small(
            num_hidden_layers=4, num_experts=4, num_experts_per_tok=2, expert_layer_period=2, expert_layer_offset=1,
            attn_layer_period=4, attn_layer_offset=2, mamba_d_state=8, mamba_d_conv=4, mamba_expand=2, mamba_dt_rank=4,
            intermediate_size=32, tie_word_embeddings=False,
        ),
    ),
    "qwen3next": (
        tf.Qwen3NextConfig,
        delta(
            num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32,
            rope_parameters=rope(10000.0, partial_rotary_factor=0.5),
        ),
    ),
    "qwen35": (tf.Qwen3_5TextConfig, delta(rope_parameters=rope(10000.0, partial_rotary_factor=0.5, **SECTIONS))),
    "qwen35moe": (
        tf.Qwen3_5MoeTextConfig,
        delta(
            num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32,
            rope_parameters=rope(10000.0, partial_rotary_factor=0.5, **SECTIONS),
        ),
    ),
    "kimi-linear": (
        tf.KimiLinearConfig,
        small(
            num_hidden_layers=3, layer_types=["linear_attention", "full_attention", "linear_attention"],
            linear_head_dim=8, linear_num_heads=4, linear_conv_kernel_dim=4, kv_lora_rank=16, qk_nope_head_dim=16,
            qk_rope_head_dim=8, v_head_dim=16, num_key_value_heads=4, moe_intermediate_size=32, num_local_experts=4,
            num_experts_per_tok=2, n_shared_experts=1, routed_scaling_factor=2.4,
            mlp_layer_types=["dense", "sparse", "sparse"],
        ),
    ),
    # The converter does not write the length of a chunk, nor how queries grow.
    "llama4": (tf.Llama4TextConfig, llama4()),
    "llama4-chunked": (
        tf.Llama4TextConfig, llama4(attention_chunk_size=12, floor_scale=8, num_experts_per_tok=2),
    ),
    "phimoe": (
        tf.PhimoeConfig,
        small(
            num_local_experts=4, num_experts_per_tok=2, intermediate_size=32, attention_bias=True, lm_head_bias=True,
            sliding_window=None, rope_parameters=rope(), router_jitter_noise=0.01,
        ),
    ),
    # The converter drops how queries grow, which shows from the original context on.
    "mistral4": (tf.Mistral4Config, mistral4(YARN64)),
    "mistral4-grown": (tf.Mistral4Config, mistral4(YARN16)),
    "glm4-moe-lite": (
        tf.Glm4MoeLiteConfig,
        latent(
            n_routed_experts=8, moe_intermediate_size=32, num_experts_per_tok=3, n_shared_experts=1,
            routed_scaling_factor=1.8, rope_parameters=rope(),
        ),
    ),
    # As many tokens are looked at as there are; the sparse ones choose, in three layers, so that choices are made of rows that
    # were chosen for. Sixteen heads, so that no two scores are zero.
    "deepseek32": (
        tf.DeepseekV32Config,
        indexed(
            n_group=4, topk_group=2, rope_parameters=rope(10000.0, "yarn", mscale=1.0, mscale_all_dim=1.0, **YARN),
        ),
    ),
    "deepseek32-sparse": (
        tf.DeepseekV32Config,
        indexed(
            n_group=4, topk_group=2, num_hidden_layers=3, index_topk=8, index_n_heads=16,
            rope_parameters=rope(10000.0, "yarn", mscale=1.0, mscale_all_dim=1.0, **YARN),
        ),
    ),
    "glm-dsa": (tf.GlmMoeDsaConfig, indexed(indexer_types=["full", "shared"], rope_parameters=rope())),
    "glm-dsa-sparse": (
        tf.GlmMoeDsaConfig,
        indexed(
            num_hidden_layers=3, index_topk=8, index_n_heads=16, indexer_types=["full", "shared", "full"],
            rope_parameters=rope(),
        ),
    ),
    "bamba": (
        tf.BambaConfig,
        small(
            num_hidden_layers=3, attn_layer_indices=[1], mamba_n_heads=8, mamba_d_head=8, mamba_d_state=16,
            mamba_n_groups=1, mamba_chunk_size=16, rope_parameters=rope(partial_rotary_factor=0.5),
        ),
    ),
    "internlm2": (tf.LlamaConfig, small(rope_parameters=rope(5000.0))),
    "bailingmoe2": (
        tf.Glm4MoeConfig,
        small(
            head_dim=16, use_qk_norm=True, n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=32,
            n_shared_experts=1, first_k_dense_replace=1, routed_scaling_factor=2.5, n_group=4, topk_group=2,
            rope_parameters=rope(partial_rotary_factor=0.5),
        ),
    ),
    "gemma3n": (
        tf.Gemma3nTextConfig,
        small(
            num_hidden_layers=4, layer_types=["sliding_attention", "full_attention"] * 2, head_dim=8, sliding_window=12,
            num_kv_shared_layers=2, hidden_size_per_layer_input=16, vocab_size_per_layer_input=96, laurel_rank=8,
            activation_sparsity_pattern=[0.7, 0.0, 0.0, 0.4],
        ),
    ),
    "gemma4": (
        tf.Gemma4TextConfig,
        gemma4(6, num_kv_shared_layers=2, use_double_wide_mlp=True, hidden_size_per_layer_input=16),
    ),
    "gemma4-moe": (
        tf.Gemma4TextConfig,
        gemma4(
            4, num_key_value_heads=4, num_global_key_value_heads=1, attention_k_eq_v=True,
            hidden_size_per_layer_input=0, enable_moe_block=True, num_experts=4, top_k_experts=2,
            moe_intermediate_size=32,
        ),
    ),
    "bert": (tf.BertConfig, encoder(type_vocab_size=2)),
    "nomic-bert": (tf.NomicBertConfig, encoder(type_vocab_size=2, max_position_embeddings=2048)),
    "xlm-roberta": (tf.XLMRobertaConfig, encoder(**XLM)),
    "jina-bert-v3": (tf.JinaEmbeddingsV3Config, encoder(type_vocab_size=1, rope_parameters=rope(20000.0))),
    "modern-bert": (tf.ModernBertConfig, modern_bert()),
    "modern-bert-rerank": (
        tf.ModernBertConfig,
        modern_bert(num_labels=1, classifier_pooling="mean", hidden_activation="silu"),
    ),
    "gemma-embedding": (tf.Gemma3TextConfig, gemma_embedding(num_hidden_layers=7)),
    "gemma-embedding-dense": (tf.Gemma3TextConfig, gemma_embedding()),
    "llama-embed": (tf.LlamaConfig, small(rope_parameters=rope(10000.0))),
    "eurobert": (tf.EuroBertConfig, small(rope_parameters=rope(10000.0))),
    "qwen3-reranker": (tf.Qwen3Config, small(head_dim=16, use_sliding_window=False, tie_word_embeddings=True)),
    "bert-rerank": (tf.BertConfig, encoder(type_vocab_size=2, num_labels=1)),
    "xlm-roberta-rerank": (tf.XLMRobertaConfig, encoder(num_labels=1, **XLM)),
}
# llama.cpp's converter drops the pooler of BERT, without which the score is another.
# It also takes HunYuan's own scaling of rope with the published sizes alone.
# Of Bamba it reorders the rows of whole heads, of which only a half is rotated.
NO_GGUF = {"bert-rerank", "bamba", "deepseek3-halves", "hunyuan-alpha", "llama4-chunked", "mistral4-grown"}


def nomic(config):
    """The keys of the model's own code, which the converter reads; transformers writes its own."""
    return dict(
        n_positions=8192, max_trained_positions=2048, activation_function="swiglu", causal=False,
        qkv_proj_bias=False, mlp_fc1_bias=False, mlp_fc2_bias=False, prenorm=False, rotary_emb_fraction=1.0,
        rotary_emb_interleaved=False, rotary_emb_scale_base=None, rotary_emb_base=10000.0,
        n_embd=config["hidden_size"], n_inner=config["intermediate_size"], n_layer=config["num_hidden_layers"],
        n_head=config["num_attention_heads"], layer_norm_epsilon=config["layer_norm_eps"],
    )


def granite_layers(config):
    """The names of layers that the converter knows."""
    names = {"linear_attention": "mamba", "full_attention": "attention"}
    return dict(layer_types=[names[kind] for kind in config["layer_types"]])


def nemotron_layers(config):
    names = {"linear_attention": "M", "full_attention": "*", "mlp": "-", "moe": "E"}
    kinds = config["layers_block_type"]
    keys = dict(hybrid_override_pattern="".join(names[kind] for kind in kinds), num_hidden_layers=len(kinds))
    if "moe" not in kinds:
        # It tells the two kinds of models apart by this key.
        keys["num_experts_per_tok"] = DROPPED
    return keys


def kimi_layers(config):
    full = [i + 1 for i, kind in enumerate(config["layer_types"]) if kind == "full_attention"]
    others = [i + 1 for i, kind in enumerate(config["layer_types"]) if kind != "full_attention"]
    return dict(
        linear_attn_config=dict(
            full_attn_layers=full, kda_layers=others, head_dim=config["linear_head_dim"],
            num_heads=config["linear_num_heads"], short_conv_kernel_size=config["linear_conv_kernel_dim"],
        ),
        num_shared_experts=1, first_k_dense_replace=1, num_key_value_heads=config["num_attention_heads"],
    )


def fuse(tensors, config, by_head):
    """Queries, keys and values of every layer in one tensor: of each KV head together, or one after the other."""
    kv_heads = config["num_key_value_heads"]
    for key in [key for key in tensors if key.endswith("self_attn.q_proj.weight")]:
        parts = [tensors.pop(key.replace("q_proj", f"{name}_proj")) for name in "qkv"]
        if by_head:
            parts = [part.reshape(kv_heads, -1, part.shape[-1]) for part in parts]
        fused = torch.cat(parts, dim=1 if by_head else 0)
        tensors[key.replace("q_proj", "qkv")] = fused.reshape(-1, fused.shape[-1]).contiguous()
    return tensors


def renamed(tensors, names):
    for old, new in names:
        tensors = {key.replace(old, new): value for key, value in tensors.items()}
    return tensors


def internlm2(tensors, config):
    """InternLM 2 has llama's mathematics under other names; transformers has no class for it."""
    tensors = renamed(fuse(tensors, config, by_head=True), [
        ("self_attn.qkv", "attention.wqkv"), ("self_attn.o_proj", "attention.wo"), ("embed_tokens", "tok_embeddings"),
        ("input_layernorm", "attention_norm"), ("post_attention_layernorm", "ffn_norm"), ("lm_head", "output"),
        ("mlp.gate_proj", "feed_forward.w1"), ("mlp.up_proj", "feed_forward.w3"), ("mlp.down_proj", "feed_forward.w2"),
    ])
    return tensors, dict(architectures=["InternLM2ForCausalLM"], model_type="internlm2", bias=False)


def bailingmoe2(tensors, config):
    """Ling 2 has the mathematics of GLM 4.5 under other names; transformers has no class for it."""
    tensors = renamed(fuse(tensors, config, by_head=False), [
        ("self_attn.qkv", "attention.query_key_value"), ("self_attn.o_proj", "attention.dense"),
        ("self_attn.q_norm", "attention.query_layernorm"), ("self_attn.k_norm", "attention.key_layernorm"),
        ("embed_tokens", "word_embeddings"), ("gate.e_score_correction_bias", "gate.expert_bias"),
    ])
    return tensors, dict(
        architectures=["BailingMoeV2ForCausalLM"], model_type="bailing_moe_v2", num_experts=config["n_routed_experts"],
        num_shared_experts=config["n_shared_experts"], score_function="sigmoid", first_k_dense_replace=1,
        partial_rotary_factor=0.5, rope_theta=10000.0, n_routed_experts=None, n_shared_experts=None,
        layer_types=None, mlp_layer_types=None,
    )


# Families of which transformers has the mathematics and not the names: what becomes of its tensors and configuration.
FOREIGN = {"internlm2": internlm2, "bailingmoe2": bailingmoe2}
# The value of a key that the converter must not see.
DROPPED = "dropped"
# It would look for layers that guess ahead.
WITHOUT_MTP = {"qwen3next", "qwen35", "qwen35moe"}
# What a configuration says in place of what transformers writes: transformers has no class of that name.
RENAMED_CONFIGS = {"llama-embed": dict(model_type="llama_bidirec", architectures=["LlamaBidirectionalModel"])}
# Models without a head for the next token.
HEADLESS = {"gemma-embedding", "gemma-embedding-dense", "llama-embed", "eurobert", "jina-bert-v3"}
# Widths of the layers that sentence-transformers puts behind the mean.
DENSE = {"gemma-embedding-dense": [(32, 48), (48, 32)]}
# The tokens with which a model answers that was trained to say "yes" or "no", and one that the converter looks up.
ANSWERS = {"qwen3-reranker": {"yes": 40, "no": 41, "|": 42}}
# name: what the converter asks for and transformers does not write.
CONVERTER_KEYS = {
    "qwen3-reranker": lambda config: dict(_name_or_path="Qwen3-Reranker"),
    "eurobert": lambda config: dict(classifier_pooling=DROPPED),
    "modern-bert": lambda config: dict(global_attn_every_n_layers=3),
    "modern-bert-rerank": lambda config: dict(global_attn_every_n_layers=3),
    "jina-bert-v3": lambda config: dict(
        model_type="xlm-roberta", architectures=["XLMRobertaModel"], position_embedding_type="rotary",
        lora_adaptations=["none"], lora_alpha=1.0, rotary_emb_base=config["rope_parameters"]["rope_theta"],
    ),
    "nomic-bert": nomic,
    "cohere2": lambda config: dict(rotary_pct=1.0),
    "falcon": lambda config: dict(num_kv_heads=1),
    "gpt2": lambda config: dict(n_ctx=config["n_positions"]),
    "gptneox": lambda config: dict(rotary_pct=0.5),
    "gptneox-serial": lambda config: dict(rotary_pct=0.5),
    "hunyuan-moe": lambda config: dict(
        moe_intermediate_size=[config["intermediate_size"]] * 2, num_shared_expert=[1, 1], moe_topk=[2, 2],
    ),
    "minimax-m2": lambda config: dict(rotary_dim=8),
    "granitehybrid": granite_layers,
    "granitehybrid-moe": granite_layers,
    "jamba": lambda config: dict(
        attn_layer_period=4, attn_layer_offset=2, expert_layer_period=2, expert_layer_offset=1, mamba_d_conv=4,
    ),
    "nemotron_h": nemotron_layers,
    "nemotron_h_moe": nemotron_layers,
    "kimi-linear": kimi_layers,
    "mistral4": lambda config: dict(architectures=["Mistral3ForConditionalGeneration"], model_type="mistral4"),
    "phimoe": lambda config: dict(
        architectures=["PhiMoEForCausalLM"], original_max_position_embeddings=config["max_position_embeddings"],
    ),
    "mpt": lambda config: dict(architectures=["MPTForCausalLM"]),
}
def jina_tensors(tensors):
    """As the model's own code names and fuses them."""
    names = {
        "self_attn.o_proj": "mixer.out_proj", "post_attention_layernorm": "norm1", "post_mlp_layernorm": "norm2",
        "embeddings.LayerNorm": "emb_ln",
    }
    found = {}
    for key, value in tensors.items():
        for old, new in names.items():
            key = key.replace(old, new)
        found["encoder." + key if key.startswith("layers.") else key] = value
    for key in [key for key in found if ".q_proj." in key]:
        parts = [found.pop(key.replace("q_proj", part)) for part in ("q_proj", "k_proj", "v_proj")]
        found[key.replace("self_attn.q_proj", "mixer.Wqkv")] = torch.cat(parts)
    return found


# name: what makes the converter's tensors of transformers'.
CONVERTER_TENSORS = {"jina-bert-v3": jina_tensors}
# name: tensors that the converter knows by the names of the model's own code.
CONVERTER_NAMES = {
    "kimi-linear": [
        (f"layers.0.block_sparse_moe.{name}_proj", f"layers.0.mlp.{name}_proj") for name in ("gate", "up", "down")
    ],
    "bitnet": [("self_attn.attn_sub_norm", "self_attn.inner_attn_ln"), ("mlp.ffn_sub_norm", "mlp.ffn_layernorm")],
}
