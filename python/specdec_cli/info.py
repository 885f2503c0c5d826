"""The facts of `specdec-native info` without a model: build, machine and known models."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping
from typing import Any

import rich.table
import rich.text

from specdec_native import _core
from specdec_native.checkpoints.cache import cache_root
from specdec_native.checkpoints.head_registry import known_heads
from specdec_native.checkpoints.model_registry import known_names

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
