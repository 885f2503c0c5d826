"""One drafter of a speculative_config: which method, and its options."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specdec_native import _core
from specdec_native.checkpoints.draft_config import DraftConfig, read_draft_config
from specdec_native.checkpoints.text_files import is_file
from specdec_native.common.checks import INT32_MAX, check_option
from specdec_native.speculation.custom_drafter import CustomDrafter, make_drafter
from specdec_native.speculation.likely_tokens import DraftTarget
from specdec_native.speculation.methods import (
    ANSWER_FILES,
    HEADS,
    IN_TARGET,
    METHODS,
    WITHOUT_MODEL,
    is_dotted_path,
    may_be_checkpoint,
    method_of,
)
from specdec_native.speculation.suffix_corpus import KEY as CORPUS
from specdec_native.speculation.suffix_corpus import parse_suffix_corpus, read_suffix_corpus
from specdec_native.speculation.token_map import (
    KEY as TOKEN_MAP,
)
from specdec_native.speculation.token_map import (
    Encode,
    LikelyTokens,
    TokenMap,
    parse_token_map,
    read_token_map,
)

CORE_OPTIONS = {option.name: option for option in _core.DrafterConfig.options}
_ALL_KEYS = ("model", "max_model_len", "draft_tensor_parallel_size")  # every method takes these
# Keys beside the core's options.
_MORE_KEYS = {
    "custom_class": ("drafter",),
    "suffix": (CORPUS,),
    **dict.fromkeys(("draft_model", *HEADS), ("revision",)),
}
_METHOD_KEYS = {
    method: (
        *_ALL_KEYS,
        *_MORE_KEYS.get(method, ()),
        *(
            key
            for key in CORE_OPTIONS
            if key not in ("method", *_ALL_KEYS) and _core.method_takes(method, key)
        ),
    )
    for method in METHODS
}
DRAFTER_KEYS = tuple(dict.fromkeys(["method", *(k for v in _METHOD_KEYS.values() for k in v)]))
TOKEN_MAP_FILE = "token_map.json"
"""A file beside a head's config.json: the tokens that the head was trained to draft."""

_STORES = ("suffix_store", *ANSWER_FILES)  # files of answers
_LONGEST_REPLAY = 32  # tokens of a draft from an earlier answer
_LOOKUP = 5  # default number of tokens that an n-gram matches

ModelResolver = Callable[[str, str | None, str], Path]
"""Finds the directory of a draft model or head by name, revision and quantization."""

ConfigFinder = Callable[[str, str | None], Path | None]
"""Finds a directory with config.json by name and revision; None where there is none to read."""


@dataclasses.dataclass(frozen=True)
class DrafterOptions:
    """One checked drafter.

    Attributes:
        method: one of METHODS.
        fields: values for _core.DrafterConfig.
        model: the draft model or head as the user named it, or the dotted path of custom_class.
        revision: the revision of the draft model or head.
        drafter: the user's object or function.
        token_map: the tokens that a head drafts; None for all.
        corpus: the files that the method suffix drafts from.
        config: config.json of the draft model or head, where it could be read already.
    """

    method: str
    fields: Mapping[str, Any]
    model: str | None = None
    revision: str | None = None
    drafter: Any = None
    token_map: TokenMap | None = None
    corpus: tuple[Path, ...] = ()
    config: DraftConfig | None = None

    @property
    def proposed_tokens(self) -> int | None:
        """How many tokens the drafter's checkpoint proposes to draft; None if it does not say."""
        if self.method == "suffix":
            key = "suffix_decoding_max_tree_depth"
            return int(self.fields.get(key, CORE_OPTIONS[key].default))
        if self.method == "replay":
            return _LONGEST_REPLAY
        return None if self.config is None else self.config.proposed_tokens(self.method)

    def check_length(self, num_speculative_tokens: int) -> None:
        """Raises ValueError where its checkpoint cannot draft so many tokens."""
        limit = None if self.config is None else self.config.longest_draft(self.method)
        if self.config is not None and limit is not None and num_speculative_tokens > limit[1]:
            raise ValueError(
                f"num_speculative_tokens={num_speculative_tokens} is more than the {limit[1]} "
                f"tokens that {self.config.file} says the head drafts ({limit[0]}); give at most "
                "that, or leave it out"
            )

    def unresolved(self) -> _core.DrafterConfig:
        """The core's form before anything is fetched: the model's name, and no token map."""
        if self.method == "custom_class":
            stand_in = self.drafter or self  # a class is imported when the engine is made
            return _core.DrafterConfig(method=self.method, custom=stand_in)
        return _core.DrafterConfig(method=self.method, model=self.model or "", **self.fields)

    def to_core(
        self, resolve_model: ModelResolver, encode: Encode, target: DraftTarget | None = None
    ) -> _core.DrafterConfig:
        """The core's form; finds the draft model, reads the corpus or makes the custom drafter.

        Without `target` heads that were not told which tokens to draft draft all.
        """
        fields = dict(self.fields)
        if self.model is not None and self.method in ("draft_model", *HEADS):
            quantization = fields.setdefault("quantization", CORE_OPTIONS["quantization"].default)
            fields["model"] = str(resolve_model(self.model, self.revision, quantization))
        if isinstance(self.token_map, LikelyTokens):
            if target is not None:
                head = {"method": self.method, **fields}
                fields[TOKEN_MAP] = target.tokens_for(head, self.token_map.size)
        elif self.token_map is not None:
            fields[TOKEN_MAP] = read_token_map(self.token_map, encode)
        if self.method == "custom_class":
            custom = self.drafter if self.model is None else make_drafter(self.model)
            return _core.DrafterConfig(method=self.method, custom=CustomDrafter(custom))
        if target is not None and any(key in fields for key in _STORES):
            fields.setdefault("store_tokenizer", target.vocabulary_hash)
        core = _core.DrafterConfig(method=self.method, **fields)
        if self.corpus:
            core.suffix_corpus = read_suffix_corpus(self.corpus, encode)
        return core


def parse_drafter(given: Mapping[str, Any], find_config: ConfigFinder) -> DrafterOptions:
    """Checks one drafter's keys. Raises ValueError."""
    if given.get("draft_sample_method") == "coupled":
        given = {**given, "draft_sample_method": "probabilistic"}
    given = {
        key: os.fspath(value) if key in _STORES and isinstance(value, os.PathLike) else value
        for key, value in given.items()
    }
    config = _read_config(given, find_config)
    method = method_of(given, config)
    _check_keys(given, method)
    fields = _core_fields(given, method)
    model = given.get("model")
    if method == "custom_class":
        return _custom_drafter(given)
    if method in WITHOUT_MODEL:
        _check_no_model(method, model)
        if method == "ngram":
            return DrafterOptions(method, _ngram_fields(fields))
        corpus = parse_suffix_corpus(given[CORPUS]) if CORPUS in given else ()
        return DrafterOptions(method, _with_homes(fields), corpus=corpus)
    if model is None and method != IN_TARGET:
        what = "a directory, a .gguf file or a model name"
        if method in HEADS:
            what = "the head's directory or name"
        raise ValueError(f'the method "{method}" needs "model": {what}')
    if config is not None and config.is_parallel and method == "eagle3":
        fields.setdefault("parallel_drafting", True)
    token_map = _token_map(given, method, config)
    revision = given.get("revision")
    name = None if model is None else os.fspath(model)
    return DrafterOptions(method, fields, name, revision, token_map=token_map, config=config)


def drafter_method(given: Mapping[str, Any], find_config: ConfigFinder) -> str:
    """The method of one drafter's keys, given or inferred. Raises ValueError."""
    return method_of(given, _read_config(given, find_config))


def keys_of(method: str) -> tuple[str, ...]:
    """The keys that a drafter of this method takes beside "method"."""
    return _METHOD_KEYS[method]


def _token_map(
    given: Mapping[str, Any], method: str, config: DraftConfig | None
) -> TokenMap | None:
    """The user's token map, else the file that the head's trainer left, else likely tokens.

    None for all tokens.
    """
    if TOKEN_MAP in given:
        return parse_token_map(given[TOKEN_MAP])
    if TOKEN_MAP not in _METHOD_KEYS[method]:
        return None
    beside = None if config is None else config.file.with_name(TOKEN_MAP_FILE)
    return parse_token_map(beside) if beside is not None and is_file(beside) else LikelyTokens()


def _read_config(given: Mapping[str, Any], find_config: ConfigFinder) -> DraftConfig | None:
    """config.json of the draft model or head, where there is one."""
    model = given.get("model")
    if model is not None and not isinstance(model, (str, os.PathLike)):
        raise ValueError(f"model must be a string, got {model!r:.80}; an object goes to drafter")
    revision = given.get("revision")
    if revision is not None and not isinstance(revision, str):
        raise ValueError(f"revision must be a string, got {revision!r:.80}")
    if not may_be_checkpoint(given):
        return None
    directory = find_config(os.fspath(given["model"]), revision)
    return None if directory is None else read_draft_config(directory)


def _check_keys(given: Mapping[str, Any], method: str) -> None:
    for key, value in given.items():
        if key not in DRAFTER_KEYS or key == "method" or key in _METHOD_KEYS[method]:
            continue
        if key == "parallel_drafting" and value is False:  # the default anyway
            continue
        owners = [name for name, keys in _METHOD_KEYS.items() if key in keys]
        listed = " or ".join(f'"{owner}"' for owner in owners)
        raise ValueError(
            f'{key} belongs to the method {listed}, not to "{method}"; leave it out, or give '
            f'"method": "{owners[0]}"'
        )


def _custom_drafter(given: Mapping[str, Any]) -> DrafterOptions:
    model = given.get("model")
    if (model is None) == ("drafter" not in given):
        raise ValueError(
            'the method "custom_class" needs either "model", the dotted path of a class, or '
            '"drafter", an object with propose(tokens, max_tokens)'
        )
    if model is not None and not is_dotted_path(model):
        raise ValueError(
            f'the method "custom_class" needs "model": "package.module.Class", got {model!r}'
        )
    if model is None:
        CustomDrafter(given["drafter"])  # refused now rather than when the engine is made
    return DrafterOptions("custom_class", {}, model, drafter=given.get("drafter"))


def _check_no_model(method: str, model: Any) -> None:
    if model not in (None, method, f"[{method}]"):
        raise ValueError(
            f'the method "{method}" takes no model; leave "model" out, or give '
            '"method": "draft_model" to draft with it'
        )


def _core_fields(given: Mapping[str, Any], method: str) -> dict[str, Any]:
    """The given options of the method, checked for the core's types and ranges."""
    fields = {
        key: checked_field(CORE_OPTIONS[key], given[key])
        for key in _METHOD_KEYS[method]
        if key in given and key in CORE_OPTIONS and key not in ("model", TOKEN_MAP)
    }
    has_model = method in ("draft_model", *HEADS)
    return {key: value for key, value in fields.items() if has_model or key not in _ALL_KEYS}


def checked_field(option: _core.Option, value: Any) -> Any:
    """`value` checked for the core's option; the core's integers have 32 bits."""
    has_no_maximum = option.type == "int" and option.highest is None
    return check_option(option, value, maximum=INT32_MAX if has_no_maximum else None)


def _with_homes(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The core does not know home directories."""
    return {
        key: os.path.expanduser(value) if key in _STORES else value for key, value in fields.items()
    }


def _ngram_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """One length alone sets the other, too."""
    longest = fields.get("prompt_lookup_max", fields.get("prompt_lookup_min", _LOOKUP))
    return {"prompt_lookup_min": longest, "prompt_lookup_max": longest, **fields}
