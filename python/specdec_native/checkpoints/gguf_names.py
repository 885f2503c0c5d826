"""Names of tensors in GGUF files, and what Hugging Face calls them.

Both without the layer and without "weight" or "bias". A name in a file that has such an ending here
stands for that tensor alone, and Hugging Face's is then whole, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TOP_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
ATTENTION_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
HEAD_NORM_NAMES = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
INPUT_NORM_NAMES = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
MLP_NAMES = {
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
LLAMA_NAMES = INPUT_NORM_NAMES | ATTENTION_NAMES | MLP_NAMES
QWEN3_NAMES = LLAMA_NAMES | HEAD_NORM_NAMES
GEMMA_NAMES = (
    QWEN3_NAMES
    | {"post_attention_norm": "post_attention_layernorm"}
    | {"ffn_norm": "pre_feedforward_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
)
OLMO2_NAMES = (
    ATTENTION_NAMES
    | HEAD_NORM_NAMES
    | MLP_NAMES
    | {"post_attention_norm": "post_attention_layernorm"}
    | {"post_ffw_norm": "post_feedforward_layernorm"}
)
PHI3_NAMES = INPUT_NORM_NAMES | {
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_up": "mlp.gate_up_proj",
    "ffn_down": "mlp.down_proj",
}
NEOX_NAMES = INPUT_NORM_NAMES | {
    "attn_qkv": "attention.query_key_value",
    "attn_output": "attention.dense",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}
NEOX_TOP_NAMES = {
    "token_embd": "gpt_neox.embed_in",
    "output_norm": "gpt_neox.final_layer_norm",
    "output": "embed_out",
}
GLM4_NAMES = (
    INPUT_NORM_NAMES
    | ATTENTION_NAMES
    | {"post_attention_norm": "post_self_attn_layernorm", "post_ffw_norm": "post_mlp_layernorm"}
    | {"ffn_up": "mlp.gate_up_proj", "ffn_down": "mlp.down_proj"}
)
# Norms of what the MLP reads that are called as norms of outputs are elsewhere.
POST_ATTENTION_NAMES = (
    ATTENTION_NAMES
    | {"attn_norm": "input_layernorm"}
    | {"post_attention_norm": "post_attention_layernorm"}
)
PLAIN_MLP_NAMES = (
    INPUT_NORM_NAMES | ATTENTION_NAMES | {"ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
)
STARCODER2_NAMES = PLAIN_MLP_NAMES | {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}
APERTUS_NAMES = (
    PLAIN_MLP_NAMES
    | HEAD_NORM_NAMES
    | {"attn_norm": "attention_layernorm", "ffn_norm": "feedforward_layernorm"}
)
HUNYUAN_NAMES = LLAMA_NAMES | {
    "attn_q_norm": "self_attn.query_layernorm",
    "attn_k_norm": "self_attn.key_layernorm",
}
ROUTER = {"ffn_gate_inp": "mlp.gate"}
GPT_OSS_NAMES = POST_ATTENTION_NAMES | {
    "attn_sinks.weight": "self_attn.sinks",
    "ffn_gate_inp": "mlp.router",
    "ffn_gate_exps.bias": "mlp.experts.gate_up_proj_bias",
    "ffn_down_exps.bias": "mlp.experts.down_proj_bias",
}
GRANITE_MOE_NAMES = LLAMA_NAMES | {
    "ffn_gate_inp": "block_sparse_moe.router.layer",
    "ffn_gate_shexp": "shared_mlp.input_linear",
    "ffn_down_shexp": "shared_mlp.output_linear",
}


def shared_experts(module: str) -> dict[str, str]:
    """The names of the MLP beside the experts, `module` in Hugging Face."""
    return {f"ffn_{part}_shexp": f"{module}.{part}_proj" for part in ("gate", "up", "down")}


QWEN2_MOE_NAMES = (
    LLAMA_NAMES
    | ROUTER
    | shared_experts("mlp.shared_expert")
    | {"ffn_gate_inp_shexp": "mlp.shared_expert_gate"}
)
ERNIE_MOE_NAMES = (
    LLAMA_NAMES
    | ROUTER
    | shared_experts("mlp.shared_experts")
    | {"exp_probs_b.bias": "mlp.moe_statics.e_score_correction_bias"}
)
GLM4_MOE_NAMES = (
    POST_ATTENTION_NAMES
    | HEAD_NORM_NAMES
    | MLP_NAMES
    | ROUTER
    | shared_experts("mlp.shared_experts")
    | {"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"}
)

# Of models with embeddings of layers.
LAYERED_TOP_NAMES = TOP_NAMES | {
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
}
LAYERED_NAMES = GEMMA_NAMES | {
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
}
GEMMA3N_STACKS = {
    "altup_proj": "model.altup_projections",
    "altup_unembd_proj": "model.altup_unembed_projections",
}
GEMMA3N_NAMES = LAYERED_NAMES | {
    "altup_correct_coef": "altup.correction_coefs",
    "altup_correct_scale.weight": "altup.correct_output_scale",
    "altup_predict_coef": "altup.prediction_coefs",
    "altup_router": "altup.modality_router",
    "altup_router_norm": "altup.router_norm",
    "laurel_l": "laurel.linear_left",
    "laurel_r": "laurel.linear_right",
    "laurel_post_norm": "laurel.post_laurel_norm",
}
GEMMA4_NAMES = LAYERED_NAMES | {
    "layer_output_scale.weight": "layer_scalar",
    "ffn_gate_inp.weight": "router.proj.weight",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.per_expert_scale",
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
}

SHORT_CONV_NAMES = {f"shortconv.{part}": f"conv.{part}" for part in ("conv", "in_proj", "out_proj")}
LFM2_NAMES = (
    ATTENTION_NAMES
    | SHORT_CONV_NAMES
    | {"attn_norm": "operator_norm", "ffn_norm": "ffn_norm"}
    | {"attn_output": "self_attn.out_proj"}
    | {"attn_q_norm": "self_attn.q_layernorm", "attn_k_norm": "self_attn.k_layernorm"}
    | {"ffn_gate": "feed_forward.w1", "ffn_down": "feed_forward.w2", "ffn_up": "feed_forward.w3"}
)
LFM2_MOE_NAMES = LFM2_NAMES | {
    "ffn_gate_inp": "feed_forward.gate",
    "exp_probs_b.bias": "feed_forward.expert_bias",
}
# The norm of the last layer's output; llama.cpp's files have the first name, Ollama's the second.
LFM2_TOP_NAMES = TOP_NAMES | {
    "token_embd_norm": "model.embedding_norm",
    "output_norm": "model.embedding_norm",
}
_DELTA_NAMES = (
    POST_ATTENTION_NAMES
    | HEAD_NORM_NAMES
    | {"attn_qkv": "linear_attn.in_proj_qkv", "attn_gate": "linear_attn.in_proj_z"}
    | {"ssm_beta": "linear_attn.in_proj_b", "ssm_alpha": "linear_attn.in_proj_a"}
    | {"ssm_conv1d": "linear_attn.conv1d", "ssm_dt.bias": "linear_attn.dt_bias"}
    | {"ssm_norm": "linear_attn.norm", "ssm_out": "linear_attn.out_proj"}
)
DELTA_BARE_NAMES = {"ssm_a": "linear_attn.A_log"}
QWEN35_NAMES = _DELTA_NAMES | MLP_NAMES
QWEN35_MOE_NAMES = (
    _DELTA_NAMES
    | ROUTER
    | shared_experts("mlp.shared_expert")
    | {"ffn_gate_inp_shexp": "mlp.shared_expert_gate"}
)
GRANITE_HYBRID_NAMES = (
    INPUT_NORM_NAMES
    | ATTENTION_NAMES
    | {"ffn_gate": "shared_mlp.input_linear", "ffn_down": "shared_mlp.output_linear"}
    | {"ffn_gate_shexp": "shared_mlp.input_linear", "ffn_down_shexp": "shared_mlp.output_linear"}
    | {"ffn_gate_inp": "block_sparse_moe.router.layer"}
    | {"ssm_in": "mamba.in_proj", "ssm_out": "mamba.out_proj", "ssm_norm": "mamba.norm"}
    | {"ssm_conv1d": "mamba.conv1d", "ssm_dt.bias": "mamba.dt_bias"}
)
MAMBA_BARE_NAMES = {"ssm_a": "mamba.A_log", "ssm_d": "mamba.D"}


@dataclass(frozen=True)
class Experts:
    """Names of a layer's experts."""

    prefix: str
    parts: Mapping[str, str]


MIXTRAL_EXPERTS = Experts(
    "block_sparse_moe.experts", {"ffn_gate": "w1", "ffn_down": "w2", "ffn_up": "w3"}
)
EXPERTS = Experts(
    "mlp.experts", {"ffn_gate": "gate_proj", "ffn_down": "down_proj", "ffn_up": "up_proj"}
)
GEMMA4_EXPERTS = Experts("experts", EXPERTS.parts)
LFM2_EXPERTS = Experts("feed_forward.experts", MIXTRAL_EXPERTS.parts)
