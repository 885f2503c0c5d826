"""Logits processor classes that work on a batch, as vLLM's do: LLM(logits_processors=[...]).

The engine processes one row at a time, in any order, drafted tokens included. So a processor sees a
batch of one request, which is new for every row: its state has to follow from the parameters, the
prompt and the output tokens that it is given with the row.
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
    """The changes of a batch, in the order in which a processor has to apply them.

    Attributes:
        batch_size: number of requests.
        removed: rows of requests that have left.
        added: row, SamplingParams, prompt token ids and output token ids of each new request.
        moved: the rows before and after of requests that have moved.
    """

    batch_size: int
    removed: Sequence[int]
    added: Sequence[tuple[int, Any, list[int] | None, list[int]]]
    moved: Sequence[tuple[int, int, MoveDirectionality]]


class LogitsProcessor:
    """The base class that vLLM's processors derive from.

    update_state() is told of the requests; apply() then changes the logits, a torch tensor
    [requests, vocabulary] in float32.
    """

    def __init__(self, vllm_config: VllmConfig, device: Any, is_pin_memory: bool) -> None:
        """`device` is torch's, and always the CPU."""

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Raises ValueError for parameters of a request that it cannot apply."""

    def is_argmax_invariant(self) -> bool:
        """Whether it never changes which token is likeliest; then it runs after the temperature."""
        raise NotImplementedError

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Applies the changes of the batch; None if nothing changed."""
        raise NotImplementedError

    def apply(self, logits: Any) -> Any:
        """The logits changed, perhaps in place."""
        raise NotImplementedError


class AdapterLogitsProcessor(LogitsProcessor):
    """A processor made of functions for one row each; new_req_logits_processor() makes them."""

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
    """Turns a vLLM processor into functions of one row."""

    def __init__(self, processor_class: type[Any], vllm_config: VllmConfig) -> None:
        import torch  # noqa: PLC0415 - optional

        self._class = processor_class
        self._processor = processor_class(vllm_config, torch.device("cpu"), False)

    def function_of(self, params: Any) -> RequestLogitsProcessor | None:
        """The function for rows of a request with these SamplingParams; None if it does nothing.

        Raises ValueError where the processor refuses the parameters.
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
    """The classes that LLM's `logits_processors` names: a class itself, or "module:Class".

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
