"""Checks that token ids mean the same to a draft model or head as to the target."""

from __future__ import annotations

import filecmp
import logging
from collections.abc import Sequence
from pathlib import Path

from specdec_native.checkpoints.errors import CheckpointError
from specdec_native.text.tokenizer import Tokenizer
from specdec_native.text.tokenizer_backends import TokenizerNotFoundError

logger = logging.getLogger(__name__)

_FILE = "tokenizer.json"


def check_vocabularies(
    drafts: Sequence[tuple[str, Path]], target: Path, tokenizer: Tokenizer | None
) -> None:
    """Compares the tokenizers of the drafters' directories with that of the target's.

    drafts: for each draft model or head, the field that names it and its directory.
    tokenizer: the engine's; used where the target's directory has none.

    Ids that only one of the two has are padding rows, or drafts that are never accepted. Special
    tokens may differ in name; that is logged. Without a tokenizer there is nothing to compare.

    Raises CheckpointError where any other id stands for a different text.
    """
    for field, draft in drafts:
        files = draft / _FILE, target / _FILE
        if all(map(Path.is_file, files)) and filecmp.cmp(*files, shallow=False):
            continue
        theirs = _read(draft)
        if theirs is None:
            continue
        if tokenizer is None or tokenizer.name_or_path != str(target):
            tokenizer = _read(target) or tokenizer
        if tokenizer is None:
            return
        _compare(field, draft, theirs, tokenizer)


def _read(directory: Path) -> Tokenizer | None:
    try:
        return Tokenizer.from_directory(directory)
    except TokenizerNotFoundError:
        return None
    except ValueError as error:
        logger.warning("the vocabularies of draft and target are not compared: %s", error)
        return None


def _compare(field: str, draft: Path, theirs: Tokenizer, target: Tokenizer) -> None:
    entries = {token_id: entry for entry, token_id in target.get_vocab().items()}
    shared = {i: entry for entry, i in theirs.get_vocab().items() if i in entries}
    differing = sorted(
        token_id
        for token_id, entry in shared.items()
        if entry != entries[token_id] and theirs.token_text(token_id) != target.token_text(token_id)
    )
    special = theirs.special_token_texts.keys() | target.special_token_texts.keys()
    ordinary = [token_id for token_id in differing if token_id not in special]
    if not differing:
        return
    example = (ordinary or differing)[0]
    difference = (
        f"{len(differing)} of the {len(shared)} token ids that {draft} shares with the target mean "
        f"something else there, such as {example}: {shared[example]!r:.80}, in the target "
        f"{entries[example]!r:.80}"
    )
    if not ordinary:
        logger.warning("%s: %s; drafts of them will not be accepted", field, difference)
        return
    raise CheckpointError(
        f"{field}: {difference}; give a draft model that has the target's tokenizer"
    )
