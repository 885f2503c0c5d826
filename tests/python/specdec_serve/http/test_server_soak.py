"""A server that has answered for long holds no more than one that has just begun."""

import asyncio
import contextlib
import dataclasses
import gc
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from hostile_requests import RequestMaker
from server_world import World, serving
from specdec_native import Engine
from specdec_native.requests.request import Request
from specdec_serve.http.service import Generation, Observer
from test_server_robust import check_nothing_is_left
from tiny_text_model import OPTIONS

pytestmark = pytest.mark.fuzz

SOAK_SECONDS = float(os.environ.get("SPECDEC_SOAK_SECONDS", "20"))
REQUESTS_A_ROUND = 120
FEWEST_ROUNDS = 24
AT_ONCE = 6


@pytest.fixture(scope="module")
def engine(model: Path) -> Engine:
    """With so small a cache that all of it is soon in use."""
    return Engine(model, **OPTIONS, num_kv_blocks=96)


@dataclasses.dataclass
class Sample:
    """The process' resources between two rounds."""

    resident_bytes: int
    num_threads: int
    num_files: int
    num_tasks: int
    num_requests: int
    num_used_blocks: int


# By how much a round may add, as fitted to the second half of the rounds. Of what is counted, less
# than one in two rounds; of memory 8 KiB a request, as heaps settle for some thousand requests.
TOLERANCES: dict[str, float] = {
    "resident_bytes": 8192 * REQUESTS_A_ROUND,
    "num_threads": 0.5,
    "num_files": 0.5,
    "num_tasks": 0.5,
    "num_requests": 0.5,
    "num_used_blocks": 0.5,
}


def growing(samples: list[Sample]) -> list[str]:
    """What grows from round to round, by a line fitted through the samples after a warm-up."""
    counted = samples[len(samples) // 2 :]
    grown = []
    for name, tolerance in TOLERANCES.items():
        values = [getattr(sample, name) for sample in counted]
        slope = np.polyfit(np.arange(len(values)), values, 1)[0]
        if slope > tolerance:
            grown.append(f"{name} by {slope:.1f} a round: {values}")
    return grown


def sample_of(world: World) -> Sample:
    check_nothing_is_left(world)
    time.sleep(0.1)  # the sockets of clients that have left are closed meanwhile
    stats = world.engine.stats()
    gc.collect()
    objects = gc.get_objects()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Sample(
        resident_bytes=pages * os.sysconf("SC_PAGE_SIZE"),
        num_threads=threading.active_count(),
        num_files=len(os.listdir("/proc/self/fd")),
        num_tasks=sum(type(each) is asyncio.Task for each in objects),
        num_requests=sum(type(each) is Request for each in objects),
        num_used_blocks=stats.num_kv_blocks - stats.num_free_kv_blocks,
    )


class Visitor:
    """Sends one kind of request after the other, and does not always stay for the answer."""

    def __init__(self, url: str, seed: int) -> None:
        self._url = url
        self._random = random.Random(seed)
        self._maker = RequestMaker(seed)

    def visit(self, number: int) -> None:
        """Sends so many requests."""
        with httpx.Client(base_url=self._url, timeout=30, verify=False) as client:
            for _ in range(number):
                self._send_one(client)

    def _send_one(self, client: httpx.Client) -> None:
        draw = self._random
        path, body = self._maker.good_body()
        body["max_tokens"] = draw.randint(1, 60)
        if draw.random() < 0.2:  # as broken as one likes
            hostile = self._maker.make()
            headers = {"content-type": "application/json"}
            client.post(path, content=hostile.body, headers=headers)
        elif draw.random() < 0.3:  # leaves with an answer half read, or before it
            body["stream"] = True
            with client.stream("POST", path, json=body) as response:
                for _ in zip(range(draw.randint(0, 3)), response.iter_raw(), strict=False):
                    pass
        elif draw.random() < 0.1:
            with contextlib.suppress(httpx.TimeoutException):
                client.post(path, json={**body, "stream": False}, timeout=0.002)
        else:
            expected = 400 if path == "/infill" else 200  # this model has no fill-in tokens
            assert client.post(path, json=body).status_code == expected


def soak(world: World, seconds: float) -> list[Sample]:
    """Samples after each round, for so long."""
    gc.freeze()  # existing objects are neither searched nor counted
    visitors = [Visitor(world.url, seed) for seed in range(AT_ONCE)]
    samples: list[Sample] = []
    end = time.monotonic() + seconds
    with ThreadPoolExecutor(AT_ONCE) as pool:
        while len(samples) < FEWEST_ROUNDS or time.monotonic() < end:
            number = REQUESTS_A_ROUND // AT_ONCE
            for visit in [pool.submit(visitor.visit, number) for visitor in visitors]:
                visit.result()
            samples.append(sample_of(world))
    return samples


def test_nothing_grows(engine: Engine) -> None:
    with serving(engine) as world:
        samples = soak(world, SOAK_SECONDS)
    assert not growing(samples), growing(samples)


class Leak(Observer):
    """Keeps one generation of a round, or memory."""

    def __init__(self, *, of_requests: bool) -> None:
        self._kept: list[Any] = []
        self._of_requests = of_requests
        self._num = 0

    def started(self, generation: Generation) -> None:
        self._num += 1
        if not self._of_requests:
            self._kept.append(os.urandom(16384))
        elif self._num % (REQUESTS_A_ROUND // 2) == 0:
            self._kept.append(generation)


@pytest.mark.parametrize(("of_requests", "name"), [(True, "num_requests"), (False, "resident")])
def test_a_leak_is_noticed(engine: Engine, of_requests: bool, name: str) -> None:
    with serving(engine) as world:
        world.service.observer = Leak(of_requests=of_requests)
        grown = growing(soak(world, 0))
    assert any(entry.startswith(name) for entry in grown), grown
