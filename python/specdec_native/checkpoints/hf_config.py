"""config.json as a Python object, with the user's overrides applied."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

HfOverrides = Mapping[str, Any] | Callable[[Any], Any]


class HfConfig(dict[str, Any]):
    """A JSON object whose keys are attributes, too, as those of transformers' configurations."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"config.json has no key {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


def load_hf_config(directory: Path, overrides: HfOverrides | None) -> HfConfig:
    """config.json of `directory` with `overrides` put over it.

    A mapping replaces keys, within objects key by key, and deletes those that it maps to None; a
    function is given the configuration and returns it changed. Raises ValueError.
    """
    file = directory / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"), object_hook=HfConfig)
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{file} cannot be read as JSON ({error})") from error
    if not isinstance(config, HfConfig):
        raise ValueError(f"{file}: expected a JSON object")
    if isinstance(overrides, Mapping):
        _merge(config, overrides)
    elif overrides is not None:
        config = overrides(config)
        if not isinstance(config, HfConfig):
            raise ValueError(
                "hf_overrides: the function must return the configuration it was given, not "
                f"{config!r:.80}"
            )
    return config


def check_hf_overrides(overrides: Any) -> None:
    """Raises ValueError unless it is None, a mapping or a function."""
    if overrides is not None and not isinstance(overrides, Mapping) and not callable(overrides):
        raise ValueError(f"hf_overrides must be a dict or a function, got {overrides!r:.80}")


def overrides_json(directory: Path, overrides: HfOverrides) -> str:
    """The overrides as JSON for the core. Raises ValueError naming what JSON cannot hold."""
    changed = load_hf_config(directory, overrides)
    try:
        return json.dumps(_patch(load_hf_config(directory, None), changed))
    except (TypeError, ValueError) as error:
        raise ValueError(f"hf_overrides: not JSON ({error})") from error


def _patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The updates that turn `before` into `after`."""
    updates: dict[str, Any] = dict.fromkeys(before.keys() - after.keys())
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            updates[key] = _patch(old, value)
        elif key not in before or value != old:
            updates[key] = value
    return updates


def _merge(target: dict[str, Any], updates: Mapping[str, Any]) -> None:
    for key, value in updates.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(target.get(key), dict):
            _merge(target[key], value)
        else:
            target[key] = value
