"""The architectures of GGUF files: names of tensors, order of rows, and config.json of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from specdec_native.checkpoints import gguf_expert_networks as expert_networks
from specdec_native.checkpoints import gguf_names as names
from specdec_native.checkpoints import gguf_networks as networks
from specdec_native.checkpoints import gguf_recurrent as recurrent
from specdec_native.checkpoints.gguf_file import GgufFile, GgufTensor
from specdec_native.checkpoints.gguf_gemma import gemma3n, gemma4
from specdec_native.checkpoints.gguf_recurrent_tensors import (
    delta_tensors,
    recurrent_tensors,
    tiled_delta_tensors,
)


@dataclass(frozen=True)
class GgufFamily:
    """How files of an architecture become checkpoints."""

    config: Callable[[GgufFile], dict[str, Any]]
    """config.json but what all architectures have. It reads the metadata and the tensors that it
    depends on; others are refused."""

    layer_names: Mapping[str, str]
    """Hugging Face's names, by those in the file."""

    bare_names: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """The same of tensors whose names in the file have no ending."""

    top_names: Mapping[str, str] = field(default_factory=lambda: MappingProxyType(names.TOP_NAMES))
    top_stacks: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Stacks of matrices, which have a number each behind this name in Hugging Face."""

    layers: str = "model.layers"
    experts: names.Experts | None = None

    interleaves_pairs: bool = False
    """Row 2i of a head of q and k turns with row 2i + 1; in Hugging Face, with i + head_dim / 2."""

    fuses_all_heads: bool = False
    """attn_qkv holds all heads of q, then k, then v; in Hugging Face, q, k and v of each head."""

    norm_offset: float = 0.0
    """What Hugging Face adds to weights of norms as the model runs, and the file has added."""

    joins: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """A layer's tensor and the one that goes with it into one tensor, which has the first one's
    name: rows of weights behind each other, and of biases of experts each value by its neighbour.
    """

    tensors: Callable[[GgufTensor, dict[str, Any]], Iterator[GgufTensor]] | None = None
    """What a tensor is in Hugging Face's order, shape and values, still under names of the file;
    with config.json. None: it is the same."""

    row_matrices: frozenset[str] = frozenset()
    """Vectors that are matrices of one row in Hugging Face."""

    layer_values: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Metadata, without the architecture, with a number for each layer: a tensor of that layer in
    Hugging Face."""

    without_effect: frozenset[str] = frozenset()
    """Metadata that changes nothing about text."""


# Positions of text are equal in all sections, and images alone reach the layers that these name.
_OF_IMAGES = frozenset({"rope.dimension_sections", "n_deepstack_layers"})
_QWEN3 = GgufFamily(networks.qwen3, names.QWEN3_NAMES, without_effect=_OF_IMAGES)
_QWEN3_MOE = GgufFamily(
    expert_networks.qwen3_moe,
    names.QWEN3_NAMES | names.ROUTER,
    experts=names.EXPERTS,
    without_effect=_OF_IMAGES,
)
# Of layers that are not attention, which granitehybrid has. Elsewhere their tensors have no place.
_OF_MAMBA = frozenset(
    f"ssm.{key}"
    for key in ("conv_kernel", "group_count", "inner_size", "state_size", "time_step_rank")
)
_GRANITE = GgufFamily(
    networks.granite,
    names.LLAMA_NAMES,
    interleaves_pairs=True,
    without_effect=_OF_MAMBA | {"expert_shared_feed_forward_length"},  # there are no experts
)
_OF_SHARED_EXPERT = frozenset({"ffn_gate_inp_shexp"})

FAMILIES = {
    "llama": GgufFamily(
        networks.llama,
        names.LLAMA_NAMES | {"ffn_gate_inp": "block_sparse_moe.gate"},
        experts=names.MIXTRAL_EXPERTS,
        interleaves_pairs=True,
    ),
    "mistral3": GgufFamily(networks.mistral3, names.LLAMA_NAMES, interleaves_pairs=True),
    "qwen2": GgufFamily(networks.qwen2, names.LLAMA_NAMES),
    "qwen2moe": GgufFamily(
        expert_networks.qwen2_moe,
        names.QWEN2_MOE_NAMES,
        experts=names.EXPERTS,
        row_matrices=_OF_SHARED_EXPERT,
    ),
    "qwen3": _QWEN3,
    "qwen3vl": _QWEN3,
    "qwen3moe": _QWEN3_MOE,
    "qwen3vlmoe": _QWEN3_MOE,
    "qwen3next": GgufFamily(
        recurrent.qwen35_moe,
        names.QWEN35_MOE_NAMES,
        bare_names=names.DELTA_BARE_NAMES,
        experts=names.EXPERTS,
        norm_offset=1.0,
        tensors=delta_tensors,
        row_matrices=_OF_SHARED_EXPERT,
    ),
    "qwen35": GgufFamily(
        recurrent.qwen35,
        names.QWEN35_NAMES,
        bare_names=names.DELTA_BARE_NAMES,
        norm_offset=1.0,
        tensors=tiled_delta_tensors,
        without_effect=_OF_IMAGES,
    ),
    "qwen35moe": GgufFamily(
        recurrent.qwen35_moe,
        names.QWEN35_MOE_NAMES,
        bare_names=names.DELTA_BARE_NAMES,
        experts=names.EXPERTS,
        norm_offset=1.0,
        tensors=tiled_delta_tensors,
        row_matrices=_OF_SHARED_EXPERT,
        without_effect=_OF_IMAGES,
    ),
    "gemma": GgufFamily(networks.gemma, names.LLAMA_NAMES, norm_offset=1.0),
    "gemma2": GgufFamily(networks.gemma2, names.GEMMA_NAMES, norm_offset=1.0),
    "gemma3": GgufFamily(networks.gemma3, names.GEMMA_NAMES, norm_offset=1.0),
    "gemma3n": GgufFamily(
        gemma3n,
        names.GEMMA3N_NAMES,
        top_names=names.LAYERED_TOP_NAMES,
        top_stacks=names.GEMMA3N_STACKS,
    ),
    "gemma4": GgufFamily(
        gemma4, names.GEMMA4_NAMES, top_names=names.LAYERED_TOP_NAMES, experts=names.GEMMA4_EXPERTS
    ),
    "gpt-oss": GgufFamily(
        expert_networks.gpt_oss,
        names.GPT_OSS_NAMES,
        experts=names.EXPERTS,
        joins={"ffn_gate_exps.bias": "ffn_up_exps.bias"},
    ),
    "phi3": GgufFamily(networks.phi3, names.PHI3_NAMES),
    "granite": _GRANITE,
    "granitemoe": GgufFamily(
        expert_networks.granite_moe,
        names.GRANITE_MOE_NAMES,
        experts=names.EXPERTS,
        interleaves_pairs=True,
        joins={"ffn_gate_shexp.weight": "ffn_up_shexp.weight"},
        without_effect=_OF_MAMBA,
    ),
    "granitehybrid": GgufFamily(
        recurrent.granite_hybrid,
        names.GRANITE_HYBRID_NAMES,
        bare_names=names.MAMBA_BARE_NAMES,
        experts=names.EXPERTS,
        interleaves_pairs=True,
        joins={
            "ffn_gate.weight": "ffn_up.weight",
            "ffn_gate_shexp.weight": "ffn_up_shexp.weight",
        },
        tensors=recurrent_tensors,
        without_effect=_OF_MAMBA,
    ),
    "lfm2": GgufFamily(
        recurrent.lfm2,
        names.LFM2_NAMES,
        top_names=names.LFM2_TOP_NAMES,
        tensors=recurrent_tensors,
    ),
    "lfm2moe": GgufFamily(
        recurrent.lfm2_moe,
        names.LFM2_MOE_NAMES,
        top_names=names.LFM2_TOP_NAMES,
        experts=names.LFM2_EXPERTS,
        tensors=recurrent_tensors,
    ),
    "olmo2": GgufFamily(networks.olmo2, names.OLMO2_NAMES),
    "olmoe": GgufFamily(
        expert_networks.olmoe, names.QWEN3_NAMES | names.ROUTER, experts=names.EXPERTS
    ),
    "smollm3": GgufFamily(networks.smollm3, names.LLAMA_NAMES, interleaves_pairs=True),
    "seed_oss": GgufFamily(networks.seed_oss, names.POST_ATTENTION_NAMES | names.MLP_NAMES),
    "exaone4": GgufFamily(networks.exaone4, names.OLMO2_NAMES),
    "glm4": GgufFamily(networks.glm4, names.GLM4_NAMES),
    "glm4moe": GgufFamily(expert_networks.glm4_moe, names.GLM4_MOE_NAMES, experts=names.EXPERTS),
    "ernie4_5": GgufFamily(networks.ernie4_5, names.LLAMA_NAMES),
    "ernie4_5-moe": GgufFamily(
        expert_networks.ernie4_5_moe, names.ERNIE_MOE_NAMES, experts=names.EXPERTS
    ),
    "command-r": GgufFamily(networks.cohere, names.LLAMA_NAMES),
    "cohere2": GgufFamily(networks.cohere2, names.LLAMA_NAMES),
    "starcoder2": GgufFamily(networks.starcoder2, names.STARCODER2_NAMES),
    "stablelm": GgufFamily(
        networks.stablelm,
        names.LLAMA_NAMES,
        without_effect=frozenset({"use_parallel_residual"}),
    ),
    "nemotron": GgufFamily(
        networks.nemotron,
        names.PLAIN_MLP_NAMES,
        norm_offset=1.0,
        without_effect=frozenset({"attention.layer_norm_rms_epsilon"}),
    ),
    "arcee": GgufFamily(networks.arcee, names.PLAIN_MLP_NAMES, interleaves_pairs=True),
    "apertus": GgufFamily(
        networks.apertus,
        names.APERTUS_NAMES,
        layer_values={
            f"xielu.{part}": f"mlp.act_fn.{part}" for part in ("alpha_p", "alpha_n", "beta", "eps")
        },
    ),
    "hunyuan-dense": GgufFamily(networks.hunyuan_dense, names.HUNYUAN_NAMES),
    "minicpm": GgufFamily(networks.minicpm, names.LLAMA_NAMES, interleaves_pairs=True),
    "gptneox": GgufFamily(
        networks.gpt_neox,
        names.NEOX_NAMES,
        top_names=names.NEOX_TOP_NAMES,
        layers="gpt_neox.layers",
        fuses_all_heads=True,
    ),
}
"""By `general.architecture`."""
