"""What vLLM's engines have in common: an Engine and vLLM's words for it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from specdec_native.engine import Engine
from specdec_native.options.vllm_config import ModelConfig, VllmConfig
from specdec_vllm.arguments import engine_options
from specdec_vllm.engine_args import LoadedConfig, arguments_of, make_engine
from specdec_vllm.missing import MISSING_METHODS, REFUSED_NAMES

if TYPE_CHECKING:
    from typing_extensions import Self

_logger = logging.getLogger("specdec_native")


class AdviceOnNames:
    """Its AttributeErrors say what to do in place of vLLM's methods that are missing, and which
    attributes are the Engine's."""

    if not TYPE_CHECKING:  # a type checker is to see the methods that there are, and no others

        def __getattr__(self, name: str) -> Any:
            owner = type(self).__name__
            if name in MISSING_METHODS:
                raise AttributeError(f"{owner}.{name} is not supported: {MISSING_METHODS[name]}")
            advice = ""
            if not name.startswith("_") and hasattr(Engine, name):
                advice = f": use .engine.{name}"
            raise AttributeError(f"{owner!r} object has no attribute {name!r}{advice}")


class EngineView(AdviceOnNames):
    """An Engine, seen as vLLM's engines are.

    Attributes:
        engine: the Engine.
    """

    _has_warned = False

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @classmethod
    def from_engine_args(
        cls, engine_args: Any, *_: Any, stat_loggers: Any = None, **__: Any
    ) -> Self:
        """An engine of the arguments; further ones say how vLLM's processes are arranged.

        `stat_loggers` are ignored with a warning.
        """
        if stat_loggers:
            _logger.warning("stat_loggers are ignored: %s", REFUSED_NAMES["StatLoggerBase"])
        arguments = arguments_of(engine_args)
        return cls(make_engine(arguments.pop("model"), engine_options(arguments)))

    @classmethod
    def from_vllm_config(cls, vllm_config: LoadedConfig, *_: Any, **__: Any) -> Self:
        """The engine of EngineArgs.create_engine_config()."""
        if not isinstance(vllm_config, LoadedConfig):
            raise TypeError(
                f"vllm_config must be what EngineArgs.create_engine_config() returns, got "
                f"{vllm_config!r:.80}"
            )
        return cls(vllm_config.engine)

    @property
    def vllm_config(self) -> VllmConfig:
        """What was resolved from the arguments and the checkpoint."""
        return self.engine.vllm_config

    @property
    def model_config(self) -> ModelConfig:
        """The model's part of vllm_config."""
        return self.engine.vllm_config.model_config

    @property
    def engine_core(self) -> Self:
        """The engine itself, under the names that scripts shut down or delete parts of vLLM's by.

        Deleting one does nothing: the model is freed with the last reference to the engine.
        """
        return self

    @engine_core.deleter
    def engine_core(self) -> None:
        pass

    model_executor = driver_worker = engine_core

    def shutdown(self, timeout: float | None = None) -> None:
        """Aborts what runs and frees the model."""
        del timeout
        self.engine.close()

    def known_priority(self, priority: Any) -> Any:
        """`priority` where the scheduler minds it. Elsewhere 0 for each, as in vLLM, and the first
        that asks for more is logged."""
        given = priority if isinstance(priority, (list, tuple)) else [priority]
        if self.vllm_config.scheduler_config.policy == "priority" or not any(given):
            return priority
        if not all(isinstance(each, int) for each in given):
            return priority  # which is refused with what is wrong
        if not self._has_warned:
            self._has_warned = True
            _logger.warning(
                'priority is ignored: make the engine with scheduling_policy="priority"'
            )
        return [0] * len(given) if given is priority else 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.engine!r})"
