"""Reads config.json of a draft model or draft head, in the spellings of those who train them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from specdec_native.checkpoints.errors import CheckpointError
from specdec_native.checkpoints.text_files import read_json_object

# Values of "speculators_model_type". "peagle" is EAGLE-3 that drafts in parallel.
_SPECULATORS_METHODS = {
    "eagle": "eagle",
    "eagle3": "eagle3",
    "peagle": "eagle3",
    "medusa": "medusa",
    "mlp": "mlp_speculator",
    "mlp_speculator": "mlp_speculator",
    "dflash": "dflash",
    "dflash2": "dflash",
    "dspark": "dspark",
    "mtp": "mtp",
}
# Words in "architectures" and "model_type" that name the method; the first one found decides.
_METHOD_WORDS = {
    "eagle3": "eagle3",
    "peagle": "eagle3",
    "eagle": "eagle",
    "medusa": "medusa",
    "mlpspeculator": "mlp_speculator",
    "mlp_speculator": "mlp_speculator",
    "dflash": "dflash",
    "dspark": "dspark",
    "mtp": "mtp",
    "gemma4assistant": "mtp",
    "gemma4unifiedassistant": "mtp",
    "gemma4_assistant": "mtp",
    "gemma4_unified_assistant": "mtp",
}
# Keys that only checkpoints of this method have.
_METHOD_KEYS = {
    "draft_vocab_size": "eagle3",
    "eagle_config": "eagle3",
    "medusa_num_heads": "medusa",
}
_TAPS = "eagle_aux_hidden_state_layer_ids"
# The key that limits a draft's length, by method.
_LENGTH_KEYS = {"mlp_speculator": "n_predict", "medusa": "num_heads"}
_ROWS_OF_A_SPAN = 16
# Medusa's own files may state fewer heads than they hold, so this is no limit.
_STATED_HEADS = "medusa_num_heads"


@dataclasses.dataclass(frozen=True)
class DraftConfig:
    """config.json of a draft model or draft head.

    Attributes:
        file: the path of config.json.
        values: its content.
    """

    file: Path
    values: Mapping[str, Any]

    @property
    def method(self) -> str | None:
        """The method it is made for, supported or not; None where config.json does not say.

        Raises CheckpointError for a kind of speculator nobody knows.
        """
        kind = self.values.get("speculators_model_type")
        if kind is not None:
            if not isinstance(kind, str) or kind not in _SPECULATORS_METHODS:
                raise CheckpointError(
                    f"speculators_model_type {kind!r:.80} is not known; known are "
                    f"{', '.join(_SPECULATORS_METHODS)}",
                    self.file,
                )
            return _SPECULATORS_METHODS[kind]
        for name in (*self.architectures, str(self.values.get("model_type", ""))):
            for word, method in _METHOD_WORDS.items():
                if word in name.lower():
                    return method
        for key, method in _METHOD_KEYS.items():
            if self.values.get(key) is not None:
                return method
        return None

    @property
    def architectures(self) -> list[str]:
        """Names of its classes."""
        names = self.values.get("architectures")
        return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []

    @property
    def is_parallel(self) -> bool:
        """Whether it is a P-EAGLE head, which drafts all positions in one pass."""
        return self.values.get("speculators_model_type") == "peagle" or any(
            "peagle" in name.lower() for name in self.architectures
        )

    @property
    def layers(self) -> Mapping[str, Any]:
        """The part that describes its layers: an inner object in speculators' format, else all."""
        nested = self.values.get("transformer_layer_config")
        return nested if isinstance(nested, Mapping) else self.values

    @property
    def taps(self) -> list[int] | None:
        """The target's layers whose inputs an EAGLE-3 head reads; None for the default layers, as
        for an empty list."""
        nested = self.values.get("eagle_config")
        outputs = nested.get(_TAPS) if isinstance(nested, Mapping) else None
        for ids, offset in ((self.values.get(_TAPS), 0), (outputs, 1)):
            if isinstance(ids, list) and ids and all(isinstance(layer, int) for layer in ids):
                return [layer + offset for layer in ids]
        return None

    @property
    def verifier(self) -> str | None:
        """The name or path of the target it was trained for, where it says so."""
        verifier = self._speculators_config.get("verifier")
        name = verifier.get("name_or_path") if isinstance(verifier, Mapping) else None
        return name if isinstance(name, str) and name else None

    @property
    def _span_depth(self) -> int | None:
        """Tokens that one pass of a DFlash or DSpark head drafts: a row less than the pass has,
        unless the row of the last token gives the first of them."""
        nested = self.values.get("dflash_config")
        settings = {**self.values, **(nested if isinstance(nested, Mapping) else {})}
        size = settings.get("block_size", _ROWS_OF_A_SPAN)
        names = " ".join((*self.architectures, str(self.values.get("speculators_model_type"))))
        samples_anchor = settings.get(
            "sample_from_anchor",
            "dspark" in names.lower() and not settings.get("dspark_bonus_anchor"),
        )
        return size - (0 if samples_anchor else 1) if _is_count(size) else None

    def longest_draft(self, method: str) -> tuple[str, int] | None:
        """The key that limits how many tokens it can draft, and the limit; None: no limit."""
        if method in ("dflash", "dspark"):
            depth = self._span_depth
            return None if depth is None else ("block_size", depth)
        key = _LENGTH_KEYS.get(method)
        length = None if key is None else self.values.get(key)
        return (key, length) if key is not None and _is_count(length) else None

    def proposed_tokens(self, method: str) -> int | None:
        """How many tokens it proposes to draft; None where it does not say."""
        proposals = self._speculators_config.get("proposal_methods")
        first = proposals[0] if isinstance(proposals, list) and proposals else None
        tokens = first.get("speculative_tokens") if isinstance(first, Mapping) else None
        limit = self.longest_draft(method)
        if limit is not None:
            return min(tokens, limit[1]) if _is_count(tokens) else limit[1]
        if method == "medusa" and not _is_count(tokens):
            tokens = self.values.get(_STATED_HEADS)
        return tokens if _is_count(tokens) else None

    @property
    def _speculators_config(self) -> Mapping[str, Any]:
        nested = self.values.get("speculators_config")
        return nested if isinstance(nested, Mapping) else {}


def read_draft_config(directory: Path) -> DraftConfig:
    """config.json of a checkpoint's directory. Raises CheckpointError."""
    file = directory / "config.json"
    return DraftConfig(file, read_json_object(file))


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
