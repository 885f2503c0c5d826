"""A head given as the model: its config.json may name the target it was trained for."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specdec_native.checkpoints.draft_config import read_draft_config
from specdec_native.checkpoints.errors import CheckpointError, ModelNotFoundError
from specdec_native.speculation.auto_drafters import asks_for_auto
from specdec_native.speculation.drafter_options import ConfigFinder


@dataclasses.dataclass(frozen=True)
class Target:
    """The model that an engine answers with, and its drafters.

    Attributes:
        model: its name or path.
        revision: the model's revision, where it is a name.
        speculative_config: the caller's. If the model was a head, it drafts, unless the caller's
            config asks for another drafter.
        named_by: config.json of the head that named the model, if one did.
    """

    model: str | os.PathLike[str]
    revision: str | None
    speculative_config: Any
    named_by: Path | None = None

    def resolve(self, resolve_model: Callable[..., Path]) -> Path:
        """The model's directory; `resolve_model` is hub.resolve_model with its options.

        Raises ModelNotFoundError where a head names a model that cannot be found, else what
        `resolve_model` raises.
        """
        try:
            return resolve_model(self.model, revision=self.revision)
        except (ValueError, RuntimeError, ImportError) as fault:
            if self.named_by is None:
                raise
            raise ModelNotFoundError(
                f"speculators_config.verifier.name_or_path is {os.fspath(self.model)!r}, which "
                f"cannot be had ({fault}); give the target as model, and the head as "
                f'speculative_config={{"model": {str(self.named_by.parent)!r}}}',
                self.named_by,
            ) from fault


def find_target(
    model: str | os.PathLike[str],
    revision: str | None,
    speculative_config: Any,
    find_config: ConfigFinder,
) -> Target:
    """The target for a user's `model`: the model itself, or the target that a draft head names.

    Raises ValueError for a head that does not name its target.
    """
    itself = Target(model, revision, speculative_config)
    directory = find_config(os.fspath(model), revision)
    if directory is None:
        return itself
    try:
        config = read_draft_config(directory)
    except CheckpointError:  # the core reports what is wrong, as for any model
        return itself
    if config.method is None:
        return itself
    if config.verifier is None:
        raise CheckpointError(
            f'this is a draft head for the method "{config.method}", which needs the model it was '
            f"trained for: give that as model, and the head as "
            f'speculative_config={{"model": {os.fspath(model)!r}}}',
            config.file,
        )
    given = {} if speculative_config is None else speculative_config
    if not isinstance(given, Mapping):
        return itself  # refused later
    fits = given.get("method") in (None, config.method) and "drafters" not in given
    if (fits or asks_for_auto(given)) and "model" not in given:
        head = {"model": os.fspath(model)} | ({} if revision is None else {"revision": revision})
        given = head | dict(given)
    return Target(config.verifier, None, given, config.file)
