"""Runs methods over the same prompts, in turns, and measures each call."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from specdec_lab.evaluation.decoding_methods import Method
from specdec_lab.evaluation.method_report import Report, Sample, Workload
from specdec_lab.evaluation.prompts import Prompt
from specdec_native import _core
from specdec_native.checkpoints import hub
from specdec_native.checkpoints.layout import safetensors_files
from specdec_native.common.progress import show_stage
from specdec_native.engine import Engine
from specdec_native.requests.outputs import RequestOutput
from specdec_native.requests.sampling_params import SamplingParams

_MODEL_LEN = 2048
_BLOCK_SIZE = 16
_WARM_UP_TOKENS = 4
# An engine's memory as a multiple of its weight files, packed copies included; and the share of the
# machine's memory that engines may take.
_BYTES_OF_ENGINE = 1.5
_SHARE_OF_MEMORY = 0.5

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Task:
    """A workload and its prompts, those of each call together."""

    workload: Workload
    calls: Sequence[Sequence[Prompt]]


def make_tasks(
    prompts: Mapping[str, Sequence[Prompt]], batches: Sequence[int], temperatures: Sequence[float]
) -> list[Task]:
    """Every category of prompts at every batch size and temperature.

    The last call of a category is filled up with the category's first prompts.
    """
    return [
        Task(Workload(name, batch, temperature), _cut(found, batch))
        for batch, temperature, (name, found) in itertools.product(
            batches, temperatures, prompts.items()
        )
    ]


def _cut(prompts: Sequence[Prompt], batch: int) -> list[list[Prompt]]:
    starts = range(0, len(prompts), batch)
    return [[prompts[(start + i) % len(prompts)] for i in range(batch)] for start in starts]


@dataclasses.dataclass
class Runner:
    """Measures methods.

    Attributes:
        model: the model argument of Engine.
        methods: at least one; each gets its own engine.
        tasks: the work of each method.
        max_tokens: the limit of an answer.
        engine_options: keyword arguments of Engine.
        repeats: how often each call is repeated.
        on_load: called with the first engine and the seconds it took to load.
        on_sample: called with every sample as it is made.
    """

    model: str | os.PathLike[str]
    methods: Sequence[Method]
    tasks: Sequence[Task]
    max_tokens: int
    engine_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    repeats: int = 1
    on_load: Callable[[Engine, float], None] = lambda *_: None
    on_sample: Callable[[Sample], None] = lambda _: None

    def __post_init__(self) -> None:
        if not self.methods:
            raise ValueError("methods must not be empty")
        self._num_loaded = 0
        self._samples: dict[str, list[Sample]] = {method.name: [] for method in self.methods}

    def run_together(self) -> None:
        """All methods stay loaded and take turns call by call, so that drift of the machine affects
        all of them alike. The order changes from call to call."""
        with contextlib.ExitStack() as stack:
            engines = [(method, stack.enter_context(self._load(method))) for method in self.methods]
            for repeat in range(self.repeats):
                for i, (task, call) in enumerate(self._calls()):
                    for method, engine in rotated(engines, repeat + i):
                        self._measure(engine, method, task, call)

    def run_in_turns(self) -> None:
        """One method after the other, with one engine loaded at a time."""
        for method in self.methods:
            with self._load(method) as engine:
                for _, (task, call) in itertools.product(range(self.repeats), self._calls()):
                    self._measure(engine, method, task, call)

    @property
    def samples(self) -> list[Sample]:
        """The samples so far, in the order of the methods."""
        return [sample for method in self.methods for sample in self._samples[method.name]]

    def _calls(self) -> list[tuple[Task, int]]:
        return [(task, call) for task in self.tasks for call in range(len(task.calls))]

    def _load(self, method: Method) -> Engine:
        show_stage(f"loading an engine: {method.name}")
        start = time.perf_counter()
        engine = Engine(
            self.model,
            **{
                "max_model_len": _model_len(self.model),
                "enable_prefix_caching": False,  # a repeated prompt must cost its full time
                **self.engine_options,
                "speculative_config": method.speculative_config,
            },
        )
        if self._num_loaded == 0:
            self.on_load(engine, time.perf_counter() - start)
        self._num_loaded += 1
        first = self.tasks[0].calls[0][:1]
        ask(engine, first, [SamplingParams(temperature=0, max_tokens=_WARM_UP_TOKENS)])
        return engine

    def _measure(self, engine: Engine, method: Method, task: Task, call: int) -> None:
        temperature = task.workload.temperature
        first = call * task.workload.batch  # a request has the same seed with every method
        params = [
            SamplingParams(temperature=temperature, max_tokens=self.max_tokens, seed=first + i)
            for i in range(len(task.calls[call]))
        ]
        start = time.perf_counter()
        outputs = ask(engine, task.calls[call], params)
        seconds = time.perf_counter() - start
        sample = Sample(method.name, task.workload, call, seconds, outputs)
        self._samples[method.name].append(sample)
        self.on_sample(sample)


def ask(
    engine: Engine, prompts: Sequence[Prompt], params: Sequence[SamplingParams]
) -> list[RequestOutput]:
    """Answers to prompts, in the model's chat format where there is one."""
    if not engine.has_tokenizer or engine.tokenizer.chat_template is None:
        return engine.generate([p.text for p in prompts], list(params), use_tqdm=False)
    conversations = [[{"role": "user", "content": prompt.text}] for prompt in prompts]
    return engine.chat(conversations, list(params), use_tqdm=False)


def describe(engine: Engine, load_seconds: float) -> dict[str, Any]:
    """The fields of a Report about the target."""
    info = engine.model_info()
    fields = {
        field.name: getattr(info, field.name)
        for field in dataclasses.fields(Report)
        if hasattr(info, field.name)
    }
    return {**fields, "model": engine.model_directory.name, "load_seconds": load_seconds}


def fit_together(directory: Path, num_engines: int) -> bool:
    """Whether `num_engines` engines of a checkpoint fit into a CPU's memory at once."""
    devices = {device.name: device for device in _core.list_devices()}
    if any(name != "cpu" and not device.unusable for name, device in devices.items()):
        return False  # an engine takes most of a GPU's memory
    weights = sum(file.stat().st_size for file in safetensors_files(directory))
    needed = num_engines * weights * _BYTES_OF_ENGINE
    return needed <= _SHARE_OF_MEMORY * devices["cpu"].memory_bytes


def with_small_cache(model: Path, batch: int, engine_options: Mapping[str, Any]) -> dict[str, Any]:
    """Engine options with a KV cache for just `batch` requests, so that several engines fit.

    Cache sizes in `engine_options` are kept.
    """
    options = {"max_num_seqs": batch, **engine_options}
    length = engine_options.get("max_model_len") or _model_len(model)
    if length is None or not options.keys().isdisjoint(("num_kv_blocks", "kv_cache_memory_bytes")):
        return options
    blocks_of_each = -(-length // options.get("block_size", _BLOCK_SIZE)) + 1
    return {**options, "num_kv_blocks": options["max_num_seqs"] * blocks_of_each + 1}


def rotated(items: Sequence[T], by: int) -> list[T]:
    """The items from the by-th on, then those before."""
    by %= max(1, len(items))
    return [*items[by:], *items[:by]]


def _model_len(model: str | os.PathLike[str]) -> int | None:
    """A max_model_len for prompts and answers that keeps the cache small; None: the model's."""
    config = hub.resolve_model(model) / "config.json"
    longest = json.loads(config.read_text(encoding="utf-8")).get("max_position_embeddings")
    return _MODEL_LEN if isinstance(longest, int) and longest > _MODEL_LEN else None
