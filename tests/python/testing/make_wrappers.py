"""Tiny random models of text and images, made by transformers, and other names of their tensors."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

TEXT: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 1,
}
IMAGES: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}
QWEN_IMAGES: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "patch_size": 8,
    "out_hidden_size": TEXT["hidden_size"],
}
QWEN_TOKENS = {
    "image_token_id": 5, "video_token_id": 6, "vision_start_token_id": 7, "vision_end_token_id": 8
}  # fmt: skip


def _mrope(**settings: Any) -> dict[str, Any]:
    parameters = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [2, 3, 3]}
    return {"rope_parameters": parameters | settings}


# The class and its config, by the model_type of the whole.
WRAPPERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3": (
        "Gemma3",
        {
            "text_config": TEXT
            | {
                "sliding_window": 24,
                "query_pre_attn_scalar": 20,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
                "tie_word_embeddings": True,
            },
            "vision_config": IMAGES | {"model_type": "siglip_vision_model"},
            "mm_tokens_per_image": 4,
            "image_token_index": 5,
            "boi_token_index": 6,
            "eoi_token_index": 7,
        },
    ),
    "gemma4": (
        "Gemma4",
        {
            "text_config": TEXT
            | {
                "sliding_window": 24,
                "layer_types": ["sliding_attention", "full_attention", "full_attention"],
                "global_head_dim": 32,
                "hidden_size_per_layer_input": 32,
                "vocab_size_per_layer_input": 160,
                "num_kv_shared_layers": 1,
                "tie_word_embeddings": True,
            },
            "vision_config": IMAGES
            | {"num_key_value_heads": 2, "head_dim": 8, "position_embedding_size": 16},
            "audio_config": None,
            "image_token_id": 5,
            "boi_token_id": 6,
            "eoi_token_id": 7,
            "audio_token_id": 8,
        },
    ),
    # Whether embeddings are tied: the whole says yes (its default), the text part no.
    "mistral3": (
        "Mistral3",
        {
            "text_config": TEXT | {"model_type": "mistral", "sliding_window": None},
            "vision_config": IMAGES | {"model_type": "pixtral", "head_dim": 8},
            "image_token_index": 5,
        },
    ),
    "llava": (
        "Llava",
        {
            "text_config": TEXT | {"model_type": "llama"},
            "vision_config": IMAGES | {"model_type": "clip_vision_model", "projection_dim": 16},
            "image_token_index": 5,
        },
    ),
    "qwen2_5_vl": (
        "Qwen2_5_VL",
        {
            "text_config": TEXT | _mrope(),
            "vision_config": QWEN_IMAGES | {"fullatt_block_indexes": [0]},
            **QWEN_TOKENS,
        },
    ),
    "qwen3_5": (
        "Qwen3_5",
        {
            "text_config": TEXT
            | _mrope(mrope_interleaved=True, partial_rotary_factor=0.5)
            | {
                "layer_types": ["linear_attention", "full_attention", "linear_attention"],
                "linear_num_key_heads": 2,
                "linear_num_value_heads": 4,
                "linear_key_head_dim": 16,
                "linear_value_head_dim": 16,
            },
            "vision_config": QWEN_IMAGES | {"num_position_embeddings": 16},
            **QWEN_TOKENS,
        },
    ),
    "qwen3_vl": (
        "Qwen3VL",
        {
            "text_config": TEXT | _mrope(mrope_interleaved=True),
            "vision_config": QWEN_IMAGES
            | {"deepstack_visual_indexes": [0], "num_position_embeddings": 16},
            **QWEN_TOKENS,
        },
    ),
}

# Where tensors of the text model and its head may be.
PREFIXES = {
    "inner": ("language_model.model.", "language_model.lm_head."),
    "outer": ("model.language_model.", "lm_head."),
    "plain": ("model.", "lm_head."),
    "bare": ("language_model.", "lm_head."),
}


def make_wrapper(name: str, directory: Path, **text: Any) -> Path:
    """The model with its random weights. text: changes of its text_config."""
    family, settings = WRAPPERS[name]
    config = getattr(transformers, f"{family}Config")(
        **(settings | {"text_config": settings["text_config"] | text})
    )
    model = getattr(transformers, f"{family}ForConditionalGeneration")(config)
    generator = torch.Generator().manual_seed(20260901)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:  # norms of some are stored less one
                less_one = family in ("Gemma3", "Qwen3_5") and "linear_attn" not in key
                values = 0.2 * values + (not less_one)
            elif "embed_tokens" not in key:
                values *= parameter.shape[-1] ** -0.5
            elif config.tie_word_embeddings:
                values *= 0.25
            parameter.copy_(values)
    model.save_pretrained(directory)
    return directory


def _renamed(name: str, prefixes: str) -> str:
    text, head = PREFIXES[prefixes]
    part = name.replace("language_model.", "").removeprefix("model.")
    if part.startswith(("visual.", "vision_tower.", "multi_modal_projector.", "embed_vision.")):
        return ("model." if prefixes == "outer" else "") + part
    if part.startswith("lm_head."):
        return head + part.removeprefix("lm_head.")
    return text + part


def rename(directory: Path, prefixes: str) -> None:
    """Gives all tensors the names that other versions give them."""
    path = directory / "model.safetensors"
    tensors = {_renamed(name, prefixes): tensor for name, tensor in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})


def _changed(fields: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in fields.items() if key not in changes}
    return kept | {key: value for key, value in changes.items() if value is not None}


def edit(directory: Path, text: dict[str, Any], **changes: Any) -> None:
    """Changes keys of config.json, and those of its text_config; None takes one away."""
    path = directory / "config.json"
    config = _changed(json.loads(path.read_text()), changes)
    config["text_config"] = _changed(config["text_config"], text)
    path.write_text(json.dumps(config))


def reference_logprobs(directory: Path, tokens: list[int]) -> Any:
    """Logprobs of the token after each position, [num_tokens, vocab], without any image."""
    family = json.loads((directory / "config.json").read_text())["architectures"][0]
    model = getattr(transformers, family).from_pretrained(directory, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([tokens])).logits
    return logits[0].double().log_softmax(-1).numpy()
