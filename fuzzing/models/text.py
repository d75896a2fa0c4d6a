"""Architectures for text."""

from __future__ import annotations

from typing import Any

from fuzzing.models.architecture import (
    TEXT,
    TEXT_SIZES,
    Architecture,
    decoder,
    encoder,
    from_config,
    ids_alone,
    sequence_to_sequence,
    translation,
)

ENCODERS: tuple[Architecture, ...] = (
    encoder("bert"),
    encoder("bert", "BertForTokenClassification", "bert (tokens)"),
    encoder("roberta"),
    encoder("xlm-roberta"),
    encoder("albert", embedding_size=16),
    encoder("electra", embedding_size=16),
    encoder("distilbert", dim=32, n_layers=2, n_heads=4, hidden_dim=48),
    encoder("mpnet"),
    encoder("deberta", relative_attention=True, pos_att_type=["c2p", "p2c"]),
    encoder("deberta-v2", relative_attention=True, pos_att_type=["c2p", "p2c"]),
    encoder("modernbert", local_attention=8, cls_token_id=1, sep_token_id=2),
    encoder("rembert", input_embedding_size=16, output_embedding_size=32),
    encoder("squeezebert", embedding_size=32),
    encoder("mobilebert", embedding_size=16, true_hidden_size=16, intra_bottleneck_size=16),
    encoder("convbert", embedding_size=16),
    encoder("roformer", embedding_size=16),
    encoder("esm", emb_layer_norm_before=False, mask_token_id=4),
    encoder("ibert"),
    encoder("layoutlm", max_2d_position_embeddings=64),
    encoder(
        "xlnet", without="max_position_embeddings", d_model=32, n_layer=2, n_head=4, d_inner=48
    ),
    encoder("fnet", inputs=ids_alone, type_vocab_size=4),
    encoder(
        "funnel",
        "FunnelModel",
        without="num_hidden_layers",
        block_sizes=[1, 1],
        d_model=32,
        n_head=4,
        d_head=8,
        d_inner=48,
    ),
    encoder("megatron-bert"),
    encoder("ernie"),
    encoder("eurobert", num_key_value_heads=2),
    encoder("canine", num_hash_buckets=64, local_transformer_stride=16),
)

DECODERS: tuple[Architecture, ...] = (
    decoder("gpt2", "GPT2LMHeadModel"),
    decoder("gpt_neo", num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]]),
    decoder("gpt_neox", "GPTNeoXForCausalLM"),
    decoder("gptj", rotary_dim=4, n_embd=32, n_layer=2, n_head=4),
    decoder("codegen", rotary_dim=4, n_embd=32, n_layer=2, n_head=4),
    decoder("gpt_bigcode", n_embd=32, n_layer=2, n_head=4),
    decoder("opt", "OPTForCausalLM", ffn_dim=48, word_embed_proj_dim=32),
    decoder("bloom", "BloomForCausalLM"),
    decoder("llama", "LlamaForCausalLM"),
    decoder("mistral", "MistralForCausalLM", sliding_window=6),
    decoder("qwen2", "Qwen2ForCausalLM"),
    decoder("qwen3", "Qwen3ForCausalLM", head_dim=8),
    decoder("gemma", "GemmaForCausalLM", head_dim=8),
    decoder("gemma2", "Gemma2ForCausalLM", head_dim=8, query_pre_attn_scalar=8, sliding_window=6),
    decoder("gemma3_text", "Gemma3ForCausalLM", head_dim=8, query_pre_attn_scalar=8,
            sliding_window=6, sliding_window_pattern=2),
    decoder("phi", "PhiForCausalLM", partial_rotary_factor=0.5),
    decoder("phi3", "Phi3ForCausalLM"),
    decoder("falcon", "FalconForCausalLM", multi_query=True, new_decoder_architecture=False),
    decoder("stablelm", "StableLmForCausalLM", partial_rotary_factor=0.25),
    decoder("starcoder2", "Starcoder2ForCausalLM"),
    decoder("olmo", "OlmoForCausalLM"),
    decoder("olmo2", "Olmo2ForCausalLM"),
    decoder("cohere", "CohereForCausalLM"),
    decoder("granite", "GraniteForCausalLM"),
    decoder("nemotron", "NemotronForCausalLM"),
    decoder("persimmon", "PersimmonForCausalLM"),
    decoder("helium", "HeliumForCausalLM", head_dim=8),
    decoder("glm", "GlmForCausalLM", head_dim=8),
    decoder("smollm3", "SmolLM3ForCausalLM"),
    decoder("xglm", "XGLMForCausalLM", d_model=32, num_layers=2, attention_heads=4, ffn_dim=48),
    decoder("biogpt", "BioGptForCausalLM"),
    decoder("mixtral", "MixtralForCausalLM", num_local_experts=4),
    decoder("qwen2_moe", "Qwen2MoeForCausalLM", num_experts=4, moe_intermediate_size=16,
            shared_expert_intermediate_size=16),
    decoder("qwen3_moe", "Qwen3MoeForCausalLM", num_experts=4, moe_intermediate_size=16,
            head_dim=8, num_experts_per_tok=2),
    decoder("olmoe", "OlmoeForCausalLM", num_experts=4, num_experts_per_tok=2),
    decoder("deepseek_v3", "DeepseekV3ForCausalLM", n_routed_experts=4, n_group=2, topk_group=1,
            num_experts_per_tok=2, moe_intermediate_size=16, first_k_dense_replace=1,
            kv_lora_rank=16, q_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8,
            num_key_value_heads=4),
    decoder("gpt_oss", "GptOssForCausalLM", num_local_experts=4, head_dim=8, sliding_window=6),
    decoder("mamba", "MambaForCausalLM", state_size=4, inputs=ids_alone),
    decoder("mamba2", "Mamba2ForCausalLM", state_size=4, num_heads=4, head_dim=16, n_groups=1,
            chunk_size=4, inputs=ids_alone),
    decoder("falcon_mamba", "FalconMambaForCausalLM", state_size=4, inputs=ids_alone),
    decoder("rwkv", attention_hidden_size=32, inputs=ids_alone),
    decoder("recurrent_gemma", "RecurrentGemmaForCausalLM", lru_width=32, head_dim=8,
            attention_window_size=8, block_types=["recurrent", "attention"]),
    decoder("jamba", "JambaForCausalLM", num_experts=2, mamba_d_state=4, use_mamba_kernels=False,
            attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1),
    decoder("lfm2", "Lfm2ForCausalLM", full_attn_idxs=[1]),
)  # fmt: skip

_T5: dict[str, Any] = {
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
}

BOTH: tuple[Architecture, ...] = (
    sequence_to_sequence("t5", "T5ForConditionalGeneration", **_T5),
    sequence_to_sequence("umt5", "UMT5ForConditionalGeneration", **_T5),
    sequence_to_sequence("switch_transformers", num_experts=4, **_T5),
    sequence_to_sequence("bart", "BartForConditionalGeneration"),
    sequence_to_sequence("mbart"),
    sequence_to_sequence("pegasus"),
    sequence_to_sequence("marian"),
    sequence_to_sequence("m2m_100"),
    sequence_to_sequence("blenderbot"),
    sequence_to_sequence("led", attention_window=4, max_encoder_position_embeddings=64,
                         max_decoder_position_embeddings=64),
)  # fmt: skip


def _prophet() -> Architecture:
    values = {k: v for k, v in TEXT.items() if k not in ("num_hidden_layers", "intermediate_size")}
    parts: dict[str, Any] = {
        "num_encoder_layers": 2, "num_decoder_layers": 2, "num_encoder_attention_heads": 4,
        "num_decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
    }  # fmt: skip
    build = from_config("prophetnet", **values, **parts, use_cache=False)
    return Architecture("prophetnet", "encoder and decoder", build, translation, *TEXT_SIZES)


ARCHITECTURES = (*ENCODERS, *DECODERS, *BOTH, _prophet())
