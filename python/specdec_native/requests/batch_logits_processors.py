"""Logits processors that are classes for a batch, as vLLM's are: LLM(logits_processors=[...]).

The engine asks for one row at a time, in any order, and for drafted tokens, too. So a processor is
shown a batch of one request, which is new for every row: what it knows of a request has to follow
from the parameters, the prompt and the tokens that it is shown.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from specdec_native.common.checks import shown
from specdec_native.options.vllm_config import VllmConfig

RequestLogitsProcessor: TypeAlias = Callable[..., Any]


class MoveDirectionality(enum.Enum):
    """Whether a request moves to another row, or two change places."""

    UNIDIRECTIONAL = enum.auto()
    SWAP = enum.auto()


@dataclasses.dataclass(frozen=True)
class BatchUpdate:
    """What has changed in a batch, in the order in which it is to be taken in.

    Attributes:
        batch_size: requests.
        removed: rows of requests that have left.
        added: row, SamplingParams, prompt's token ids and output's of those that have come.
        moved: rows from and to.
    """

    batch_size: int
    removed: Sequence[int]
    added: Sequence[tuple[int, Any, list[int] | None, list[int]]]
    moved: Sequence[tuple[int, int, MoveDirectionality]]


class LogitsProcessor:
    """What vLLM's processors are derived from.

    update_state() is told of the requests; apply() then changes the logits, a torch tensor
    [requests, vocabulary] in float32.
    """

    def __init__(self, vllm_config: VllmConfig, device: Any, is_pin_memory: bool) -> None:
        """`device` is torch's, and always the CPU."""

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Raises ValueError for parameters of a request that it cannot meet."""

    def is_argmax_invariant(self) -> bool:
        """Whether the likeliest token stays so; then it comes after the temperature."""
        raise NotImplementedError

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Takes in what has changed; None for nothing."""
        raise NotImplementedError

    def apply(self, logits: Any) -> Any:
        """The logits changed, perhaps in place."""
        raise NotImplementedError


class AdapterLogitsProcessor(LogitsProcessor):
    """A processor made of functions of one row, which new_req_logits_processor() gives."""

    def __init__(self, vllm_config: VllmConfig, device: Any, is_pin_memory: bool) -> None:
        super().__init__(vllm_config, device, is_pin_memory)
        self.req_info: dict[int, Callable[[Any], Any]] = {}

    def new_req_logits_processor(self, params: Any) -> RequestLogitsProcessor | None:
        """A function of (output_token_ids, logits) or (prompt_token_ids, output_token_ids, logits)
        for a request of these parameters; None for nothing to do."""
        raise NotImplementedError

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Makes the functions of new requests."""
        process_dict_updates(self.req_info, batch_update, self._function)

    def _function(self, params: Any, prompt: Any, output: Any) -> Callable[[Any], Any] | None:
        function = self.new_req_logits_processor(params)
        if function is None:
            return None
        takes_prompt = len(inspect.signature(function).parameters) == 3
        return functools.partial(function, *((prompt, output) if takes_prompt else (output,)))

    def apply(self, logits: Any) -> Any:
        """Gives each function its row."""
        for row, function in self.req_info.items():
            logits[row] = function(logits[row])
        return logits


def process_dict_updates(
    req_entries: dict[int, Any],
    batch_update: BatchUpdate | None,
    new_state: Callable[[Any, Any, Any], Any],
) -> bool:
    """Keeps a dict from row to state up to date; returns whether it changed.

    `new_state(params, prompt_token_ids, output_token_ids)` is that of a request, None for none.
    """
    if batch_update is None:
        return False
    before = dict(req_entries)
    for row in batch_update.removed:
        req_entries.pop(row, None)
    for row, params, prompt, output in batch_update.added:
        _put(req_entries, row, new_state(params, prompt, output))
    for source, target, direction in batch_update.moved:
        moved, replaced = req_entries.pop(source, None), req_entries.pop(target, None)
        _put(req_entries, target, moved)
        if direction is MoveDirectionality.SWAP:
            _put(req_entries, source, replaced)
    return req_entries != before


def _put(entries: dict[int, Any], row: int, state: Any) -> None:
    entries.pop(row, None)
    if state is not None:
        entries[row] = state


class BatchOfOne:
    """A processor of vLLM's as functions of one row."""

    def __init__(self, processor_class: type[Any], vllm_config: VllmConfig) -> None:
        import torch  # noqa: PLC0415 - optional

        self._class = processor_class
        self._processor = processor_class(vllm_config, torch.device("cpu"), False)

    def function_of(self, params: Any) -> RequestLogitsProcessor | None:
        """What it does to a row of a request with these SamplingParams; None for nothing.

        Raises ValueError where it refuses them.
        """
        self._class.validate_params(params)
        keeps_argmax = self._processor.is_argmax_invariant()
        if keeps_argmax and params.temperature == 0.0:
            return None
        temperature = params.temperature if keeps_argmax else 1.0

        def function(prompt: list[int], output: list[int], logits: Any) -> Any:
            import torch  # noqa: PLC0415 - optional

            processor = self._processor
            processor.update_state(BatchUpdate(0, [0], [], []))  # the row before
            processor.update_state(BatchUpdate(1, [], [(0, params, prompt, output)], []))
            rows = torch.from_numpy(logits)[None] / temperature
            return (processor.apply(rows)[0] * temperature).numpy()

        function.__name__ = self._class.__name__
        return function


def processor_classes(given: Any) -> list[type[Any]]:
    """The classes of LLM's `logits_processors`: themselves, or "module:Class".

    Raises ValueError for anything else.
    """
    if given is not None and (isinstance(given, str) or not isinstance(given, Sequence)):
        raise ValueError(f"logits_processors must be a list of classes, got {shown(given)}")
    return [_class_of(each) for each in given or ()]


def _class_of(value: Any) -> type[Any]:
    if isinstance(value, str):
        module, colon, name = value.partition(":")
        if not colon:
            raise ValueError(f'logits_processors holds {value!r}, which is no "module:Class"')
        value = functools.reduce(getattr, name.split("."), importlib.import_module(module))
    if not (isinstance(value, type) and hasattr(value, "update_state")):
        raise ValueError(
            "logits_processors must hold classes with vLLM's update_state() and apply(), got "
            f"{shown(value)}; give functions of one row as SamplingParams(logits_processors=[...])"
        )
    return value
