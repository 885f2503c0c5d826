"""Compares predictions of `specdec-native plan --devices` with measured passes of several ranks on
the CPU.

    python -m bench.e2e.ranks_check --json FILE

Models are made up, of random weights. One rank measures how fast a thread reads weights, alone and
beside another; a model of almost nothing but exchanges measures the link. From these follow the
passes of two ranks, of two stages (one request, and two groups of them), and of a draft model on
one and two ranks, which are measured in turns with the others. So are whole steps of 2 ranks, or 2
stages, of 1 thread and of 1 rank of 2 threads. Exits with 1 if a prediction is further off than
--tolerance or the ratio of 2 ranks is below --least. It needs two cores to itself.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec_lab.planning.ranks import Link, RankCosts
from specdec_lab.planning.roofline import Machine
from specdec_native import Engine, SamplingParams, _core

_PROMPT_TOKENS = 16
_UNCOUNTED_STEPS = 2
_GROUP = 4  # requests that a stage works on at a time
_OTHER_PARTS = ("schedule", "sample", "commit")
_TARGET = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 8,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "eos_token_id": 0,
}
_DRAFT = _TARGET | {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
}
_EXCHANGES = _TARGET | {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}
# The half of it that each of two ranks computes.
_HALF_OF_EXCHANGES = _EXCHANGES | {
    "vocab_size": 128,
    "intermediate_size": 64,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
}


@dataclasses.dataclass(frozen=True)
class Seconds:
    """Seconds of a step: the target's pass, drafting, and the rest."""

    forward: float
    draft: float
    rest: float

    @property
    def step(self) -> float:
        """All of it."""
        return self.forward + self.draft + self.rest


Turns = Mapping[str, Sequence[Sequence[Seconds]]]
"""By setting, the steps of each turn."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """An engine and the number of requests that decode together, in so many steps at a time."""

    engine: Engine
    batch: int
    groups: int = 1

    def turn(self, num_steps: int) -> list[Seconds]:
        """Seconds of steps in which all requests decode."""
        params = SamplingParams(temperature=0, max_tokens=1000, ignore_eos=True, detokenize=False)
        prompts = [
            [1 + (7 * r + i) % 200 for i in range(_PROMPT_TOKENS)] for r in range(self.batch)
        ]
        ids = [self.engine.add_request(prompt, params) for prompt in prompts]
        waiting = set(ids)
        while waiting:
            waiting -= {output.request_id for output in self.engine.step()}
        for _ in range(_UNCOUNTED_STEPS):
            self.engine.step()
        steps = []
        last = self.engine.stats()
        for _ in range(num_steps):
            for _ in range(self.groups):
                self.engine.step()
            now = self.engine.stats()
            rest = sum(
                getattr(now, f"{part}_seconds") - getattr(last, f"{part}_seconds")
                for part in _OTHER_PARTS
            )
            forward = now.forward_seconds - last.forward_seconds
            steps.append(Seconds(forward, now.draft_seconds - last.draft_seconds, rest))
            last = now
        for request_id in ids:
            self.engine.abort(request_id)
        return steps


def fastest(turns: Sequence[Sequence[Seconds]]) -> Seconds:
    """The fastest time of each part, that is, the one least disturbed by other processes."""
    steps = [step for turn in turns for step in turn]
    parts = (min(getattr(step, name) for step in steps) for name in ("forward", "draft", "rest"))
    return Seconds(*parts)


def median_step(turn: Sequence[Seconds]) -> float:
    """Seconds of all parts."""
    return statistics.median(step.step for step in turn)


def measure(settings: dict[str, Setting], num_rounds: int, num_steps: int) -> Turns:
    """By setting, a turn of each round. Every other round goes backwards."""
    found: dict[str, list[list[Seconds]]] = {name: [] for name in settings}
    for round_number in range(num_rounds + 1):  # the first warms up
        names = list(settings)
        for name in names if round_number % 2 else reversed(names):
            steps = settings[name].turn(num_steps)
            if round_number:
                found[name].append(steps)
    return found


class Checker:
    """Makes engines, measures them in turns, and predicts several ranks' times from one rank's."""

    def __init__(
        self, root: Path, options: argparse.Namespace, stack: contextlib.ExitStack
    ) -> None:
        self._options = options
        self._stack = stack
        self._directories = {}
        configs = {
            "target": self._target,
            "draft": _DRAFT,
            "exchanges": _EXCHANGES,
            "half": _HALF_OF_EXCHANGES,
        }
        for name, config in configs.items():
            self._directories[name] = root / name
            self._directories[name].mkdir()
            (root / name / "config.json").write_text(json.dumps(config), encoding="utf-8")

    @property
    def _target(self) -> dict[str, Any]:
        return _TARGET | {"num_hidden_layers": self._options.layers}

    def measure(self) -> Turns:
        """All settings in turns."""
        rows = self._options.drafted_tokens + 1
        kinds = self._options.backends
        one = {n: self._engine("target", num_threads=n) for n in (1, 2)}
        settings = {
            "1 rank of 1 thread": Setting(one[1], 1),
            "1 rank of 2 threads": Setting(one[2], 1),
            "1 rank of 2 threads, rows of drafts": Setting(one[2], rows),
            "no exchanges": Setting(self._engine("half"), 1),
        }
        settings["1 rank of 2 threads, a group"] = Setting(one[2], _GROUP)
        settings["1 rank of 2 threads, two groups"] = Setting(one[2], 2 * _GROUP)
        for kind in kinds:
            two = {"distributed_executor_backend": kind, "tensor_parallel_size": 2}
            settings[f"TP 2, {kind}"] = Setting(self._engine("target", **two), 1)
            settings[f"exchanges, {kind}"] = Setting(self._engine("exchanges", **two), 1)
            stages = {"distributed_executor_backend": kind, "pipeline_parallel_size": 2}
            pipeline = self._engine("target", **stages)
            settings[f"PP 2, {kind}"] = Setting(pipeline, 1)
            settings[f"PP 2, {kind}, two groups"] = Setting(pipeline, 2 * _GROUP, groups=2)
        two = {"distributed_executor_backend": kinds[-1], "tensor_parallel_size": 2}
        for size in (1, 2):
            speculation = {
                "method": "draft_model",
                "model": str(self._directories["draft"]),
                "num_speculative_tokens": self._options.drafted_tokens,
                "draft_length_policy": "fixed",
                "draft_tensor_parallel_size": size,
                "quantization": self._options.quantization,
                "rejection_sample_method": "synthetic",
                "synthetic_acceptance_rates": [0.7] * self._options.drafted_tokens,
            }
            engine = self._engine("target", **two, speculative_config=speculation)
            settings[f"draft on {size}, {kinds[-1]}"] = Setting(engine, 1)
        return measure(settings, self._options.rounds, self._options.steps)

    def _engine(self, name: str, **more: Any) -> Engine:
        engine = Engine(
            self._directories[name],
            load_format="dummy",
            skip_tokenizer_init=True,
            max_num_seqs=16,
            max_model_len=1024,
            num_kv_blocks=256,
            quantization=self._options.quantization,
            **{"num_threads": 1, **more},
        )
        return self._stack.enter_context(engine)

    def report(self, found: Turns) -> dict[str, Any]:
        """Rows of predicted and measured passes, and what predictions are made from."""
        best = {name: fastest(turns) for name, turns in found.items()}
        rows = self._options.drafted_tokens + 1
        whole = self._share("target", 1)
        alone = _machine(whole, best["1 rank of 1 thread"].forward, 1)
        both = _machine(whole, best["1 rank of 2 threads"].forward, 1)
        both_rows = _machine(whole, best["1 rank of 2 threads, rows of drafts"].forward, rows)
        both_group = _machine(whole, best["1 rank of 2 threads, a group"].forward, _GROUP)
        beside, beside_rows = _half(both), _half(both_rows)
        links, lines = {}, []
        for kind in self._options.backends:
            exchanged = self._share("exchanges", 2).num_exchanges + 2  # and the leader's calls
            more = best[f"exchanges, {kind}"].forward - best["no exchanges"].forward
            links[kind] = Link(max(0.0, more / exchanged), alone.bandwidth)
            pair = RankCosts(beside, links[kind], self._share("target", 2))
            lines.append(self._line(f"TP 2, {kind}", "forward", pair.step_seconds(1, 0, 0), best))
            stages = RankCosts(alone, links[kind], whole, num_stages=2)
            lines.append(self._line(f"PP 2, {kind}", "forward", stages.step_seconds(1, 0, 0), best))
            busy = dataclasses.replace(stages, machine=_half(both_group))
            name = f"PP 2, {kind}, two groups"
            lines.append(self._line(name, "forward", busy.step_seconds(2 * _GROUP, 0, 0), best))
        kind = self._options.backends[-1]
        verifying = RankCosts(beside_rows, links[kind], self._share("target", 2))
        for size, machine in ((1, alone), (2, beside)):
            name = f"draft on {size}, {kind}"
            reading = Machine(machine.bandwidth, math.inf)  # a row or two wait for memory
            drafting = RankCosts(
                reading, links[kind], whole, drafter=self._share("draft", size)
            ).draft_seconds(1, rows - 1, 0)
            lines.append(self._line(name, "draft", drafting, best))
            lines.append(self._line(name, "forward", verifying.step_seconds(1, rows - 1, 0), best))
        return {
            "models": {"target": self._target, "draft": _DRAFT},
            "quantization": self._options.quantization,
            "bandwidth": {"alone": alone.bandwidth, "two threads": both.bandwidth},
            "latency": {kind: link.latency for kind, link in links.items()},
            "rows": lines,
            "turns": {
                name: [[dataclasses.asdict(step) for step in turn] for turn in turns]
                for name, turns in found.items()
            },
            "speed_of_2_ranks": {
                kind: _speed(found["1 rank of 2 threads"], found[f"TP 2, {kind}"])
                for kind in self._options.backends
            },
            "speed_of_2_stages": {
                kind: _speed(
                    found["1 rank of 2 threads, two groups"], found[f"PP 2, {kind}, two groups"]
                )
                for kind in self._options.backends
            },
        }

    def _share(self, name: str, size: int) -> _core.ModelFacts:
        directory = str(self._directories[name])
        shares = _core.model_facts(directory, quantization=self._options.quantization)
        return next(facts for facts in shares if facts.num_ranks == size)

    @staticmethod
    def _line(name: str, part: str, predicted: float, best: dict[str, Seconds]) -> dict[str, Any]:
        measured = getattr(best[name], part)
        return {
            "setting": name,
            "part": part,
            "predicted": predicted,
            "measured": measured,
            "error": predicted / measured - 1,
        }


def _machine(model: _core.ModelFacts, seconds: float, rows: int) -> Machine:
    """The rates of a pass over `rows` rows; used for other passes with as many rows."""
    return Machine(model.pass_bytes(rows, rows, 0) / seconds, model.pass_flops(rows, 0) / seconds)


def _speed(one: Sequence[Sequence[Seconds]], other: Sequence[Sequence[Seconds]]) -> float:
    """The speed of `other` relative to `one`: median of the turns."""
    return statistics.median(
        median_step(turn) / median_step(beside) for turn, beside in zip(one, other, strict=True)
    )


def _half(machine: Machine) -> Machine:
    return Machine(machine.bandwidth / 2, machine.flops / 2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--layers", type=int, default=8, help="of the target")
    parser.add_argument("--quantization", default="int8", choices=["none", "int8", "int4"])
    parser.add_argument("--backends", nargs="+", default=["threads", "mp"])
    parser.add_argument("--drafted-tokens", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10, help="of a turn")
    parser.add_argument("--tolerance", type=float, default=0.15)
    parser.add_argument("--least", type=float, default=0.9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as root, contextlib.ExitStack() as stack:
        checker = Checker(Path(root), options, stack)
        found = checker.measure()
        report = checker.report(found)
    for kind, latency in report["latency"].items():
        print(f"link of {kind}: {1e6 * latency:.1f} us")
    for name, rate in report["bandwidth"].items():
        print(f"weights are read at {rate / 1e9:.1f} GB/s, {name}")
    for row in report["rows"]:
        print(
            f"{row['setting']:20s} {row['part']:8s} predicted {1e3 * row['predicted']:7.2f} ms, "
            f"measured {1e3 * row['measured']:7.2f} ms ({row['error']:+.1%})"
        )
    for kind, speed in report["speed_of_2_ranks"].items():
        print(f"2 ranks of 1 thread ({kind}) are {speed:.3f} times as fast as 1 rank of 2 threads")
    for kind, speed in report["speed_of_2_stages"].items():
        print(f"2 stages of 1 thread ({kind}) are {speed:.3f} times as fast with two groups")
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    worst = max(abs(row["error"]) for row in report["rows"])
    slowest = min(report["speed_of_2_ranks"].values())
    print(f"furthest off: {worst:.1%}")
    return int(worst > options.tolerance or slowest < options.least)


if __name__ == "__main__":
    sys.exit(main())
