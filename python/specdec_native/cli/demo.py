"""What `specdec-native demo` runs: a few prompts, one at a time and together, decoded plainly and
with every method of speculation, measured."""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from specdec_native.checkpoints import hub
from specdec_native.checkpoints.model_registry import find_model
from specdec_native.engine import Engine
from specdec_native.requests.outputs import RequestOutput
from specdec_native.requests.sampling_params import SamplingParams
from specdec_native.speculation.speculative_config import parse_speculative_config

_BATCH = 8
_MODEL_LEN = 2048

_Tokens = dict[str, list[list[int]]]  # by workload, then by prompt


@dataclasses.dataclass(frozen=True)
class DemoPrompt:
    """A user's turn and what kind of task it is."""

    kind: str
    text: str


PROMPTS = (
    DemoPrompt("chat", "Why is the sky blue? Explain it to a ten-year-old in a few sentences."),
    DemoPrompt("code", "Write a Python function that returns the n-th Fibonacci number."),
    DemoPrompt(
        "edit",
        "Rename the variable `x` to `total` in this function. Answer with the code only.\n\n"
        "```python\n"
        "def mean(values):\n"
        "    x = 0.0\n"
        "    for value in values:\n"
        "        x += value\n"
        "    if not values:\n"
        '        raise ValueError("mean of nothing")\n'
        "    return x / len(values)\n"
        "```",
    ),
    DemoPrompt("chat", "Suggest three names for a small bakery and say what each one evokes."),
    DemoPrompt("code", "Write a SQL query that counts the orders of each customer in 2024."),
    DemoPrompt("chat", "What should I look at when I buy a used bicycle?"),
    DemoPrompt("code", "Write a C function that reverses a string in place."),
    DemoPrompt("chat", "Write a short poem about rain on a tin roof."),
)


@dataclasses.dataclass(frozen=True)
class Method:
    """A way of decoding: with a speculative_config, or plain."""

    name: str
    speculative_config: Mapping[str, Any] | None = None


PLAIN = Method("plain")
_DRAFT_TOKENS = 5
_FREE_DRAFT_TOKENS = 8
_NGRAM = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 5}
# Prompts come twice, alone and in the batch: without this the second answer would be drafted from
# the first one.
_SUFFIX = {"method": "suffix", "suffix_decoding_max_cached_requests": 0}
# Known models and a smaller one with the same vocabulary.
_DRAFT_MODELS = {"Qwen2.5-Coder-1.5B-Instruct": "Qwen2.5-Coder-0.5B-Instruct"}


def draft_model_for(model: str) -> str | None:
    """The known draft model of a known model, by name."""
    known = find_model(model) or find_model(os.path.basename(model.rstrip(os.sep)))
    return None if known is None else _DRAFT_MODELS.get(known.name)


def methods_for(model: str) -> list[Method]:
    """Plain decoding, which the others are compared with, and what there is for a model."""
    methods = [
        PLAIN,
        _speculative("ngram", _FREE_DRAFT_TOKENS, **_NGRAM),
        _speculative("suffix", _FREE_DRAFT_TOKENS, **_SUFFIX),
        _speculative("ngram+suffix", _FREE_DRAFT_TOKENS, drafters=[_NGRAM, _SUFFIX]),
    ]
    draft_model = draft_model_for(model)
    if draft_model is not None:
        draft = {"method": "draft_model", "model": draft_model}
        methods.append(_speculative("draft model", _DRAFT_TOKENS, **draft))
        methods.append(_speculative("suffix+draft", _DRAFT_TOKENS, drafters=[_SUFFIX, draft]))
    return methods


def compare_with(speculative_config: Mapping[str, Any]) -> list[Method]:
    """Plain decoding and one method."""
    drafters = parse_speculative_config(speculative_config, hub.find_config).drafters
    names = [drafter.method.replace("_", " ") for drafter in drafters]
    return [PLAIN, Method("+".join(names), speculative_config)]


def _speculative(name: str, num_tokens: int, **config: Any) -> Method:
    return Method(name, {**config, "num_speculative_tokens": num_tokens})


@dataclasses.dataclass
class Row:
    """One measurement."""

    method: str
    workload: str
    batch: int
    num_tokens: int
    seconds: float
    tokens_per_s: float
    first_token_ms: float  # median over the requests of the batch
    speedup: float  # tokens/s over the first method's
    acceptance_length: float | None  # tokens a step with drafts emits; None without speculation
    acceptance_rate: float | None  # share of the drafted tokens that was kept
    same_answers: bool  # as the first method's


@dataclasses.dataclass
class Answer:
    """What the first method answered to a prompt."""

    kind: str
    prompt: str
    text: str


@dataclasses.dataclass
class Report:
    """Everything a demo run found."""

    model: str
    architecture: str
    num_parameters: int
    dtype: str
    weight_format: str
    device: str
    isa: str
    num_threads: int
    load_seconds: float
    answers: list[Answer]
    rows: list[Row]


def run_demo(
    model: str | os.PathLike[str],
    *,
    max_tokens: int = 128,
    methods: Sequence[Method] = (PLAIN,),
    engine_options: Mapping[str, Any] | None = None,
    on_event: Callable[[Report], None] | None = None,
) -> Report:
    """Runs every method over the same workloads.

    Decoding is greedy. `on_event` sees the report whenever something was added to it.
    """
    report: Report | None = None
    expected: _Tokens = {}
    for method in methods:
        start = time.perf_counter()
        options = {
            "max_model_len": _model_len(model),
            "enable_prefix_caching": False,  # a repeated prompt must cost what it costs
            **(engine_options or {}),
            "speculative_config": method.speculative_config,
        }
        with Engine(model, **options) as engine:
            if report is None:
                report = _new_report(engine, time.perf_counter() - start)
                _notify(on_event, report)
            for row in _measure(engine, method.name, max_tokens, report, expected):
                report.rows.append(row)
                _notify(on_event, report)
    if report is None:
        raise ValueError("methods must not be empty")
    return report


def _measure(
    engine: Engine, method: str, max_tokens: int, report: Report, expected: _Tokens
) -> Iterator[Row]:
    """Runs the workloads. The first method's answers are added to `report` and its tokens to
    `expected`, which those of the others are compared with."""
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    _generate(engine, PROMPTS[:1], SamplingParams(temperature=0, max_tokens=4))  # warm-up
    firsts = [next(p for p in PROMPTS if p.kind == kind) for kind in ("chat", "code", "edit")]
    workloads = [(prompt.kind, [prompt]) for prompt in firsts]
    workloads.append(("mixed", list(PROMPTS[:_BATCH])))
    for workload, prompts in workloads:
        start = time.perf_counter()
        outputs = _generate(engine, prompts, params)
        seconds = time.perf_counter() - start
        tokens = [list(output.outputs[0].token_ids) for output in outputs]
        if workload not in expected:
            expected[workload] = tokens
            if len(prompts) == 1:
                report.answers.append(
                    Answer(prompts[0].kind, prompts[0].text, outputs[0].outputs[0].text)
                )
        num_tokens = sum(len(ids) for ids in tokens)
        tokens_per_s = num_tokens / seconds
        baseline = next((r.tokens_per_s for r in report.rows if r.workload == workload), None)
        length, rate = _acceptance(outputs)
        yield Row(
            method=method,
            workload=workload,
            batch=len(prompts),
            num_tokens=num_tokens,
            seconds=seconds,
            tokens_per_s=tokens_per_s,
            first_token_ms=1e3 * statistics.median(map(_first_token_latency, outputs)),
            speedup=1.0 if baseline is None else tokens_per_s / baseline,
            acceptance_length=length,
            acceptance_rate=rate,
            same_answers=tokens == expected[workload],
        )


def _acceptance(outputs: Sequence[RequestOutput]) -> tuple[float | None, float | None]:
    """Mean acceptance length and share of accepted tokens; None where nothing was speculated."""
    all_metrics = [o.metrics.speculative_decoding for o in outputs if o.metrics is not None]
    metrics = [m for m in all_metrics if m is not None]
    if not metrics:
        return None, None
    steps = sum(m.num_spec_steps for m in metrics)
    drafted = sum(m.num_draft_tokens for m in metrics)
    accepted = sum(m.num_accepted_draft_tokens for m in metrics)
    return (
        1.0 + accepted / steps if steps else 0.0,
        accepted / drafted if drafted else 0.0,
    )


def _generate(
    engine: Engine, prompts: Sequence[DemoPrompt], params: SamplingParams
) -> list[RequestOutput]:
    if not engine.has_tokenizer or engine.tokenizer.chat_template is None:
        return engine.generate([p.text for p in prompts], params, use_tqdm=False)
    conversations = [[{"role": "user", "content": prompt.text}] for prompt in prompts]
    return engine.chat(conversations, params, use_tqdm=False)


def _first_token_latency(output: RequestOutput) -> float:
    return output.metrics.first_token_latency if output.metrics is not None else 0.0


def _model_len(model: str | os.PathLike[str]) -> int | None:
    """Enough for the prompts and answers, so that the cache is small; None for what there is."""
    config = hub.resolve_model(model) / "config.json"
    longest = json.loads(config.read_text(encoding="utf-8")).get("max_position_embeddings")
    return _MODEL_LEN if isinstance(longest, int) and longest > _MODEL_LEN else None


def _new_report(engine: Engine, load_seconds: float) -> Report:
    info = engine.model_info()
    return Report(
        model=engine.model_directory.name,
        architecture=info.architecture,
        num_parameters=info.num_parameters,
        dtype=info.dtype,
        weight_format=info.weight_format,
        device=info.device,
        isa=info.isa,
        num_threads=info.num_threads,
        load_seconds=load_seconds,
        answers=[],
        rows=[],
    )


def _notify(on_event: Callable[[Report], None] | None, report: Report) -> None:
    if on_event is not None:
        on_event(report)
