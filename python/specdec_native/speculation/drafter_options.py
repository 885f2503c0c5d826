"""One drafter of a speculative_config: which method, and its options."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec_native import _core
from specdec_native.checks import (
    INT32_MAX,
    check_choice,
    check_option,
    close_matches,
)
from specdec_native.engine_options import check_quantization
from specdec_native.speculation.custom_drafter import CustomDrafter, make_drafter

METHODS = ("ngram", "suffix", "draft_model", "custom_class")

_METHOD_ALIASES = {"[ngram]": "ngram", "ngram_gpu": "ngram"}
_UNAVAILABLE_METHODS = (
    *("eagle", "eagle3", "medusa", "mlp_speculator", "mtp"),
    *("dflash", "dspark", "extract_hidden_states"),
)
# Names of checkpoints that are no draft models of their own, but heads on the target.
_HEAD_NAMES = {
    "eagle3": re.compile(r"eagle-?3"),
    "eagle": re.compile(r"eagle-"),
    "medusa": re.compile(r"medusa"),
    "mlp_speculator": re.compile(r"mlp[-_]speculator|-accelerator$"),
    "dflash": re.compile(r"dflash"),
    "dspark": re.compile(r"dspark"),
    "mtp": re.compile(r"(^|[-_])mtp($|[-_])"),
}
_DOTTED_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
_FILE_SUFFIXES = (".gguf", ".bin", ".safetensors", ".json")

CORE_OPTIONS = {option.name: option for option in _core.DrafterConfig.options}
_METHOD_KEYS = {
    "ngram": ("model", "max_model_len", "prompt_lookup_min", "prompt_lookup_max"),
    "suffix": ("model", "max_model_len", *(k for k in CORE_OPTIONS if k.startswith("suffix_"))),
    "draft_model": (
        "model",
        "revision",
        "quantization",
        "draft_sample_method",
        "min_confidence",
        "max_model_len",
    ),
    "custom_class": ("model", "max_model_len", "drafter"),
}
DRAFTER_KEYS = tuple(dict.fromkeys(["method", *(k for v in _METHOD_KEYS.values() for k in v)]))
_LOOKUP = 5  # tokens an n-gram matches unless it is said

ModelResolver = Callable[[str, str | None, str], Path]
"""Finds a draft model's directory by name, revision and quantization."""


@dataclasses.dataclass(frozen=True)
class DrafterOptions:
    """One checked drafter.

    Attributes:
        method: one of METHODS.
        fields: values for _core.DrafterConfig.
        model: of draft_model, as the user named it; of custom_class, the dotted path.
        revision: of the draft model.
        drafter: the user's object or function.
    """

    method: str
    fields: Mapping[str, Any]
    model: str | None = None
    revision: str | None = None
    drafter: Any = None

    def to_core(self, resolve_model: ModelResolver) -> _core.DrafterConfig:
        """The core's form; finds the draft model or makes the custom drafter."""
        fields = dict(self.fields)
        if self.method == "draft_model":
            quantization = fields.setdefault("quantization", CORE_OPTIONS["quantization"].default)
            fields["model"] = str(resolve_model(self.model or "", self.revision, quantization))
        if self.method == "custom_class":
            custom = self.drafter if self.model is None else make_drafter(self.model)
            return _core.DrafterConfig(method="custom", custom=CustomDrafter(custom))
        return _core.DrafterConfig(method=self.method, **fields)


def parse_drafter(given: Mapping[str, Any], verification: str) -> DrafterOptions:
    """Checks one drafter's keys; `verification` is the core's. Raises ValueError."""
    method = _method_of(given)
    for key in given:
        if key in DRAFTER_KEYS and key != "method" and key not in _METHOD_KEYS[method]:
            owner = next(name for name, keys in _METHOD_KEYS.items() if key in keys)
            raise ValueError(
                f'{key} belongs to the method "{owner}", not to "{method}"; leave it out, or '
                f'give "method": "{owner}"'
            )
    model = given.get("model")
    length = _core_fields(given, ["max_model_len"])
    if method == "ngram":
        _check_no_model(method, model)
        return DrafterOptions(method, _ngram_fields(given))
    if method == "suffix":
        _check_no_model(method, model)
        return DrafterOptions(method, _core_fields(given, _METHOD_KEYS[method][2:]))
    if method == "draft_model":
        if model is None:
            raise ValueError(
                'the method "draft_model" needs "model": a directory, a .gguf file or a model name'
            )
        fields: dict[str, Any] = {"sampling": _draft_sampling(given, verification)}
        fields |= length | _core_fields(given, ["min_confidence"])
        if "quantization" in given:
            check_quantization(given["quantization"])
            fields["quantization"] = given["quantization"]
        return DrafterOptions(method, fields, os.fspath(model), given.get("revision"))
    if (model is None) == ("drafter" not in given):
        raise ValueError(
            'the method "custom_class" needs either "model", the dotted path of a class, or '
            '"drafter", an object with propose(tokens, max_tokens)'
        )
    if model is not None and not (isinstance(model, str) and _DOTTED_PATH.fullmatch(model)):
        raise ValueError(
            f'the method "custom_class" needs "model": "package.module.Class", got {model!r}'
        )
    if model is None:
        CustomDrafter(given["drafter"])  # refused now rather than when the engine is made
    return DrafterOptions(method, {}, model, drafter=given.get("drafter"))


def _method_of(given: Mapping[str, Any]) -> str:
    method, model = given.get("method"), given.get("model")
    if model is not None and not isinstance(model, (str, os.PathLike)):
        raise ValueError(f"model must be a string, got {model!r:.80}; an object goes to drafter")
    if method is None:
        method = _infer_method(given)
    method = _METHOD_ALIASES.get(method, method) if isinstance(method, str) else method
    if method in METHODS:
        return str(method)
    known = f"use one of {', '.join(METHODS)}"
    if isinstance(method, str) and (method in _UNAVAILABLE_METHODS or method.endswith("_mtp")):
        name = "" if given.get("method") else f" (inferred from the model's name, {model})"
        hint = '; for a checkpoint that runs by itself give "method": "draft_model"' if name else ""
        raise ValueError(f'the method "{method}"{name} is not available yet; {known}{hint}')
    raise ValueError(f"unknown method {method!r}; {close_matches(method, METHODS) or known}")


def _infer_method(given: Mapping[str, Any]) -> str:
    if "drafter" in given:
        return "custom_class"
    if "model" not in given:
        what = "num_speculative_tokens" if "num_speculative_tokens" in given else "this"
        raise ValueError(
            f'{what} needs a drafter: give "method" ({", ".join(METHODS)}), "model", the name of a '
            'draft model, or "drafters"'
        )
    model: str = os.fspath(given["model"])
    if model in ("ngram", "[ngram]", "suffix"):
        return model
    path = Path(model)
    if _DOTTED_PATH.fullmatch(model) and not (path.exists() or model.endswith(_FILE_SUFFIXES)):
        return "custom_class"
    for method, pattern in _HEAD_NAMES.items():
        if pattern.search(path.name.lower()):
            return method
    return "draft_model"


def _check_no_model(method: str, model: Any) -> None:
    if model not in (None, method, f"[{method}]"):
        raise ValueError(
            f'the method "{method}" takes no model; leave "model" out, or give '
            '"method": "draft_model" to draft with it'
        )


def _core_fields(given: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """Those of `keys` that are given, each in the range that the core has for it."""
    return {
        key: check_option(CORE_OPTIONS[key], given[key], maximum=_maximum_of(CORE_OPTIONS[key]))
        for key in keys
        if key in given
    }


def _maximum_of(option: _core.Option) -> int | None:
    return INT32_MAX if option.type == "int" and option.highest is None else None


def _ngram_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    lengths = _core_fields(given, ["prompt_lookup_min", "prompt_lookup_max"])
    longest = lengths.get("prompt_lookup_max", lengths.get("prompt_lookup_min", _LOOKUP))
    shortest = lengths.get("prompt_lookup_min", longest)
    if shortest > longest:
        raise ValueError(
            f"prompt_lookup_min={shortest} must be at most prompt_lookup_max={longest}"
        )
    return {"prompt_lookup_min": shortest, "prompt_lookup_max": longest}


def _draft_sampling(given: Mapping[str, Any], verification: str) -> str:
    drawn = {"exact": "coupled", "synthetic": "argmax"}.get(verification, "independent")
    method = given.get("draft_sample_method")
    if method is None:
        return drawn
    if method == "coupled" and verification not in ("exact", "synthetic"):
        raise ValueError(
            'draft_sample_method "coupled" shares the noise of exact verification; give '
            '"probabilistic", or leave "rejection_sample_method" out'
        )
    if verification == "synthetic":
        drawn = "coupled"
    choices = {"greedy": "argmax", "probabilistic": drawn, "coupled": "coupled"}
    return check_choice("draft_sample_method", method, choices)
