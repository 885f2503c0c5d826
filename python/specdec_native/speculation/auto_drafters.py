"""`"method": "auto"`: the drafters that a checkpoint brings, and those that need no model.

    LLM(model, speculative_config={"method": "auto"})

stands for a list of drafters, all of which draft into one tree: the layer for multi-token
prediction in the target's checkpoint, the head of this package for the target, suffixes and
n-grams. The length policy asks those that pay.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec_native import _core
from specdec_native.checkpoints.head_registry import heads_of
from specdec_native.checkpoints.hub import known_model_name
from specdec_native.speculation.drafter_options import (
    DRAFTER_KEYS,
    ConfigFinder,
    drafter_method,
    keys_of,
)
from specdec_native.speculation.methods import ANSWER_FILES

logger = logging.getLogger(__name__)

AUTO = "auto"
_OF_MODEL = ("model", "revision")
# Alternatives of a model at each position, of which the policy verifies those that pay.
_TREE_WIDTH = 4
_SUFFIX = {"method": "suffix"}
_NGRAM = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 5}
_REPLAY = {"method": "replay"}  # where it is to record or to replay


def asks_for_auto(config: Any) -> bool:
    """Whether a speculative_config leaves the choice of the drafters to what the model brings."""
    if not isinstance(config, Mapping):
        return False
    return config.get("method") == AUTO or config.get("drafters") == AUTO


def name_drafters(
    config: Mapping[str, Any],
    find_config: ConfigFinder,
    brought: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The same config with its drafters in a list.

    config: a speculative_config that asks for "auto". Its "model", a draft model or head, is used
        in place of `brought`. Other keys of drafters go to each drafter whose method takes them.
    brought: what brought_drafters() found.

    Raises ValueError for keys that have no meaning beside "auto".
    """
    given = {key: value for key, value in config.items() if value is not None}
    both = {given.pop(key, AUTO) for key in ("method", "drafters") if given.get(key) == AUTO}
    if both != {AUTO} or "method" in given or "drafters" in given:
        raise ValueError('"auto" names all drafters: give either "method" or "drafters"')
    if "drafter" in given:
        raise ValueError(
            'drafter, an object of your own, is not among those that "auto" finds; list it in '
            '"drafters" with the others'
        )
    of_model = {key: given.pop(key) for key in _OF_MODEL if key in given}
    models = [of_model] if "model" in of_model else list(brought)
    beside = {key: given.pop(key) for key in tuple(given) if key in DRAFTER_KEYS}
    replays = [_REPLAY] if any(key in beside for key in ANSWER_FILES) else []
    drafters = [
        _with_keys(entry, drafter_method(entry, find_config), beside)
        for entry in (*replays, _SUFFIX, _NGRAM, *models)
    ]
    if given.get("rejection_sample_method") != "block":  # which verifies chains
        given.setdefault("merge_drafters", True)
        if models:
            given.setdefault("tree_width", _TREE_WIDTH)
    return {"drafters": drafters, **given}


def _with_keys(entry: Mapping[str, Any], method: str, beside: Mapping[str, Any]) -> dict[str, Any]:
    """A drafter with those of the keys that its method takes."""
    suiting = {key: value for key, value in beside.items() if key in keys_of(method)}
    if any(key in _NGRAM for key in suiting):  # one length alone sets the other, too
        entry = {"method": method}
    return {**entry, **suiting}


def brought_drafters(
    model: str, directory: Path, *, has_weights: bool = True
) -> list[dict[str, Any]]:
    """Drafters that come with a target: the layer in its checkpoint, and the package's best head.

    model, directory: what the user called the target, and where it is.
    has_weights: False where only config.json is read, as for random weights.

    What the engine cannot use is left out with a warning that says why.
    """
    from specdec_native.checkpoints.stored_weights import has_mtp_layer  # noqa: PLC0415 - numpy

    found: list[dict[str, Any]] = []
    if has_weights and has_mtp_layer(directory):
        drafter = _core.DrafterConfig(method="mtp")
        try:
            _core.scores_with_target(drafter, str(directory))
            found.append({"method": "mtp"})
        except ValueError as refusal:
            logger.warning("the MTP layer of %s is not used: %s", directory, refusal)
    name = known_model_name(model, directory)
    heads = [] if name is None else heads_of(name)
    found += [{"method": head.method, "model": head.name} for head in heads[:1]]
    return found


def text_of_drafters(drafters: Sequence[Mapping[str, Any]]) -> str:
    """Names for a log: "suffix, ngram, eagle3 (SmolLM2-135M-Instruct-eagle3)"."""
    names = []
    for drafter in drafters:
        method, model = drafter.get("method"), drafter.get("model")
        names.append(f"{method} ({model})" if method and model else str(method or model))
    return ", ".join(names)
