"""Compares this engine with every peer that is installed, interleaved in one run.

    python -m bench.e2e.compare --model DIR_OR_NAME [--draft-model DIR_OR_NAME]
        [--head DIR_OR_NAME]... [--json FILE]
    python -m bench.e2e.compare --smoke --model DIR_OR_NAME
    python -m bench.e2e.compare --list
    python -m bench.e2e.compare --report FILE...

Every contestant (an engine, its way of decoding, a precision) is a process of its own, stopped
while another generates. All generate greedily the same number of tokens from the same token ids,
with the same number of threads and nothing cached from earlier prompts. Run it from the
repository's root.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from specdec_native.checkpoints import hub
from specdec_native.checkpoints.draft_config import read_draft_config
from specdec_native.checkpoints.head_registry import heads_of
from specdec_native.checkpoints.model_registry import find_model
from specdec_native.speculation.methods import HEADS, checkpoint_method

from . import machine, report
from .client import Worker
from .peers import AUTO, ISAS, PEERS, Peer, head_method
from .protocol import STORED, Setup
from .results import OURS, PLAIN, Contestant, Result, make_rows
from .runner import Player, Runner
from .workloads import DEFAULT_PROMPTS, LONG, WORKLOADS, Cell, make_cells, read_prompts

_ROOT = Path(__file__).resolve().parents[3]
_ANY_LOAD = 1e9  # cores: a short run drops nothing
_SLACK_TOKENS = 32  # extra room in the context for drafts past the last token


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    cache = Path.home() / ".cache/specdec_native"
    parser = argparse.ArgumentParser(
        prog="python -m bench.e2e.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", default="SmolLM2-135M-Instruct", help="directory or name (%(default)s)")
    add("--draft-model", help="a smaller model with its vocabulary")
    add(
        "--head",
        action="append",
        default=[],
        metavar="DIR_OR_NAME",
        help="a draft head, repeatable; those that come with this engine if left out",
    )
    add(
        "--precision",
        nargs="+",
        default=["bf16"],
        choices=["bf16", "int8", "int4", STORED],
        help="of the weights; stored: as the GGUF files that --model and --draft-model then are",
    )
    add(
        "--isa",
        nargs="+",
        default=[AUTO],
        choices=ISAS,
        help="instruction sets to hold engines to; of the peers those that can be held to them",
    )
    add("--workloads", nargs="+", default=[*WORKLOADS, LONG], choices=[*WORKLOADS, LONG])
    add("--batch", nargs="+", type=int, default=[1, 8, 32])
    add(
        "--contestants",
        nargs="+",
        default=["*"],
        metavar="PATTERN",
        help="those to run, such as 'specdec:*' 'llama.cpp:ngram*' '*:plain:bf16'",
    )
    add("--num-prompts", type=int, default=3, help="of each workload at batch 1 (%(default)s)")
    add("--num-tokens", type=int, default=128, help="new tokens of each prompt (%(default)s)")
    add("--max-prompt-tokens", type=int, default=1024, help="longer prompts are left out")
    add("--long-prompt-tokens", type=int, default=1000, help="of the workload 'long'")
    add("--repeats", type=int, default=3)
    add("--num-threads", type=int, default=len(os.sched_getaffinity(0)))
    add("--prompts", type=Path, default=DEFAULT_PROMPTS, help="a directory of *.jsonl files")
    add(
        "--peer", action="append", default=[], metavar="NAME=PATH", help="where a peer is installed"
    )
    add("--peers-dir", type=Path, default=cache / "peers", help="else in DIR/NAME (%(default)s)")
    add("--artifacts", type=Path, default=cache / "compare", help="for converted checkpoints")
    add("--max-foreign-cores", type=float, default=0.1, help="used by others, or it is dropped")
    add("--retries", type=int, default=2, help="of a call that was dropped")
    add("--apart", action="store_true", help="one loaded at a time: all do not fit in memory")
    add("--read-bandwidth", type=Path, help="the benchmark program; else found in build*/")
    add("--json", type=Path, help="written after every round")
    add("--smoke", action="store_true", help="a short run that shows that everything works")
    add("--list", action="store_true", help="only say what is installed and what would run")
    add("--report", type=Path, nargs="+", metavar="FILE", help="only put results together")
    options = parser.parse_args(arguments)
    if options.smoke:
        options.batch, options.workloads = [1, 2], ["edit"]
        options.num_prompts, options.num_tokens, options.repeats = 1, 16, 1
        options.max_prompt_tokens, options.max_foreign_cores = 192, _ANY_LOAD
    return options


class Comparison:
    """A run, from its options."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Finds the peers."""
        self._options = options
        given = dict(entry.split("=", 1) for entry in options.peer)
        unknown = given.keys() - {peer.name for peer in PEERS}
        if unknown:
            names = ", ".join(peer.name for peer in PEERS)
            raise SystemExit(f"--peer: unknown {', '.join(sorted(unknown))}; known: {names}")
        self._homes = {
            peer.name: Path(given.get(peer.name, options.peers_dir / peer.name)).absolute()
            for peer in PEERS
        }
        asked = [(peer, isa) for peer in PEERS for isa in options.isa if isa in peer.isas]
        found = {(p.name, isa): p.find(self._homes[p.name], isa) for p, isa in asked}
        self._pythons = {key: python for key, python in found.items() if python is not None}
        self.absent = {
            peer.name if isa == AUTO else f"{peer.name} ({isa})": peer.install_commands(
                self._homes[peer.name], isa
            )
            for peer, isa in asked
            if (peer.name, isa) not in self._pythons
        }
        if STORED in options.precision:
            _check_files(options)
        self._heads = _find_heads(options.head, options.model)
        self.contestants = [
            contestant
            for precision in options.precision
            for isa in options.isa
            for peer in PEERS
            if (peer.name, isa) in self._pythons and precision in peer.precisions
            for contestant in self._contestants_of(peer, precision, isa)
        ]

    def _contestants_of(self, peer: Peer, precision: str, isa: str) -> list[Contestant]:
        names = [
            name
            for name in peer.speculations
            if (self._options.draft_model is not None or "draft" not in name)
            and head_method(name) in (None, *self._heads)
        ]
        return [
            contestant
            for contestant in (Contestant(peer.name, name, precision, isa) for name in names)
            if any(fnmatch.fnmatch(f"{contestant}", f"{p}*") for p in self._options.contestants)
        ]

    def run(self) -> Result:
        """Measures everything."""
        options = self._options
        model = hub.resolve_model(options.model, quantization=_quantization(options.precision))
        cells = make_cells(
            read_prompts(options.prompts),
            model,
            workloads=options.workloads,
            batches=options.batch,
            num_prompts=options.num_prompts,
            num_tokens=options.num_tokens,
            max_prompt_tokens=options.max_prompt_tokens,
            long_prompt_tokens=options.long_prompt_tokens,
        )
        bytes_read = machine.weight_bytes(model)
        if STORED in options.precision:
            bytes_read[STORED] = Path(options.model).stat().st_size
        result = Result(
            machine={
                "model": Path(options.model).stem if STORED in options.precision else model.name,
                **machine.describe_machine(options.num_threads),
                "loaded": "one at a time" if options.apart else "all at once",
            },
            absent=self.absent,
            weight_bytes=bytes_read,
            max_foreign_cores=options.max_foreign_cores,
        )
        runner = Runner(
            load=self._loader(model, cells, result),
            can_run=self._can_run,
            result=result,
            retries=options.retries,
            measure_bandwidth=self._bandwidth_probe(result),
            on_progress=lambda text: print(text, file=sys.stderr, flush=True),
            on_round=lambda: self._save(result),
        )
        run = runner.run_apart if options.apart else runner.run_together
        run(self.contestants, cells, options.repeats)
        self._save(result)
        return result

    def _can_run(self, contestant: Contestant, cell: Cell) -> bool:
        peer = next(peer for peer in PEERS if peer.name == contestant.peer)
        is_measured = cell.workload != LONG or contestant.speculation == PLAIN
        return cell.batch <= peer.speculations[contestant.speculation] and is_measured

    def _loader(
        self, model: Path, cells: Sequence[Cell], result: Result
    ) -> Callable[[Contestant], Player]:
        options = self._options
        longest = max(len(prompt) + cell.num_tokens for cell in cells for prompt in cell.prompts)
        max_model_len = min(longest + _SLACK_TOKENS, _max_positions(model))

        def load(contestant: Contestant) -> Player:
            peer = next(peer for peer in PEERS if peer.name == contestant.peer)
            home = self._homes[peer.name]
            artifacts = options.artifacts.absolute() / peer.name
            artifacts.mkdir(parents=True, exist_ok=True)
            worker = Worker(
                self._pythons[peer.name, contestant.isa],
                peer.module,
                {**peer.environment(home, options.num_threads), **peer.isas[contestant.isa]},
                artifacts / "worker.log",
                counts_itself=peer.in_worker,
            )
            try:
                result.versions[peer.name] = worker.load(
                    Setup(
                        model=_checkpoint(options.model, contestant.precision),
                        draft_model=_checkpoint(options.draft_model, contestant.precision),
                        precision=contestant.precision,
                        speculation=contestant.speculation,
                        isa=contestant.isa,
                        num_threads=options.num_threads,
                        max_model_len=max_model_len,
                        max_batch=max(
                            cell.batch for cell in cells if self._can_run(contestant, cell)
                        ),
                        home=str(home),
                        artifacts=str(artifacts),
                        head=self._heads.get(head_method(contestant.speculation) or "", ""),
                    )
                )
            except BaseException:
                worker.close()
                raise
            return worker

        return load

    def _bandwidth_probe(self, result: Result) -> Callable[[], None]:
        program = self._options.read_bandwidth or machine.find_read_bandwidth(_ROOT)
        footprint = int(result.weight_bytes["bf16"])

        def probe() -> None:
            if program is not None:
                result.bandwidths.append(
                    machine.read_bandwidth(program, footprint, self._options.num_threads)
                )

        return probe

    def _save(self, result: Result) -> None:
        if self._options.json is not None:
            report.write_json(result, self._options.json)


def _check_files(options: argparse.Namespace) -> None:
    for flag, name in (("--model", options.model), ("--draft-model", options.draft_model)):
        if name is not None and not (name.endswith(".gguf") and Path(name).is_file()):
            raise SystemExit(f"{flag}: --precision {STORED} is about GGUF files; {name} is none")


def _quantization(precisions: Sequence[str]) -> str:
    """The quantization of a GGUF file's conversion for peers that need floating point."""
    return "auto" if set(precisions) == {STORED} else "none"


def _checkpoint(name: str | None, precision: str) -> str:
    """The checkpoint that contestants of a precision load; "" for none."""
    if name is None:
        return ""
    is_stored = precision == STORED
    return str(
        (Path(name) if is_stored else hub.resolve_model(name, quantization="none")).absolute()
    )


def _find_heads(given: Sequence[str], model: str) -> dict[str, str]:
    """The directories of draft heads by their methods: those given, else the model's known ones."""
    known = find_model(model)
    names = list(given) or ([] if known is None else [h.name for h in heads_of(known.name)])
    heads: dict[str, str] = {}
    for name in names:
        directory = hub.resolve_model(name)
        method = checkpoint_method(name, read_draft_config(directory))
        if method not in HEADS:
            raise SystemExit(f"--head: {name} is not a draft head")
        if heads.setdefault(method, str(directory.absolute())) != str(directory.absolute()):
            raise SystemExit(f"--head: {name} is a second head for {method}; give one of each")
    return heads


def _max_positions(model: Path) -> int:
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    return int(config["max_position_embeddings"])


def _print_plan(comparison: Comparison) -> None:
    for contestant in comparison.contestants:
        print(contestant)
    for name, commands in comparison.absent.items():
        print(f"absent: {name}", *(f"    {command}" for command in commands), sep="\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what the command line says. 1 if this engine failed or speculation changed an answer."""
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # workers are ended on the way out
    if options.report:
        result = report.read_json(options.report[0])
        for file in options.report[1:]:
            result.add(report.read_json(file))
        if options.json is not None:
            report.write_json(result, options.json)
    else:
        comparison = Comparison(options)
        if options.list:
            _print_plan(comparison)
            return 0
        result = comparison.run()
    print(report.render(result))
    ours = [row for row in make_rows(result) if row.contestant.peer == OURS]
    changed = [str(row.contestant) for row in ours if row.same_as_plain is False]
    if changed:
        print(f"answers differ from plain decoding: {', '.join(changed)}", file=sys.stderr)
    failed = [name for name in result.failed if name.startswith(f"{OURS}:")]
    return 1 if changed or failed else 0


if __name__ == "__main__":
    sys.exit(main())
