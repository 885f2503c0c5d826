"""`speculative_token_map`: the tokens that a head drafts with the target's output matrix."""

from __future__ import annotations

import dataclasses
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec_native.checkpoints.errors import CheckpointError
from specdec_native.checkpoints.optional import import_optional
from specdec_native.checkpoints.text_files import is_file, read_text
from specdec_native.common.checks import INT32_MAX, check_integer, shown

Encode = Callable[[str], Sequence[int]]
"""Token ids of a text, without those that a tokenizer puts around it."""

KEY = "speculative_token_map"
_DEFAULT_SIZE = 8192
AUTO, ALL = "auto", "all"
_FORMS = (
    'a list of token ids, a file of them (.json, .npy, .pt or .txt), {"text": "file.txt", "size": '
    '8192} to count them, {"size": 32768} for so many likely ones, "auto" or "all"'
)


@dataclasses.dataclass(frozen=True)
class TextCount:
    """The `size` tokens that are the most frequent in these texts."""

    texts: tuple[Path, ...]
    size: int


@dataclasses.dataclass(frozen=True)
class LikelyTokens:
    """The `size` tokens that seem likely without a text; None: as many as what they cost allows.

    See likely_tokens.
    """

    size: int | None = None


TokenMap = tuple[int, ...] | Path | TextCount | LikelyTokens


def parse_token_map(value: Any) -> TokenMap | None:
    """The user's value, checked as far as possible without a tokenizer; None for all tokens.

    Raises ValueError; ModelNotFoundError, a subclass, for a missing file.
    """
    if isinstance(value, Mapping):
        return _parse_count(value)
    if isinstance(value, str) and value in (AUTO, ALL):
        return LikelyTokens() if value == AUTO else None
    if isinstance(value, (str, os.PathLike)):
        return _existing(value)
    return _checked_ids(value, KEY)


def read_token_map(token_map: tuple[int, ...] | Path | TextCount, encode: Encode) -> list[int]:
    """The ids. Raises ValueError naming what is wrong."""
    if isinstance(token_map, TextCount):
        return count_tokens(token_map, encode)
    if isinstance(token_map, Path):
        return list(_checked_ids(_read_ids(token_map), str(token_map)))
    return list(token_map)


def count_tokens(count: TextCount, encode: Encode) -> list[int]:
    """The most frequent tokens, in the order of their ids; among equally frequent ones the lowest.

    They are fewer than `size` where the texts have fewer distinct tokens.
    """
    counts: Counter[int] = Counter()
    for file in count.texts:
        counts.update(encode(read_text(file)))
    if not counts:
        raise ValueError(f"{KEY}: there are no tokens in {', '.join(map(str, count.texts))}")
    by_count = sorted(counts, key=lambda token: (-counts[token], token))
    return sorted(by_count[: count.size])


def _parse_count(value: Mapping[str, Any]) -> TextCount | LikelyTokens:
    unknown = [key for key in value if key not in ("text", "size")]
    if unknown or not value:
        raise ValueError(f"{KEY} must be {_FORMS}, got {shown(dict(value))}")
    size = check_integer(
        f'{KEY} "size"', value.get("size", _DEFAULT_SIZE), minimum=1, maximum=INT32_MAX
    )
    if "text" not in value:
        return LikelyTokens(size)
    texts = value["text"]
    files = [texts] if isinstance(texts, (str, os.PathLike)) else texts
    if not isinstance(files, Sequence) or not files:
        raise ValueError(f'{KEY}: "text" must be a path or a list of paths, got {shown(texts)}')
    return TextCount(tuple(map(_existing, files)), size)


def _existing(value: Any) -> Path:
    if not isinstance(value, (str, os.PathLike)):
        raise ValueError(f"{KEY}: a path must be a string, got {shown(value)}")
    path = Path(value).expanduser()
    if not is_file(path):
        raise ValueError(f"{KEY}: there is no file {os.fspath(value)!r}; give {_FORMS}")
    return path


def _read_ids(file: Path) -> Any:
    readers = {".json": _read_json, ".npy": _read_numpy, ".pt": _read_torch, ".txt": _read_words}
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise ValueError(
            f"{KEY}: {file} is of an unknown kind; give {_FORMS}. A file of text to count goes "
            'into "text"'
        )
    try:
        return reader(file)
    except (CheckpointError, ImportError):
        raise
    except Exception as fault:  # each library raises errors of its own
        raise CheckpointError(
            f"cannot be read as token ids ({type(fault).__name__}: {fault})", file
        ) from fault


def _read_json(file: Path) -> Any:
    return json.loads(read_text(file))


def _read_numpy(file: Path) -> Any:
    import numpy as np  # noqa: PLC0415 - 20 MB that most engines do without

    return np.load(file, allow_pickle=False).tolist()


def _read_torch(file: Path) -> Any:
    torch = import_optional("torch", purpose=f"reading {file.name}", extra="torch")
    value = torch.load(file, map_location="cpu", weights_only=True)
    return value.tolist() if isinstance(value, torch.Tensor) else value


def _read_words(file: Path) -> Any:
    return [int(word) for word in read_text(file).split()]


def _checked_ids(value: Any, name: str) -> tuple[int, ...]:
    if hasattr(value, "tolist"):  # an array of numpy's or torch's
        value = value.tolist()
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise ValueError(f"{name} must be {_FORMS}, got {shown(value)}")
    if not value:
        raise ValueError(f"{name} is empty; leave {KEY} out to draft any token")
    return tuple(
        check_integer(f"{name}[{i}]", token, minimum=0, maximum=INT32_MAX)
        for i, token in enumerate(value)
    )
