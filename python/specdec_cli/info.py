"""The facts of `specdec-native info`: build, machine and known models, or one checkpoint."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping
from typing import Any

import rich.table
import rich.text

from specdec_native import _core
from specdec_native.checkpoints import hub
from specdec_native.checkpoints.cache import cache_root
from specdec_native.checkpoints.draft_config import DraftConfig, read_draft_config
from specdec_native.checkpoints.errors import ModelNotFoundError
from specdec_native.checkpoints.head_registry import find_head, known_heads
from specdec_native.checkpoints.model_registry import known_names
from specdec_native.speculation.methods import checkpoint_method

# Keys of a checkpoint's config.json, and their names here.
_LAYER_KEYS = {
    "hidden_size": "hidden_size",
    "emb_dim": "hidden_size",
    "inner_dim": "inner_size",
    "num_hidden_layers": "layers",
    "medusa_num_layers": "layers",
    "vocab_size": "vocab_size",
}
_PACKAGES = ("numpy", "tokenizers", "jinja2", "gguf", "huggingface-hub", "torch", "transformers")
_DEVICE_FIELDS = ("name", "model", "memory_bytes", "num_threads", "isa", "unusable")


def collect_facts() -> dict[str, Any]:
    """All facts, for JSON."""
    build = _core.build_info()
    facts: dict[str, Any] = {
        "version": build.version,
        "python": platform.python_version(),
        "packages": {name: _version_of(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "compiler": build.compiler,
        "build_type": build.build_type,
        "cuda": build.has_cuda,
        "cuda_note": build.cuda_note,
        "cpu_isas": list(build.cpu_isas),
        "devices": [
            {name: getattr(device, name) for name in _DEVICE_FIELDS}
            for device in _core.list_devices()
        ],
        "gpu_problem": _core.gpu_problem(),
        "architectures": _core.known_architectures(),
        "quantizations": _core.known_quantizations(),
        "cache": str(cache_root()),
        "models": known_names(),
        "heads": known_heads(),
    }
    return facts


def checkpoint_facts(name: str) -> dict[str, Any]:
    """Facts from config.json of a model or draft head. Raises ValueError where there is none."""
    directory = hub.find_config(name)
    if directory is None:
        raise ModelNotFoundError(
            f"there is no config.json for {name}; give a directory that has one, or a hub id"
        )
    config = read_draft_config(directory)
    method = checkpoint_method(name, config)
    facts: dict[str, Any] = {
        "directory": str(directory),
        "method": method,
        "architectures": config.architectures,
    }
    for key, label in _LAYER_KEYS.items():
        if config.layers.get(key) is not None:
            facts[label] = config.layers[key]
    if method == "draft_model":
        return facts
    limit = config.longest_draft(method)
    known = find_head(name)
    facts |= {
        "draft_vocab_size": config.values.get("draft_vocab_size"),
        "reads": _text_of_taps(method, config),
        "num_speculative_tokens": config.proposed_tokens(method),
        "longest_draft": None if limit is None else limit[1],
        "parallel_drafting": config.is_parallel,
        "target": config.verifier if known is None else known.target,
    }
    return {key: value for key, value in facts.items() if value is not None}


def _text_of_taps(method: str, config: DraftConfig) -> str:
    if method != "eagle3":
        return "the target's last hidden states"
    taps = config.taps
    if taps is None:
        return "inputs of the target's layers 2, n/2 and n-3"
    return f"inputs of the target's layers {', '.join(map(str, taps))}"


def facts_table(facts: Mapping[str, Any]) -> rich.table.Table:
    """The facts as a table."""
    table = rich.table.Table(box=None, show_header=False, pad_edge=False)
    for key, value in facts.items():
        if key == "packages":
            value = [f"{name} {version}" for name, version in value.items()]  # noqa: PLW2901
        if key == "devices":
            for device in value:
                table.add_row(f"device {device['name']}", device_text(device))
        elif key != "gpu_problem" or value:
            text = ", ".join(value) if isinstance(value, list) else str(value)
            table.add_row(key, rich.text.Text(text))
    return table


def device_text(device: Mapping[str, Any]) -> str:
    """A device of `info` in one line."""
    size = f"{device['memory_bytes'] / 2**30:.1f} GiB"
    if device["name"] == "cpu":
        return f"{device['model']}, {size}, {device['num_threads']} threads, {device['isa']}"
    text = (
        f"{device['model']}, {size}, {device['num_threads']} multiprocessors, "
        f"compute capability {device['isa']}"
    )
    return f"{text}; not usable: {device['unusable']}" if device["unusable"] else text


def _version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
