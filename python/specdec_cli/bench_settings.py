"""The options of `specdec-native bench serve`, checked before anything runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec_lab.benchmark.client import CHAT, COMPLETIONS
from specdec_lab.benchmark.metrics import GOODPUT_METRICS
from specdec_native.common.checks import check_number

DATASETS = ("random", "custom")
ENDPOINTS = {"openai": COMPLETIONS, "openai-chat": CHAT}

_MAX_TEMPERATURE = 100.0


def parse_goodput(words: Sequence[str]) -> dict[str, float]:
    """Limits in milliseconds from words such as "ttft:500", several of which may be one string."""
    limits: dict[str, float] = {}
    for word in " ".join(words).split():
        name, colon, value = word.partition(":")
        if name not in GOODPUT_METRICS or not colon:
            raise ValueError(
                f"--goodput takes NAME:MILLISECONDS with the names {', '.join(GOODPUT_METRICS)}, "
                f"such as ttft:500; got {word}"
            )
        try:
            milliseconds: float | str = float(value)
        except ValueError:
            milliseconds = value
        limits[name] = check_number(f"--goodput {name}", milliseconds, minimum=0.0)
    return limits


def parse_bodies(texts: Sequence[str], num_servers: int) -> list[dict[str, Any]]:
    """The --extra-body of each server: one for all, or as many as there are servers."""
    if len(texts) > 1 and len(texts) != num_servers:
        raise ValueError(
            f"--extra-body is given {len(texts)} times for {num_servers} servers; give one for "
            "all, or one for each --base-url"
        )
    bodies = [_parse_object("--extra-body", text) for text in texts] or [{}]
    return bodies * num_servers if len(bodies) == 1 else bodies


def endpoint_of(backend: str, endpoint: str | None) -> str:
    """The path that requests go to."""
    if backend not in ENDPOINTS:
        raise ValueError(f"--backend must be one of {', '.join(ENDPOINTS)}, got {backend}")
    path = ENDPOINTS[backend] if endpoint is None else endpoint
    if not path.rstrip("/").endswith(("/completions", "/chat/completions")):
        raise ValueError(
            f"--endpoint must end in /completions or /chat/completions, got {endpoint}"
        )
    return path if path.startswith("/") else f"/{path}"


def dataset_of(name: str | None, files: Sequence[Path]) -> str:
    """The kind of prompts; "custom" for files without a name."""
    if name is None:
        return "custom" if files else "random"
    if name not in DATASETS:
        raise ValueError(f"--dataset-name must be one of {', '.join(DATASETS)}, got {name}")
    if name == "custom" and not files:
        raise ValueError("--dataset-name custom needs --dataset-path with a .jsonl file")
    if name == "random" and files:
        raise ValueError("--dataset-path is for --dataset-name custom; leave one of them out")
    return name


def check_positive(name: str, value: float) -> None:
    """Refuses values that are not above 0; infinity is allowed."""
    if not value > 0:
        raise ValueError(f"{name} must be greater than 0, got {value:g}")


def check_temperature(value: float) -> None:
    """Refuses temperatures that no sampler accepts."""
    check_number("--temperature", value, minimum=0.0, maximum=_MAX_TEMPERATURE)


def check_engine_options(options: Mapping[str, Any]) -> None:
    """Refuses engine options if a server is measured: the server has its own."""
    for name in options:
        raise ValueError(
            f"--{name.replace('_', '-')} is for the engine that --in-process makes; a server "
            "behind --base-url was started with its own"
        )


def server_names(urls: Sequence[str], bodies: Sequence[Mapping[str, Any]]) -> list[str]:
    """A distinct name for each server."""
    differ = any(body != bodies[0] for body in bodies)
    names: list[str] = []
    for url, body in zip(urls, bodies, strict=True):
        name = f"{url} {json.dumps(body)}" if differ and body else url
        num_before = sum(name == other.partition(" #")[0] for other in names)
        names.append(f"{name} #{num_before + 1}" if num_before else name)
    return names


def with_salts(urls: Sequence[str], bodies: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The bodies; a server that is listed several times gets a cache_salt for each entry.

    So the next entry does not find the prompts in the prefix cache.
    """
    return [
        {"cache_salt": f"bench-{i}", **body} if urls.count(url) > 1 else dict(body)
        for i, (url, body) in enumerate(zip(urls, bodies, strict=True))
    ]


def _parse_object(option: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{option} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{option} must be a JSON object, got {text}")
    return value
