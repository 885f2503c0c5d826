"""The facts of `specdec-native info MODEL`: what a checkpoint is, and what becomes of it."""

from __future__ import annotations

import dataclasses
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import rich.table
import rich.text

from specdec_native import _core
from specdec_native.checkpoints import hub
from specdec_native.checkpoints.draft_config import DraftConfig, read_draft_config
from specdec_native.checkpoints.errors import ModelNotFoundError
from specdec_native.checkpoints.gguf_convert import describe_gguf
from specdec_native.checkpoints.head_registry import find_head
from specdec_native.checkpoints.layout import CheckpointKind, checkpoint_kind
from specdec_native.checkpoints.stored_weights import (
    MTP,
    UNREAD,
    Weights,
    unread_matrices,
    weights_of,
    weights_of_gguf,
)
from specdec_native.checkpoints.weight_formats import FLOATS, FORMATS
from specdec_native.speculation.auto_drafters import (
    AUTO,
    brought_drafters,
    name_drafters,
    text_of_drafters,
)
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
_VECTORS = "norms, biases"
_NOT_OF_THE_MODEL = (UNREAD, MTP)
_NOT_IN_A_STEP = (*_NOT_OF_THE_MODEL, "positions")
_PROBE_BYTES = 128 << 20  # more than the caches of most processors


def checkpoint_facts(name: str) -> dict[str, Any]:
    """Facts of a model or draft head, from its headers; nothing is loaded.

    A checkpoint that the engine does not load has the reason as "refused". Raises ValueError where
    there is none.
    """
    place = hub.find_local(name)
    if place is not None and place.is_file():
        return _gguf_facts(place)
    directory = place or hub.find_config(name)
    if directory is None:
        raise ModelNotFoundError(
            f"{name} is not on this machine; `specdec-native fetch {name}` downloads it"
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
    if method != "draft_model":
        return facts | _head_facts(name, config, method) | _head_format(directory)
    found = _model_facts(directory)
    if "refused" not in found:
        has_weights = checkpoint_kind(directory) is CheckpointKind.SAFETENSORS
        brought = brought_drafters(name, directory, has_weights=has_weights)
        auto = name_drafters({"method": AUTO}, hub.find_config, brought)
        found["drafters"] = f'with "method": "auto": {text_of_drafters(auto["drafters"])}'
    return _with_refusal(facts, found)


def _head_facts(name: str, config: DraftConfig, method: str) -> dict[str, Any]:
    limit = config.longest_draft(method)
    known = find_head(name)
    facts = {
        "draft_vocab_size": config.values.get("draft_vocab_size"),
        "reads": _text_of_taps(method, config),
        "num_speculative_tokens": config.proposed_tokens(method),
        "longest_draft": None if limit is None else limit[1],
        "parallel_drafting": config.is_parallel,
        "target": config.verifier if known is None else known.target,
    }
    return {key: value for key, value in facts.items() if value is not None}


def _head_format(directory: Path) -> dict[str, Any]:
    if checkpoint_kind(directory) is not CheckpointKind.SAFETENSORS:
        return {}
    weights = weights_of(directory, "bfloat16")
    parameters = sum(w.parameters for w in weights if w.part not in _NOT_OF_THE_MODEL)
    return {"format": f"safetensors: {_counts(weights)}", "parameters": parameters}


def _text_of_taps(method: str, config: DraftConfig) -> str:
    if method != "eagle3":
        return "the target's last hidden states"
    taps = config.taps
    if taps is None:
        return "inputs of the target's layers 2, n/2 and n-3"
    return f"inputs of the target's layers {', '.join(map(str, taps))}"


# -- models


def _gguf_facts(file: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        facts: dict[str, Any] = {"file": str(file)}
        try:
            tensors = describe_gguf(file, directory)
        except _core.CheckpointError as error:
            return facts | {"refused": str(error)}
        config = read_draft_config(directory)
        facts["architectures"] = config.architectures
        for key, label in _LAYER_KEYS.items():
            if key in config.values:
                facts[label] = config.values[key]
        found = _shape_facts(directory)
        if "refused" not in found:
            weights = weights_of_gguf(tensors, found["dtype"])
            found["format"] = f"GGUF: {_counts(weights)}"
            found |= _weight_facts(weights, directory, found["dtype"])
        return _with_refusal(facts, found)


def _model_facts(directory: Path) -> dict[str, Any]:
    """Facts of a directory with config.json. Raises CheckpointError for damaged files."""
    found = _shape_facts(directory)
    kind = checkpoint_kind(directory)
    if kind is CheckpointKind.TORCH:
        text = "pytorch_model.bin: pickled, converted once to safetensors when it is first loaded"
        return found | {"format": text}
    if kind is None:
        return found | {"format": "config.json alone: the weights are not on this machine"}
    weights = weights_of(directory, found.get("dtype", "bfloat16"))
    found["format"] = f"safetensors: {_counts(weights)}"
    unread = sorted({w.stored for w in unread_matrices(weights)})
    if "refused" not in found and unread:
        found["refused"] = (
            f"{directory}: matrices of {', '.join(unread)} are not read; give the checkpoint that "
            "was not quantised, or a GGUF file of the model"
        )
    if "refused" in found:
        return found
    return found | _weight_facts(weights, directory, found["dtype"])


def _shape_facts(directory: Path) -> dict[str, Any]:
    """What the core reads in config.json; its reason where it refuses it."""
    try:
        model = _core.model_facts(str(directory))[0]
    except _core.CheckpointError as error:
        return {"refused": str(error)}
    dtype = "bfloat16" if model.dtype == "float16" else model.dtype  # on a CPU
    return {
        "family": model.architecture,
        "max_position_embeddings": model.max_position_embeddings,
        "dtype": dtype,
    }


def _weight_facts(weights: Sequence[Weights], directory: Path, dtype: str) -> dict[str, Any]:
    """Sizes, and the speed that memory allows."""
    model = _core.model_facts(str(directory), dtype=dtype)[0]
    read = [w for w in weights if w.part not in _NOT_OF_THE_MODEL]
    step_bytes = _step_bytes(read, model)
    bandwidth = _core.read_bandwidth(min(step_bytes, _PROBE_BYTES))
    return {
        "weights": [dataclasses.asdict(w) for w in weights],
        "parameters": sum(w.parameters for w in read),
        "weight_bytes": sum(w.bytes for w in read),
        "kv_bytes_per_token": round(model.memory_bytes(1) - model.memory_bytes(0)),
        "step_bytes": step_bytes,
        "read_bandwidth": bandwidth,
        "most_tokens_per_second": bandwidth / step_bytes,
    }


def _step_bytes(weights: Sequence[Weights], model: _core.ModelFacts) -> int:
    """Bytes of weights that a step of one request reads: its experts, and of embeddings only those
    that serve as the LM head."""
    is_tied = all(w.part != "LM head" for w in weights)
    total = 0.0
    for w in weights:
        if w.part == "experts":
            total += w.bytes * model.num_experts_per_token / model.num_experts
        elif w.part not in _NOT_IN_A_STEP and (is_tied or w.part != "embedding"):
            total += w.bytes
    return round(total)


def _counts(weights: Iterable[Weights]) -> str:
    """How matrices are stored: "Q4_K 169, Q6_K 29"."""
    counts: Counter[str] = Counter()
    for w in weights:
        if w.part not in (*_NOT_OF_THE_MODEL, _VECTORS):
            counts[w.stored] += w.count
    if len(counts) == 1:
        return next(iter(counts))
    return "; ".join(f"{count} x {stored}" for stored, count in counts.most_common())


def _with_refusal(facts: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """All facts, the reason of a refusal last."""
    named = facts.get("architectures")
    family = found.get("family")
    if family is not None and named and family not in named:
        found = {**found, "family": f"{family}, the text part of {', '.join(named)}"}
    refused = {"refused": found.pop("refused")} if "refused" in found else {}
    return facts | found | refused


# -- the table

_TEXTS = {
    "parameters": ("parameters", "{:,}"),
    "weight_bytes": ("weights", "{:,} bytes in memory"),
    "kv_bytes_per_token": ("KV cache", "{:,} bytes a token"),
}


def checkpoint_table(facts: Mapping[str, Any]) -> rich.table.Table:
    """The facts as a table."""
    table = rich.table.Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(overflow="fold")  # paths are not cut
    for key, value in _rows(facts):
        table.add_row(key, rich.text.Text(value))
    return table


def _rows(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in facts.items():
        if key == "weights":
            yield from ((w["part"], _text_of_weights(w)) for w in value)
        elif key in _TEXTS:
            label, text = _TEXTS[key]
            yield label, text.format(value)
        elif key == "most_tokens_per_second":
            step, rate = _megabytes(facts["step_bytes"]), facts["read_bandwidth"] / 1e9
            yield (
                "speed",
                f"at most {value:,.1f} tokens/s for one request on this CPU: a step reads {step}, "
                f"memory gives {rate:.1f} GB/s (measured now, beside whatever else runs)",
            )
        elif key not in ("step_bytes", "read_bandwidth", "refused"):
            yield key, ", ".join(value) if isinstance(value, list) else str(value)


def _text_of_weights(weights: Mapping[str, Any]) -> str:
    stored, held = weights["stored"], weights["held"]
    text = f"{weights['count']} x {stored} ({_megabytes(weights['stored_bytes'])})"
    if weights["part"] == MTP:
        return f'{text}, read where "method": "mtp" drafts with it'
    if not held or held == FLOATS.get(stored, stored):
        return f"{text}, kept" if held else text
    held = f"{FORMATS[held].text} ({_megabytes(weights['bytes'])})"
    return f"{text}, held as {held}: {weights['note'] or 'exact'}"


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f} MB"
