"""The tokens that a draft head scores with rows of the target's LM head.

A head without an output matrix of its own scores with the target's, and in a small model that is
most of what a draft costs: of Qwen3.5-0.8B an MTP layer has 20 million weights, the LM head 254 of
the target's 751 million. A copy of the rows of likely tokens costs less, and the engine holds it in
the drafter's format. The cut changes which drafts are made, never an answer.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_native import _core
from specdec_native.checkpoints.errors import CheckpointError
from specdec_native.checkpoints.text_files import read_json_object

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

MOST_SHARE = 0.05
"""Share of the bytes of a target's pass that a draft's rows of the LM head may take."""

LEAST_TOKENS = 16_384
"""Fewer tokens are never left, nor is a smaller part of the vocabulary than a quarter."""

_LEAST_PART = 4
_BLOCK_ROWS = 8192  # of a matrix in float32 at a time
_LEAST_UNUSED = 8  # rows that a mean is taken of
_LEAST_AGREEMENT = 0.9  # length of the mean of unit vectors


@dataclasses.dataclass(frozen=True)
class DraftTarget:
    """The target that heads draft for.

    Attributes:
        directory: its checkpoint.
        dtype, quantization: the engine's.
        has_weights: False where config.json alone is read, as for random weights.
        num_tokens: how many tokens its tokenizer has; later rows of the LM head are padding. None
            if there is no tokenizer.
        special_ids: its special tokens, such as those that end an answer.
        vocabulary: the ids of its tokens; None if there is no tokenizer.
    """

    directory: Path
    dtype: str
    quantization: str
    has_weights: bool = True
    num_tokens: int | None = None
    special_ids: Sequence[int] = ()
    vocabulary: Mapping[str, int] | None = None

    @property
    def vocabulary_hash(self) -> str:
        """A hash of the vocabulary: equal where token ids mean the same. Empty without one."""
        if self.vocabulary is None:
            return ""
        entries = sorted((index, token) for token, index in self.vocabulary.items())
        return hashlib.sha256(repr(entries).encode(errors="surrogatepass")).hexdigest()

    @property
    def vocab_size(self) -> int:
        """Rows of the LM head, as config.json or the part about text has it."""
        config = read_json_object(self.directory / "config.json")
        parts = (config, *(part for part in config.values() if isinstance(part, dict)))
        found = [part["vocab_size"] for part in parts if "vocab_size" in part]
        if not found:
            raise CheckpointError("vocab_size: missing", self.directory / "config.json")
        return int(found[0])

    def tokens_for(self, fields: Mapping[str, Any], size: int | None) -> list[int]:
        """The tokens that a head is to score, rising; empty for all.

        fields: of the head's _core.DrafterConfig, without tokens.
        size: how many tokens; None if that follows from what they cost.

        Raises ValueError, as loading the head does.
        """
        head = _core.DrafterConfig(**fields)
        random_weights = not self.has_weights
        if size is None:
            directory = str(self.directory)
            if not _core.scores_with_target(head, directory, random_weights=random_weights):
                return []
            size = self.affordable_tokens(fields)
        num_tokens = self.vocab_size
        if size is None or size > num_tokens:
            return []
        order = likely_tokens_first(self) if size < num_tokens else range(num_tokens)
        tokens = _first(order, size, (i for i in self.special_ids if i < num_tokens))
        logger.info("%s drafts %d of %d tokens", fields["method"], len(tokens), num_tokens)
        return tokens

    def affordable_tokens(self, fields: Mapping[str, Any]) -> int | None:
        """How many rows of the LM head a head may read; None for all of the target's own.

        These are counted as the target holds them, a copy as the drafter holds it. The size is the
        vocabulary's where a copy of all rows costs little, because it has fewer bits.
        """
        target = _core.model_facts(
            str(self.directory), dtype=self.dtype, quantization=self.quantization
        )[0]
        allowed = MOST_SHARE * target.pass_bytes(1, 1, 0)
        num_tokens = self.vocab_size
        if num_tokens <= LEAST_TOKENS:
            return None
        if self._row_bytes({**fields, "quantization": self.quantization}) * num_tokens <= allowed:
            return None
        size = int(allowed / self._row_bytes(fields))
        if size >= num_tokens:
            return num_tokens
        size = max(size, num_tokens // _LEAST_PART, LEAST_TOKENS)
        return size if size < num_tokens else None

    def _row_bytes(self, fields: Mapping[str, Any]) -> float:
        """Bytes of a row of the LM head in the quantization of a drafter."""
        num_bytes = []
        for tokens in ([0], [0, 1]):
            head = _core.DrafterConfig(**fields, speculative_token_map=tokens)
            facts = _core.head_facts(head, str(self.directory))[0]
            num_bytes.append(facts.pass_bytes(1, 1, 0))
        return num_bytes[1] - num_bytes[0]


def _first(order: Iterable[int], size: int, always: Iterable[int]) -> list[int]:
    """`always` and the first of `order`, `size` in all, rising."""
    chosen = set(list(always)[:size])
    for token in order:
        if len(chosen) == size:
            break
        chosen.add(int(token))
    return sorted(chosen)


# -- which tokens are likely


def likely_tokens_first(target: DraftTarget) -> Iterable[int]:
    """All tokens of a target, the likelier ones first, as far as that shows without any text.

    Byte pair encoding makes tokens of frequent pairs first, so low ids are likely: in the languages
    that the tokenizer was made of. What the model itself has learnt is in its LM head: training
    pushes rows of tokens that never occur into one direction, and rows of the others the further
    away the more they occur (Land & Bartolo, Fishing for Magikarp, 2024, find unused tokens so).
    Where the matrix has rows of padding, which never occur, the order is by the sum of both ranks.
    """
    import numpy as np  # noqa: PLC0415 - 20 MB that most engines do without

    by_id = np.arange(target.vocab_size)
    scores = _distances_from_unused(target)
    if scores is None:
        return by_id.tolist()
    ranks = np.empty_like(by_id)
    ranks[np.argsort(-scores, kind="stable")] = by_id
    order: list[int] = np.argsort(ranks + by_id, kind="stable").tolist()
    return order


def _distances_from_unused(target: DraftTarget) -> NDArray[np.float32] | None:
    """For each row of the LM head, how far it is from rows of padding: -1 for equal directions.

    None where there is no padding, its rows differ, or the matrix is not stored as floats.
    """
    num_rows, num_used = target.vocab_size, target.num_tokens
    if num_used is None or num_rows - num_used < _LEAST_UNUSED or not target.has_weights:
        return None
    from specdec_native.checkpoints.safetensors_file import open_checkpoint  # noqa: PLC0415

    tensors = open_checkpoint(target.directory)
    names = [
        name
        for end in ("lm_head.weight", "embed_tokens.weight")
        for name, tensor in tensors.items()
        if name.endswith(end) and "mtp" not in name and tensor.is_float
    ]
    matrix = next((tensors[name] for name in names if tensors[name].shape[0] == num_rows), None)
    if matrix is None:
        return None
    unused = _unit_rows(matrix.as_float32(slice(num_used, num_rows))).mean(0)
    if (unused @ unused) ** 0.5 < _LEAST_AGREEMENT:
        return None
    import numpy as np  # noqa: PLC0415

    scores = np.empty(num_rows, np.float32)
    for begin in range(0, num_rows, _BLOCK_ROWS):
        block = slice(begin, min(begin + _BLOCK_ROWS, num_rows))
        scores[block] = -_unit_rows(matrix.as_float32(block)) @ unused
    return scores


def _unit_rows(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows of length 1; a row of zeros stays."""
    lengths = (rows * rows).sum(1, keepdims=True) ** 0.5
    lengths[lengths == 0] = 1
    scaled: NDArray[np.float32] = rows / lengths
    return scaled
