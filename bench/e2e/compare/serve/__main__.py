"""Streamed tokens per second through HTTP.

    python -m bench.e2e.compare.serve --tokenizer-of DIR --peers vllm llama.cpp
    python -m bench.e2e.compare.serve --model DIR

The first runs a tiny model beside other servers, the second a model beside Engine.generate. All
take turns in every round; ratios are of one round, and their median is shown.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from specdec_native import Engine, SamplingParams

from ..machine import describe_machine
from .servers import MODEL, SERVERS, start
from .streams import flood, together
from .tiny_checkpoint import make

_PROMPT = "The quick brown fox"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a checkpoint, beside Engine.generate")
    parser.add_argument("--tokenizer-of", type=Path, help="where the tiny model's text is from")
    parser.add_argument("--peers", nargs="*", default=[], choices=[*SERVERS][1:])
    parser.add_argument("--work", type=Path, default=Path("build/bench-serve"))
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    rows = beside_engine(options) if options.model else beside_servers(options)
    for row in rows:
        print(json.dumps(row))
    if options.json:
        result = {"machine": describe_machine(options.threads), "rows": rows}
        options.json.write_text(json.dumps(result, indent=1) + "\n")


def body_of(num_tokens: int) -> dict[str, Any]:
    return {
        "model": MODEL,
        "prompt": _PROMPT,
        "max_tokens": num_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }


def beside_servers(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Tokens per second of each server, and ratios to ours."""
    if options.tokenizer_of is None:
        raise SystemExit("--tokenizer-of: give a checkpoint such as SmolLM2's")
    model = make(options.tokenizer_of, options.work / "tiny")
    body = body_of(options.tokens)
    slots = max(options.connections)
    names = ["specdec_native", *options.peers]
    servers = []
    try:
        for name in names:
            log = options.work / f"{name}.log"
            servers.append(start(name, model, slots, options.threads, log))
            answer = servers[-1].post("/v1/completions", body)
            if answer["usage"]["completion_tokens"] != options.tokens:
                raise RuntimeError(f"{name}: {answer['usage']}")
        rows = []
        for connections in options.connections:
            rates: dict[str, list[float]] = {name: [] for name in names}
            for _ in range(options.rounds):
                for server in servers:
                    flood(server.port, connections, 1, body)
                    answers = flood(server.port, connections, options.seconds, body)
                    rates[server.name].append(answers * options.tokens)
            rows.append(_row(connections, rates))
            print(json.dumps(rows[-1]), flush=True)
        return rows
    finally:
        for server in servers:
            server.close()


def beside_engine(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Tokens per second through HTTP and by Engine.generate in this process."""
    slots = max(options.connections)
    log = options.work / "specdec_native.common.log"
    server = start("specdec_native", options.model, slots, options.threads, log)
    try:
        engine = Engine(
            options.model,
            num_threads=options.threads,
            max_num_seqs=slots,
            max_model_len=2048,
            enable_prefix_caching=False,
        )
        params = SamplingParams(temperature=0, max_tokens=options.tokens, ignore_eos=True)
        rows = []
        for connections in options.connections:
            rates: dict[str, list[float]] = {"specdec_native": [], "Engine.generate": []}
            num_tokens = connections * options.tokens
            for round_number in range(options.rounds + 1):  # the first warms up
                begin = time.perf_counter()
                engine.generate([_PROMPT] * connections, params, use_tqdm=False)
                offline = time.perf_counter() - begin
                online = together(server.port, [body_of(options.tokens)] * connections)
                if round_number:
                    rates["Engine.generate"].append(num_tokens / offline)
                    rates["specdec_native"].append(num_tokens / online)
            rows.append(_row(connections, rates))
            print(json.dumps(rows[-1]), flush=True)
        return rows
    finally:
        server.close()


def _row(connections: int, rates: dict[str, list[float]]) -> dict[str, Any]:
    ours = rates["specdec_native"]
    ratios = {
        name: round(statistics.median(a / b for a, b in zip(ours, theirs, strict=True)), 3)
        for name, theirs in rates.items()
        if name != "specdec_native"
    }
    return {
        "connections": connections,
        "tokens_per_second": {name: [round(r) for r in values] for name, values in rates.items()},
        "times_as_fast_as": ratios,
    }


if __name__ == "__main__":
    main()
