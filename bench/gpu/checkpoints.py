"""Shapes that are measured: a config.json each. Every engine makes weights up on the device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_MODELS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("shapes.json").read_text())


def _eagle3_head(target: str, draft_vocab_size: int, taps: list[int]) -> dict[str, Any]:
    """An EAGLE-3 head: a layer over the inputs of three layers of the target."""
    return _MODELS[target] | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": draft_vocab_size,
        "eagle_aux_hidden_state_layer_ids": taps,
        "tie_word_embeddings": False,
    }


# config.json by name of the shape.
SHAPES: dict[str, dict[str, Any]] = {
    **_MODELS,
    # A draft as cheap as an EAGLE head: one layer of the 1B and its vocabulary.
    "llama-one-layer": _MODELS["llama-3.2-1b"] | {"num_hidden_layers": 1},
    # A draft for Qwen3.5's vocabulary: the 1B's layer.
    "qwen3.5-one-layer": _MODELS["llama-3.2-1b"]
    | {"num_hidden_layers": 1, "vocab_size": _MODELS["qwen3.5-4b"]["vocab_size"]},
    "tiny-draft": _MODELS["tiny"] | {"num_hidden_layers": 1},
    "llama-3.2-1b-eagle3": _eagle3_head("llama-3.2-1b", 32000, [2, 8, 13]),
    "llama-3.1-8b-eagle3": _eagle3_head("llama-3.1-8b", 32000, [2, 16, 29]),
    "tiny-eagle3": _eagle3_head("tiny", 64, [0, 1, 2]),
}


def write(name: str, directory: Path) -> Path:
    """Writes config.json of that shape; returns its folder."""
    target = directory / name
    target.mkdir(parents=True, exist_ok=True)
    (target / "config.json").write_text(json.dumps(SHAPES[name], indent=1) + "\n")
    return target
