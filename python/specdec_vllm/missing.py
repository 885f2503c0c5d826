"""Names of vLLM's that are not here, or stand for nothing here, and what to do without them."""

from __future__ import annotations

from typing import Any, NoReturn

from specdec_vllm.tables import TABLES, by_name

# Names that can be imported, for scripts that have them in a type, a branch or an isinstance(); to
# make one or to call it is refused.
REFUSED_NAMES = by_name(TABLES["refused_names"])
# Names that are used as soon as they are imported, so that importing them is refused.
MISSING_NAMES = by_name(TABLES["missing_names"])
# Configurations that are dicts here, of which LLM takes what it knows.
CONFIG_NAMES: list[str] = TABLES["config_names"]
# Enumerations of which every member is its own name here: they say how vLLM tunes itself.
ENUM_NAMES: list[str] = TABLES["enum_names"]
# Methods of vLLM's engines.
MISSING_METHODS = by_name(TABLES["missing_methods"])


class _Refused(type):
    """The type of REFUSED_NAMES: classes that cannot be called, nor those derived of them."""

    def __call__(cls, *_: Any, **__: Any) -> NoReturn:
        name = next(c.__name__ for c in reversed(cls.__mro__) if c.__name__ in REFUSED_NAMES)
        raise ValueError(f"{name} is not supported by specdec_native: {REFUSED_NAMES[name]}")


class _Config(dict[str, Any]):
    """A dict whose keys are attributes, too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} was not given {name}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


class _Enum(type):
    """The type of ENUM_NAMES."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("_"):
            raise AttributeError(name)
        return name


def stand_in(name: str) -> type | None:
    """What is imported for one of vLLM's names in these tables; None for others."""
    home = {"__module__": "specdec_native"}
    if name in REFUSED_NAMES:
        return _Refused(name, (), home)
    if name in CONFIG_NAMES:
        return type(name, (_Config,), home)
    if name in ENUM_NAMES:
        return _Enum(name, (), home)
    return None
