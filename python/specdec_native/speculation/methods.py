"""The methods of drafting, and how a name or a checkpoint implies one."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdec_native.checkpoints.draft_config import DraftConfig
from specdec_native.common.checks import close_matches

HEADS = ("eagle", "eagle3", "medusa", "mlp_speculator", "mtp", "dflash", "dspark")
"""Methods whose checkpoint is a draft head: it reads states of the target."""

IN_SPANS = ("dflash", "dspark")
"""Heads whose pass drafts all tokens, over masks after the last one."""

IN_TARGET = "mtp"
"""The head of the target's own checkpoint, unless "model" names another."""

WITHOUT_MODEL = ("ngram", "suffix", "replay")
"""Methods that draft from texts alone."""

METHODS = (*WITHOUT_MODEL, "draft_model", *HEADS, "custom_class")

ANSWER_FILES = ("record", "replay")
"""The keys of the method replay, which imply it."""

_MTP_NAMES = (
    *("qwen3_next_mtp", "qwen3_5_mtp", "mimo_mtp", "glm4_moe_mtp", "ernie_mtp"),
    "gemma4_mtp",
)
_METHOD_ALIASES = {"[ngram]": "ngram", "ngram_gpu": "ngram"} | dict.fromkeys(_MTP_NAMES, "mtp")
_UNAVAILABLE_METHODS = ("extract_hidden_states",)
# Names of heads whose config.json may look like a whole model's.
_NAMES = {
    "eagle3": re.compile(r"eagle-?3"),
    "eagle": re.compile(r"eagle-"),
    "dflash": re.compile(r"dflash"),
    "dspark": re.compile(r"dspark"),
}
# Names that count only while there is no config.json to read yet.
_NAMES_WITHOUT_CONFIG = {
    "medusa": re.compile(r"medusa"),
    "mlp_speculator": re.compile(r"mlp[-_]speculator|-accelerator$"),
    "mtp": re.compile(r"(^|[-_])mtp($|[-_])|^gemma-4-.*-assistant$"),
}
_DOTTED_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
_FILE_SUFFIXES = (".gguf", ".bin", ".safetensors", ".json")


def method_of(given: Mapping[str, Any], config: DraftConfig | None) -> str:
    """The method of one drafter's keys, given or inferred. `config` is its checkpoint's.

    Raises ValueError for an unknown or unavailable method.
    """
    method = given.get("method")
    if method is None:
        method = _infer_method(given, config)
    method = _METHOD_ALIASES.get(method, method) if isinstance(method, str) else method
    if method in METHODS:
        return str(method)
    known = f"use one of {', '.join(METHODS)}"
    if isinstance(method, str) and (method in _UNAVAILABLE_METHODS or method.endswith("_mtp")):
        name, hint = "", ""
        if not given.get("method"):
            says = config is not None and config.method is not None
            source = config.file if says and config is not None else f"the name {given['model']}"
            name = f" (inferred from {source})"
            hint = '; for a checkpoint that runs by itself give "method": "draft_model"'
        raise ValueError(f'the method "{method}"{name} is not available yet; {known}{hint}')
    raise ValueError(f"unknown method {method!r}; {close_matches(method, METHODS) or known}")


def is_dotted_path(model: Any) -> bool:
    """Whether `model` may be the dotted path of a class."""
    return isinstance(model, str) and _DOTTED_PATH.fullmatch(model) is not None


def may_be_checkpoint(given: Mapping[str, Any]) -> bool:
    """Whether "model" is a checkpoint: neither the name of a method nor a class."""
    model = given.get("model")
    if given.get("method") is not None:
        return model is not None and given["method"] in ("draft_model", *HEADS)
    return model is not None and _named_method(os.fspath(model)) is None


def checkpoint_method(name: str, config: DraftConfig | None) -> str:
    """The method of a checkpoint: config.json decides where it says something, else the name."""
    if config is not None and config.method is not None:
        return config.method
    patterns = _NAMES if config is not None else _NAMES | _NAMES_WITHOUT_CONFIG
    last = _repository_name(Path(name)).lower()
    return next((m for m, pattern in patterns.items() if pattern.search(last)), "draft_model")


def _repository_name(path: Path) -> str:
    """The last part of a name or path; in the hub's cache, NAME of .../models--org--NAME/..."""
    return path.parents[1].name if path.parent.name == "snapshots" else path.name


def _infer_method(given: Mapping[str, Any], config: DraftConfig | None) -> str:
    if "drafter" in given:
        return "custom_class"
    if any(key in given for key in ANSWER_FILES):
        return "replay"
    if "model" not in given:
        what = "num_speculative_tokens" if "num_speculative_tokens" in given else "this"
        raise ValueError(
            f'{what} needs a drafter: give "method" ({", ".join(METHODS)}), "model", the name of a '
            'draft model or a head, or "drafters"'
        )
    model = os.fspath(given["model"])
    return _named_method(model) or checkpoint_method(model, config)


def _named_method(model: str) -> str | None:
    """The method that `model` names, where it names no checkpoint."""
    if model in ("[ngram]", *WITHOUT_MODEL):
        return model
    if is_dotted_path(model) and not (Path(model).exists() or model.endswith(_FILE_SUFFIXES)):
        return "custom_class"
    return None
