"""Tiny random draft heads for tiny targets, in the formats that trainers write.

`python make_heads.py VARIANT TARGET DIRECTORY` writes one; a variant is always the same bytes.
As in make_checkpoints, weights are far from their usual initial values.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

import head_oracles
import make_checkpoints

IDS = "eagle_aux_hidden_state_layer_ids"
NUM_DRAFT_IDS = 96
MASK_TOKEN = 7


@dataclass(frozen=True)
class HeadVariant:
    """What to build; `config` is added to what the format writes."""

    kind: str  # of head_oracles.KINDS
    config: dict[str, Any] = field(default_factory=dict)
    layer: dict[str, Any] = field(default_factory=dict)  # fields of the layers' config
    omitted: tuple[str, ...] = ()  # fields that are not written, of either config
    num_taps: int = 3
    prefix: str = "midlayer."  # of the first layer
    is_speculators: bool = False  # the layers' config is nested, and the verifier named
    has_embedding: bool = False
    has_head: bool = True
    draft_ids: str = "sorted"  # "sorted", "shuffled" or "all"
    file: str = "model.safetensors"
    rename: Callable[[str], str] = str

    @property
    def method(self) -> str:
        """The method's name in an engine's speculative_config."""
        others = {"p_eagle": "eagle3", "pard": "draft_model", "gemma4_assistant": "mtp"}
        return others.get(self.kind, self.kind)


QWEN3 = {"model_type": "qwen3", "head_dim": 16, "num_hidden_layers": 2, "rms_norm_eps": 1e-6}
YARN = {
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 32.0,
        "original_max_position_embeddings": 64,
    }
}
WINDOW = {"sliding_window": 9, "layer_types": ["sliding_attention"], "use_sliding_window": True}
OUTPUTS_NAMED = {"eagle_config": {"use_aux_hidden_state": True, IDS: [0, 1]}}
FLAGS = ("norm_before_residual", "norm_before_fc", "norm_output", "fc_norm")
NORMS_WRITTEN = dict.fromkeys(FLAGS, False)
V2 = {"medusa_num_heads": 3, "medusa_num_layers": 2, "version": "2"}


FULL = "full_attention"
SPAN_AT_THE_TOP = {"mask_token_id": MASK_TOKEN}
CONFIDENCE = {"enable_confidence_head": True, "confidence_head_with_markov": True}
DEEPSPEC = SPAN_AT_THE_TOP | {
    "architectures": ["Qwen3DSparkModel"],
    "block_size": 4,
    "target_layer_ids": [0, 1],
    "num_anchors": 512,
}


def old_medusa(name: str) -> str:
    """blocks.H.layers.L.weight as the first writers of Medusa called it."""
    parts = name.split(".")
    if parts[0] == "lm_heads":
        return f"medusa_heads.{parts[1]}.2.weight"
    return f"medusa_heads.{parts[1]}.{parts[3]}.linear.{parts[4]}"


def prefixed(prefix: str) -> Callable[[str], str]:
    return lambda name: prefix + name


HEADS: dict[str, HeadVariant] = {
    # EAGLE-1 and -2.
    "eagle": HeadVariant("eagle", file="pytorch_model.bin"),
    "eagle_no_bias": HeadVariant("eagle", {"bias": False}, has_embedding=True),
    "eagle_two_layers": HeadVariant("eagle", {"num_hidden_layers": 2, "bias": False}),
    "eagle_layer_named": HeadVariant("eagle", {"bias": False, IDS: [1]}),
    "eagle_head_dim": HeadVariant(
        "eagle", {"head_dim": 32, "num_key_value_heads": 1, "rope_theta": 5e5}
    ),
    # EAGLE-3 by its authors, SpecForge and ModelOpt.
    "eagle3": HeadVariant("eagle3", file="pytorch_model.bin"),
    "eagle3_all_tokens": HeadVariant("eagle3", draft_ids="all", has_head=False),
    "eagle3_own_head": HeadVariant("eagle3", {"logit_scale": 0.5}, draft_ids="all"),
    "eagle3_specforge": HeadVariant("eagle3", OUTPUTS_NAMED, num_taps=2),
    "eagle3_modelopt": HeadVariant(
        "eagle3",
        {**YARN, "use_last_layernorm": True, "use_input_layernorm_in_first_layer": True},
        draft_ids="shuffled",
    ),
    "eagle3_biases": HeadVariant("eagle3", {"attention_bias": True}, has_embedding=True),
    "eagle3_norm_before_fc": HeadVariant(
        "eagle3", {"eagle_config": {"norm_before_fc": True}, "norm_before_residual": True}
    ),
    "eagle3_narrow": HeadVariant("eagle3", {"hidden_size": 48, "head_dim": 16}, has_embedding=True),
    # By speculators.
    "speculators": HeadVariant(
        "eagle3",
        NORMS_WRITTEN | {"norm_before_residual": True, IDS: [0, 2]},
        num_taps=2,
        prefix="layers.0.",
        is_speculators=True,
        has_embedding=True,
    ),
    "speculators_norm_after_residual": HeadVariant(
        "eagle3", NORMS_WRITTEN | {IDS: [0, 1, 2]}, prefix="layers.0.", is_speculators=True
    ),
    "speculators_no_flags": HeadVariant(
        "eagle3",
        prefix="layers.0.",
        is_speculators=True,
        omitted=("rms_norm_eps", "rope_theta", "hidden_act", *FLAGS),
    ),
    "speculators_qwen3": HeadVariant(
        "eagle3",
        NORMS_WRITTEN,
        {"model_type": "qwen3", "head_dim": 16},
        prefix="layers.0.",
        is_speculators=True,
    ),
    "eagle31_fc_norm": HeadVariant(
        "eagle3",
        NORMS_WRITTEN | {"norm_output": True, "fc_norm": True},
        WINDOW,
        prefix="layers.0.",
        is_speculators=True,
    ),
    "eagle31_input_norm": HeadVariant(
        "eagle3",
        dict.fromkeys(FLAGS[:3], True) | {"fc_norm": False},
        WINDOW | {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]},
        prefix="layers.0.",
        is_speculators=True,
        draft_ids="shuffled",
    ),
    # The others.
    "mlp": HeadVariant("mlp_speculator", {"n_predict": 3, "inner_dim": 0}),
    "mlp_tied": HeadVariant(
        "mlp_speculator",
        {"n_predict": 4, "inner_dim": 48, "tie_weights": True, "scale_input": True},
        rename=prefixed("speculator."),
    ),
    "mlp_scaled": HeadVariant(
        "mlp_speculator",
        {"n_predict": 2, "inner_dim": 80, "scale_input": True},
        file="pytorch_model.bin",
    ),
    "medusa": HeadVariant("medusa", {"num_heads": 4, "num_hidden_layers": 1}, draft_ids="all"),
    "medusa_token_map": HeadVariant(
        "medusa",
        {
            "num_heads": 3,
            "num_hidden_layers": 2,
            "medusa_fc_bias": True,
            "truncated_vocab_size": NUM_DRAFT_IDS,
        },
        draft_ids="shuffled",
    ),
    "medusa_one_head": HeadVariant(
        "medusa",
        {"num_heads": 3, "num_hidden_layers": 1, "original_lm_head": True},
        draft_ids="all",
    ),
    "medusa_old_names": HeadVariant(
        "medusa",
        {"medusa_num_heads": 3, "medusa_num_layers": 2},
        draft_ids="all",
        file="medusa_lm_head.pt",
        rename=old_medusa,
    ),
    "medusa_version_2": HeadVariant(
        "medusa",
        V2,
        draft_ids="all",
        has_head=False,
        file="medusa_lm_head.safetensors",
        rename=lambda name: old_medusa(name).removeprefix("medusa_heads."),
    ),
    "p_eagle": HeadVariant(
        "p_eagle",
        {"mask_token_id": MASK_TOKEN, "norm_before_residual": False},
        {"num_hidden_layers": 2},
        prefix="layers.0.",
        is_speculators=True,
        has_embedding=True,
    ),
    "pard": HeadVariant("pard", {"pard_token": MASK_TOKEN}),
    # By the authors of DFlash and DSpark, and by speculators.
    "dflash": HeadVariant(
        "dflash",
        {"block_size": 5, "dflash_config": SPAN_AT_THE_TOP | {"target_layer_ids": [-1, 1]}},
        num_taps=2,
        draft_ids="all",
        has_head=False,
    ),
    "dflash_windows": HeadVariant(
        "dflash",
        {"dflash_config": SPAN_AT_THE_TOP | {"target_layer_ids": [0, 1], "block_size": 5}},
        WINDOW | {"num_hidden_layers": 3, "layer_types": ["sliding_attention", *2 * [FULL]]},
        num_taps=2,
        draft_ids="all",
        has_head=False,
    ),
    "dflash_speculators": HeadVariant(
        "dflash",
        {"block_size": 6, "aux_hidden_state_layer_ids": [0, 1, 2]} | SPAN_AT_THE_TOP,
        {"num_hidden_layers": 1},
        is_speculators=True,
        has_embedding=True,
        draft_ids="shuffled",
    ),
    "dflash_deepspec": HeadVariant(
        "dspark", DEEPSPEC | {"markov_rank": 0}, num_taps=2, has_embedding=True, draft_ids="all"
    ),
    "dspark": HeadVariant(
        "dspark",
        DEEPSPEC | {"markov_rank": 8, "markov_head_type": "vanilla"} | CONFIDENCE,
        num_taps=2,
        has_embedding=True,
        draft_ids="all",
    ),
    "dspark_speculators": HeadVariant(
        "dspark",
        {"block_size": 5, "aux_hidden_state_layer_ids": [0, 1, 2], "markov_rank": 8}
        | SPAN_AT_THE_TOP
        | CONFIDENCE,
        is_speculators=True,
        has_embedding=True,
    ),
    "dspark_bonus_anchor": HeadVariant(
        "dspark",
        {"block_size": 5, "aux_hidden_state_layer_ids": [0, 1, 2], "markov_rank": 8}
        | SPAN_AT_THE_TOP
        | {"sample_from_anchor": False},
        is_speculators=True,
    ),
}
# Parts of their target's checkpoint.
MTP_HEADS: dict[str, HeadVariant] = {
    "mtp": HeadVariant("mtp"),
    "mtp_experts_apart": HeadVariant("mtp"),
}
HEADS |= MTP_HEADS
# Assistants, which targets of Gemma 4 alone have: `config` is of the whole, `layer` of text_config.
ASSISTANTS = {
    "assistant": HeadVariant("gemma4_assistant"),
    "assistant_clusters": HeadVariant(
        "gemma4_assistant",
        {"use_ordered_embeddings": True, "num_centroids": 20, "centroid_intermediate_top_k": 7},
        {"num_hidden_layers": 2, "layer_types": ["full_attention", "full_attention"]},
    ),
}
HEADS |= ASSISTANTS


def random_tensors(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(20251122)
    tensors = {}
    for name, shape in shapes.items():
        values = torch.randn(shape, generator=generator)
        if name.endswith("bias") or name == "mask_hidden":
            values *= 0.2
        elif len(shape) == 1:
            values = 1 + 0.2 * values
        elif "emb" not in name:
            values *= shape[-1] ** -0.5 * (3 if "head" in name else 1)
        tensors[name] = values
    return tensors


def draft_ids_of(variant: HeadVariant, vocab_size: int) -> Tensor:
    if variant.draft_ids == "all":
        return torch.arange(vocab_size)
    ids = torch.randperm(vocab_size, generator=torch.Generator().manual_seed(5))[:NUM_DRAFT_IDS]
    return ids if variant.draft_ids == "shuffled" else ids.sort().values


def attention_shapes(config: dict[str, Any], prefix: str, width: int) -> dict[str, tuple[int, ...]]:
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    q_width = config["num_attention_heads"] * head_dim
    kv_width = config["num_key_value_heads"] * head_dim
    widths = {"q": (q_width, width), "k": (kv_width, width), "v": (kv_width, width)}
    widths["o"] = (config["hidden_size"], q_width)
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in widths.items():
        shapes[f"{prefix}self_attn.{name}_proj.weight"] = shape
        if config.get("attention_bias"):
            shapes[f"{prefix}self_attn.{name}_proj.bias"] = shape[:1]
    if config.get("model_type") == "qwen3":
        for name in ("q_norm", "k_norm"):
            shapes[f"{prefix}self_attn.{name}.weight"] = (head_dim,)
    return shapes


def layer_shapes(config: dict[str, Any], prefix: str, width: int) -> dict[str, tuple[int, ...]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    return attention_shapes(config, prefix, width) | {
        f"{prefix}mlp.gate_proj.weight": (inner, hidden),
        f"{prefix}mlp.up_proj.weight": (inner, hidden),
        f"{prefix}mlp.down_proj.weight": (hidden, inner),
        f"{prefix}input_layernorm.weight": (hidden,),
        f"{prefix}post_attention_layernorm.weight": (hidden,),
    }


def eagle_shapes(
    variant: HeadVariant, config: dict[str, Any], target_hidden: int
) -> dict[str, tuple[int, ...]]:
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    is_first_eagle = variant.kind == "eagle"
    fused = hidden + target_hidden if is_first_eagle else variant.num_taps * target_hidden
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (hidden, fused)}
    if is_first_eagle and config.get("bias", True):
        shapes["fc.bias"] = (hidden,)
    if variant.has_embedding:
        shapes["embed_tokens.weight"] = (vocab, hidden)
    prefix = "layers.0." if is_first_eagle else variant.prefix
    shapes |= layer_shapes(config, prefix, hidden if is_first_eagle else 2 * hidden)
    for layer in range(1, config["num_hidden_layers"]):
        shapes |= layer_shapes(config, f"layers.{layer}.", hidden)
    if is_first_eagle:
        del shapes["layers.0.input_layernorm.weight"]
        return shapes
    shapes |= {f"{prefix}hidden_norm.weight": (hidden,), "norm.weight": (hidden,)}
    if variant.has_head:
        shapes["lm_head.weight"] = (config["draft_vocab_size"], hidden)
    if config.get("norm_before_fc") or config.get("eagle_config", {}).get("norm_before_fc"):
        shapes["input_norm.weight"] = (fused,)
    if config.get("fc_norm"):
        shapes |= {f"fc_norm.{i}.weight": (target_hidden,) for i in range(variant.num_taps)}
    if variant.kind == "p_eagle":
        shapes["mask_hidden"] = (1, 1, fused)
    return shapes


def dflash_shapes(
    variant: HeadVariant, config: dict[str, Any], target_hidden: int
) -> dict[str, tuple[int, ...]]:
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    num_drafted, rank = config["draft_vocab_size"], config.get("markov_rank", 0)
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, variant.num_taps * target_hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for layer in range(config["num_hidden_layers"]):
        shapes |= layer_shapes(config, f"layers.{layer}.", hidden)
    if variant.has_embedding:
        shapes["embed_tokens.weight"] = (vocab, hidden)
    if variant.has_head:
        shapes["lm_head.weight"] = (num_drafted, hidden)
    if rank > 0:
        shapes["markov_head.markov_w1.weight"] = (vocab, rank)
        shapes["markov_head.markov_w2.weight"] = (num_drafted, rank)
    if config.get("enable_confidence_head"):
        shapes |= {"confidence_head.proj.weight": (1, hidden + rank)}
        shapes |= {"confidence_head.proj.bias": (1,)}
    return shapes


def mlp_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    vocab, width = config["vocab_size"], config["emb_dim"]
    inner = config["inner_dim"] or width
    shapes: dict[str, tuple[int, ...]] = {"proj.0.weight": (inner, width)}
    tied = config.get("tie_weights", False)
    for i in range(1, 2 if tied else config["n_predict"]):
        shapes[f"proj.{i}.weight"] = (inner, inner)
    for i in range(1 if tied else config["n_predict"]):
        shapes[f"emb.{i}.weight"] = (vocab, inner)
        shapes[f"head.{i}.weight"] = (vocab, inner)
        shapes |= {f"ln.{i}.weight": (inner,), f"ln.{i}.bias": (inner,)}
    return shapes


def medusa_shapes(
    variant: HeadVariant, config: dict[str, Any], hidden: int
) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    heads = config.get("num_heads") or config["medusa_num_heads"]
    is_old = "medusa_num_heads" in config
    for head in range(heads):
        for layer in range(config.get("num_hidden_layers") or config["medusa_num_layers"]):
            shapes[f"blocks.{head}.layers.{layer}.weight"] = (hidden, hidden)
            if is_old or config.get("medusa_fc_bias"):
                shapes[f"blocks.{head}.layers.{layer}.bias"] = (hidden,)
        if variant.has_head and (head == 0 or not config.get("original_lm_head")):
            rows = config.get("truncated_vocab_size", config["vocab_size"])
            shapes[f"lm_heads.{head}.weight"] = (rows, hidden)
    return shapes


def llama_fields(target: dict[str, Any]) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": target["hidden_size"],
        "intermediate_size": 112,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": make_checkpoints.MAX_POSITIONS,
        "tie_word_embeddings": False,
        "vocab_size": target["vocab_size"],
        "dtype": "float32",
    }


def build(
    variant: HeadVariant, target: dict[str, Any], draft_ids: Tensor
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """config.json and tensors, named as variant.rename has not yet renamed them."""
    hidden, vocab = target["hidden_size"], target["vocab_size"]
    if variant.kind == "mlp_speculator":
        config = {"architectures": ["MLPSpeculatorPreTrainedModel"], "model_type": "mlp_speculator",
                  "vocab_size": vocab, "emb_dim": hidden, **variant.config}  # fmt: skip
        return config, random_tensors(mlp_shapes(config))
    if variant.kind == "medusa":
        config = {"architectures": ["MedusaModel"], "model_type": "medusa",
                  "hidden_size": hidden, "vocab_size": vocab, **variant.config}  # fmt: skip
        tensors = random_tensors(medusa_shapes(variant, config, hidden))
        if variant.draft_ids != "all":
            tensors["token_map"] = draft_ids
        return config, tensors

    is_dflash = variant.kind in ("dflash", "dspark")
    layer = llama_fields(target) | (QWEN3 if is_dflash else {}) | variant.layer
    config = {"architectures": ["LlamaForCausalLM"]}
    merged = layer | variant.config | {"draft_vocab_size": len(draft_ids)}
    shapes = dflash_shapes if is_dflash else eagle_shapes
    tensors = random_tensors(shapes(variant, merged, hidden))
    if variant.kind == "eagle":
        return {**config, **layer, **variant.config}, tensors
    if variant.draft_ids != "all":
        tensors["d2t"] = draft_ids - torch.arange(len(draft_ids))
        tensors["t2d"] = torch.isin(torch.arange(vocab), draft_ids)
    if is_dflash and not variant.is_speculators:
        config = {"architectures": ["DFlashDraftModel"], **layer, **variant.config}
        return config | {"num_target_layers": target["num_hidden_layers"]}, tensors
    if not variant.is_speculators:
        config["architectures"] = ["LlamaForCausalLMEagle3"]
        config |= layer | {"draft_vocab_size": len(draft_ids)} | variant.config
        if config["hidden_size"] != hidden:
            config["target_hidden_size"] = hidden
        return config, tensors
    algorithm = {"p_eagle": "peagle"}.get(variant.kind, variant.kind)
    config = {
        "architectures": [f"{algorithm.capitalize()}Speculator"],
        "speculators_model_type": algorithm,
        "speculators_config": {
            "algorithm": algorithm,
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "default_proposal_method": "greedy",
            "verifier": {
                "name_or_path": "tiny/target",
                "architectures": target["architectures"],
            },
        },
        "transformer_layer_config": layer,
        "draft_vocab_size": len(draft_ids),
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        **variant.config,
    }
    return config, tensors


def write_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    if path.suffix == ".safetensors":
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    else:
        torch.save(tensors, path)


def write(directory: Path, config: dict[str, Any], tensors: dict[str, Tensor], file: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=2))
    write_tensors(tensors, directory / file)
    return directory


def mtp_tensors(target: Path) -> dict[str, Tensor]:
    """An MTP layer for a target, with random weights."""
    config = transformers.AutoConfig.from_pretrained(target)
    form = head_oracles.MTP_FORMS[config.model_type].of(config)
    model: Any = transformers.AutoModelForCausalLM
    layer = head_oracles.mtp_layer(model.from_config(config))
    hidden = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {f"{form.fusion}.weight": (hidden, 2 * hidden)}
    for norm in filter(None, (form.embedding_norm, form.feature_norm, form.final_norm)):
        shapes[f"{norm}.weight"] = (hidden,)
    shapes |= {form.layer + name: tuple(t.shape) for name, t in layer.state_dict().items()}
    tensors = random_tensors(shapes)
    for name, tensor in tensors.items():
        if tensor.dim() == 1 and not name.endswith("bias"):
            tensors[name] = tensor - form.norm_offset
    return {form.prefix + name: tensor for name, tensor in tensors.items()}


def make_assistant(variant: HeadVariant, target: Path, directory: Path) -> Path:
    """An assistant for a Gemma 4, with random weights."""
    config = transformers.AutoConfig.from_pretrained(target)
    of_sliding, of_full = (
        config.per_layer_config[config.layer_types.index(f"{kind}_attention")]
        for kind in ("sliding", "full")
    )
    family = "Gemma4Unified" if "unified" in config.model_type else "Gemma4"
    layer = {
        "hidden_size": 32,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "num_attention_heads": 2 * config.num_attention_heads,
        "head_dim": of_sliding.head_dim,
        "num_key_value_heads": of_sliding.num_key_value_heads,
        "global_head_dim": of_full.head_dim,
        "num_global_key_value_heads": of_full.num_key_value_heads,
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
        **variant.layer,
    }
    layer["num_kv_shared_layers"] = layer["num_hidden_layers"]
    same = ("vocab_size", "attention_k_eq_v", "sliding_window", "rope_parameters",
            "max_position_embeddings")  # fmt: skip
    text = getattr(transformers, f"{family}TextConfig")(
        **{key: getattr(config, key) for key in same} | layer
    )
    whole = getattr(transformers, f"{family}AssistantConfig")(
        text_config=text, backbone_hidden_size=config.hidden_size, **variant.config
    )
    model: Any = getattr(transformers, f"{family}AssistantForCausalLM")(whole)
    state = {name: tensor for name, tensor in model.state_dict().items() if "lm_head" not in name}
    random = random_tensors({name: tuple(tensor.shape) for name, tensor in state.items()})
    for name in state:
        if name.endswith("token_ordering"):
            generator = torch.Generator().manual_seed(7)
            random[name] = torch.randperm(text.vocab_size, generator=generator)
        elif name.endswith("embed_tokens.weight"):  # the LM head, too
            random[name] *= 2 * text.hidden_size**-0.5
    model.load_state_dict(random, strict=False)
    model.tie_weights()
    model.save_pretrained(directory)
    return directory


def experts_apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """A tensor for each matrix of each expert, as Qwen3-Next has them."""
    apart: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        block, _, matrix = name.partition(".experts.")
        if not matrix:
            apart[name] = tensor
            continue
        for i, one in enumerate(tensor):
            matrices = {"down_proj": one}
            if matrix == "gate_up_proj":
                matrices = dict(zip(("gate_proj", "up_proj"), one.chunk(2), strict=True))
            for kind, values in matrices.items():
                apart[f"{block}.experts.{i}.{kind}.weight"] = values
    return apart


def write_into_target(directory: Path, target: Path, tensors: dict[str, Tensor]) -> Path:
    """A copy of a target's checkpoint that has these tensors, too; of a Qwen2, a MiMo."""
    directory.mkdir(parents=True, exist_ok=True)
    config = json.loads((target / "config.json").read_text())
    if config["model_type"] == "qwen2":
        config |= {"model_type": "mimo", "architectures": ["MiMoForCausalLM"]}
    is_qwen = "linear_num_key_heads" in config
    config["mtp_num_hidden_layers" if is_qwen else "num_nextn_predict_layers"] = 1
    (directory / "config.json").write_text(json.dumps(config, indent=2))
    file, whole = "model.safetensors", directory / "whole"
    save_file(load_file(target / file) | tensors, whole, metadata={"format": "pt"})
    whole.replace(directory / file)  # tensors may still be read from the file before it
    return directory


def make(name: str, target: Path, directory: Path, draft_ids: Tensor | None = None) -> Path:
    """Writes a variant's head for the model of a directory; returns the head's directory.

    `draft_ids` are the tokens of its draft vocabulary, if it has one, in the order of its logits.
    """
    variant = HEADS[name]
    if variant.kind == "pard":
        made = make_checkpoints.make("llama_other_seed", directory)
        path = made / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | variant.config))
        return made
    if variant.kind == "gemma4_assistant":
        return make_assistant(variant, target, directory)
    if variant.kind == "mtp":
        tensors = mtp_tensors(target)
        if name == "mtp_experts_apart":
            tensors = experts_apart(tensors)
        return write_into_target(directory, target, tensors)
    target_config = json.loads((target / "config.json").read_text())
    if draft_ids is None:
        draft_ids = draft_ids_of(variant, target_config["vocab_size"])
    config, tensors = build(variant, target_config, draft_ids)
    for key in variant.omitted:
        config.pop(key, None)
        config.get("transformer_layer_config", {}).pop(key, None)
    renamed = {variant.rename(name): tensor for name, tensor in tensors.items()}
    return write(directory, config, renamed, variant.file)


if __name__ == "__main__":
    make(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
