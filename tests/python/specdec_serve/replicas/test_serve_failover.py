"""Requests go on where they were when their replica is lost.

The API runs over two engines of this process, which a test takes away. One drafts and the other
does not, so their outputs have different borders. test_serve_ray.py does it with processes.
"""

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import tiny_text_model
from replica_requests import CHAT, COMPLETIONS, MESSAGES, REQUESTS, streamed
from server_world import World, serving
from specdec_native import Engine, SamplingParams
from specdec_native.errors import EngineFailed
from specdec_native.requests.outputs import CompletionOutput, RequestOutput
from specdec_serve.replicas.failover import (
    Outputs,
    ReplicaLost,
    Splice,
    Work,
    WorkItem,
)
from specdec_serve.replicas.remote_engine import RemoteEngine
from specdec_serve.replicas.replica import Replica
from specdec_serve.replicas.routing import MAX_LEAD, PrefixMap, prefix_keys

OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 256, "num_threads": 1}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}
NUM_TOKENS = 120


class Cluster:
    """Replicas that take work in turn, and are lost with it after so many outputs."""

    def __init__(self, replicas: list[Replica]) -> None:
        self.replicas = replicas
        self.lost_after: list[int] = []  # outputs of the next runs; those after them end well
        self.works: list[Work] = []
        self.sent: list[list[int]] = []  # of each work the tokens in each of its outputs
        self.num_up = len(replicas)

    def reset_caches(self) -> int:
        return sum(asyncio.run(replica.reset_prefix_cache()) for replica in self.replicas)

    async def run(self, work: Work) -> AsyncGenerator[str | Outputs, None]:
        number = len(self.works)
        self.works.append(work)
        self.sent.append(sent := [])
        yield f"replica {number}"
        interval = 1 if number % 2 == 0 else 3
        work = dataclasses.replace(work, interval=interval)
        most = self.lost_after.pop(0) if self.lost_after else None
        held: list[Outputs] = []  # the last of all, which a lost replica never sends
        async for outputs in self.replicas[number % len(self.replicas)].run(work):
            for earlier in held:
                sent.append(sum(len(p.token_ids) for _, output in earlier for p in output.outputs))
                yield earlier
            held = [outputs]
            if most is not None:
                if most == 0:
                    break
                most -= 1
        if most is not None:
            raise ReplicaLost("the test took it away")
        for last in held:
            yield last


@pytest.fixture(scope="module")
def model(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama whose tokens are bytes, so that grammars can be used."""
    directory = tmp_path_factory.mktemp("bytes") / "llama"
    return tiny_text_model.add_byte_text(checkpoint("llama"), directory)


@pytest.fixture(scope="module")
def undisturbed(model: Path) -> Iterator[World]:
    with Engine(model, **OPTIONS) as engine, serving(engine) as world:
        yield world


@pytest.fixture(scope="module")
def replicas(model: Path) -> list[Replica]:
    return [
        Replica(str(model), OPTIONS),
        Replica(str(model), {**OPTIONS, "speculative_config": NGRAM}),
    ]


@pytest.fixture(scope="module")
def shared(model: Path, replicas: list[Replica]) -> Iterator[tuple[World, Cluster]]:
    cluster = Cluster(replicas)
    engine = RemoteEngine(
        str(model),
        OPTIONS,
        replicas[0].vllm_config(),
        cluster.run,
        num_replays=2,
        count_replicas=lambda: cluster.num_up,
        reset_caches=cluster.reset_caches,
    )
    with serving(engine, operator_endpoints=True) as world:
        yield world, cluster


@pytest.fixture
def world(shared: tuple[World, Cluster]) -> World:
    return shared[0]


@pytest.fixture
def cluster(shared: tuple[World, Cluster]) -> Cluster:
    shared[1].lost_after.clear()
    shared[1].works.clear()
    shared[1].sent.clear()
    return shared[1]


@pytest.mark.parametrize("lost_after", [[], [0], [1], [7], [4, 9], [9, 2]])
@pytest.mark.parametrize("name", REQUESTS)
def test_a_stream_goes_on(
    name: str, lost_after: list[int], undisturbed: World, world: World, cluster: Cluster
) -> None:
    cluster.lost_after = list(lost_after)
    assert streamed(world, name, NUM_TOKENS) == streamed(undisturbed, name, NUM_TOKENS)
    assert len(cluster.works) == 1 + len(lost_after)


@pytest.mark.parametrize("lost_after", [5, 80])
def test_another_replica_generates_the_rest_alone(
    lost_after: int, model: Path, world: World, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much was sent: the rest, and what the last output had."""
    other = Replica(str(model), OPTIONS)
    monkeypatch.setattr(cluster, "replicas", [cluster.replicas[0], other])
    cluster.lost_after = [lost_after]
    streamed(world, "sampled", NUM_TOKENS)
    num_left = NUM_TOKENS - sum(cluster.sent[0][:-1])
    stats = other._engine.stats()
    assert stats.num_generation_tokens == num_left
    assert stats.num_steps == num_left  # the first of them computes the prompt and what was sent


def test_each_completion_goes_on_where_it_was() -> None:
    params = SamplingParams(n=3, seed=2**64 - 1, prompt_logprobs=1)
    untouched = WorkItem([5], SamplingParams(seed=1))
    for repeats in (True, False):
        splice = Splice(Work([WorkItem([1], params), untouched], repeats=repeats), [("", [1])] * 2)
        splice.new_parts([(0, _output(_part(0, [7], "ab", -1.0), _part(2, [9], "c", -4.0)))])
        splice.new_parts(
            [(0, _output(_part(0, [8, 9], "cd", -3.0), _part(2, [], "", -4.0, "stop")))]
        )
        rest = splice.work_left(frozenset({"a"}))
        assert rest.avoided == {"a"}
        assert rest.items[2] is untouched
        begun = [(item.params.seed, item.resumed_token_ids) for item in rest.items[:2]]
        assert begun == [(2**64 - 1, [7] if repeats else [7, 8, 9]), (0, [])]
        assert {item.params.n for item in rest.items} == {1}
        assert {item.params.prompt_logprobs for item in rest.items} == {None}
        if repeats:
            assert not splice.new_parts([(0, _output(_part(0, [8], "c", -0.5)))])
            again = _part(0, [9, 10], "def", -3.5)
        else:
            again = _part(0, [10], "ef", -1.5)
        [(index, shown)] = splice.new_parts([(0, _output(again))])
        [part] = shown.outputs
        assert (index, part.index, part.token_ids, part.text) == (0, 0, [10], "ef")
        assert part.cumulative_logprob == -4.5


def _part(
    index: int, token_ids: list[int], text: str, logprob: float, reason: str | None = None
) -> CompletionOutput:
    return CompletionOutput(index, text, token_ids, logprob, finish_reason=reason)


def _output(*parts: CompletionOutput) -> RequestOutput:
    return RequestOutput("", None, None, None, list(parts), finished=False)


@pytest.mark.parametrize("name", ["n", "chat logprobs"])
def test_a_whole_answer_is_tried_again(
    name: str, undisturbed: World, world: World, cluster: Cluster
) -> None:
    path, body = REQUESTS[name]
    cluster.lost_after = [0, 0]
    choices = world.ask(path, **body, max_tokens=NUM_TOKENS)["choices"]
    assert choices == undisturbed.ask(path, **body, max_tokens=NUM_TOKENS)["choices"]
    assert len(cluster.works) == 3


def test_prompt_logprobs_come_once(undisturbed: World, world: World, cluster: Cluster) -> None:
    body = {"prompt": "abcd", "prompt_logprobs": 1, "max_tokens": 20, "temperature": 0}
    cluster.lost_after = [0]
    ours, theirs = (w.ask(COMPLETIONS, **body)["choices"][0] for w in (world, undisturbed))
    assert ours["prompt_logprobs"] == theirs["prompt_logprobs"]
    assert len(ours["prompt_logprobs"]) == 4


def test_requests_get_seeds_of_their_own(world: World, cluster: Cluster) -> None:
    cluster.lost_after = [2]
    events = world.events(COMPLETIONS, prompt=["ab", "ab"], temperature=1, max_tokens=30)
    texts = ["", ""]
    for event in events:
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts[0] != texts[1]
    first, second = cluster.works
    seeds = [item.params.seed for item in first.items]
    assert {item.params.seed for item in second.items} <= set(seeds)  # one may have ended
    assert None not in seeds


def test_a_lost_replica_is_avoided(world: World, cluster: Cluster) -> None:
    cluster.lost_after = [1, 1]
    world.events(COMPLETIONS, prompt="ab", max_tokens=60, ignore_eos=True)
    assert [work.avoided for work in cluster.works] == [
        frozenset(),
        frozenset({"replica 0"}),
        frozenset({"replica 0", "replica 1"}),
    ]


def test_a_request_does_not_take_all_replicas_down(world: World, cluster: Cluster) -> None:
    cluster.lost_after = [0] * 9
    error = world.error(COMPLETIONS, 503, prompt="ab", max_tokens=10)
    assert "3 replicas in turn were lost" in error["message"]
    assert len(cluster.works) == 3
    assert world.client.get("/health").status_code == 200

    cluster.works.clear()
    events = world.events(CHAT, messages=MESSAGES, max_tokens=40)
    assert events[-1]["error"]["code"] == 503
    assert len(cluster.works) == 3


def test_a_replica_that_answers_differently_is_found(world: World, cluster: Cluster) -> None:
    run, cluster.lost_after = cluster.run, [6]

    async def other_seed(work: Work) -> AsyncGenerator[str | Outputs, None]:
        if cluster.works:
            items = [dataclasses.replace(item, params=item.params.clone()) for item in work.items]
            for item in items:
                item.params.seed = 8
            work = dataclasses.replace(work, items=items)
        async for outputs in run(work):
            yield outputs

    engine = cast(RemoteEngine, world.service.engine)
    engine._run = other_seed
    try:
        path, body = REQUESTS["sampled"]
        events = world.events(path, **body, max_tokens=NUM_TOKENS)
    finally:
        engine._run = run
    assert "answers differently" in events[-1]["error"]["message"]


def test_a_client_that_leaves_ends_the_work(world: World, cluster: Cluster) -> None:
    body = {"prompt": "ab", "max_tokens": 250, "ignore_eos": True, "stream": True}
    with world.client.stream("POST", COMPLETIONS, json=body) as response:
        next(response.iter_lines())
    engine = cluster.replicas[0]._engine
    for _ in range(1000):
        if engine.load().num_running == 0:
            break
        world.client.get("/health")
    assert engine.stats().num_running == 0
    assert world.service.num_open == 0


def test_bad_requests_are_not_repeated(world: World, cluster: Cluster) -> None:
    assert world.error(COMPLETIONS, prompt="a" * 999)["param"] == "prompt"
    assert cluster.works == []


def test_health_where_no_replica_can_answer(world: World, cluster: Cluster) -> None:
    ended: list[None] = []
    world.service.on_failure = lambda: ended.append(None)
    for num_up, status in ((1, 200), (0, 503), (2, 200)):  # it passes, and ends nothing
        cluster.num_up = num_up
        assert world.client.get("/health").status_code == status
        assert world.client.get("/ping").status_code == status
    assert not ended and world.service.failure is None


def test_health_of_a_replica_whose_engine_failed(model: Path) -> None:
    replica = Replica(str(model), OPTIONS)
    replica.check()
    replica._failure = EngineFailed("planted")
    with pytest.raises(EngineFailed, match="planted"):
        replica.check()


def test_caches_of_all_replicas_are_reset(world: World, replicas: list[Replica]) -> None:
    def num_cached() -> list[int]:
        return [replica._engine.stats().num_cached_kv_blocks for replica in replicas]

    for _ in replicas:
        world.ask("/v1/completions", prompt="ab" * 20, max_tokens=1)
    before = num_cached()
    assert all(before)
    assert world.ask("/reset_prefix_cache") == {"num_dropped_blocks": sum(before)}
    assert not any(num_cached())


def test_an_ingress_has_the_configuration_of_its_replicas(
    world: World, replicas: list[Replica]
) -> None:
    config = world.client.get("/server_info").json()["vllm_config"]
    assert config == str(replicas[0].vllm_config())


def test_a_conversation_stays_where_its_beginning_is() -> None:
    first = list(range(200))
    turns = first + [7] * 100
    prefixes = PrefixMap()
    prefixes.put(prefix_keys(first, None), "b")
    queues = {"a": 0, "b": MAX_LEAD, "c": 9}
    none: frozenset[str] = frozenset()
    assert prefixes.by_preference(prefix_keys(turns, None), queues, none) == ["b", "a", "c"]
    assert prefixes.by_preference(prefix_keys(turns, "salt"), queues, none) == ["a", "b", "c"]
    assert prefixes.by_preference(prefix_keys([9, *turns], None), queues, none) == ["a", "b", "c"]
    queues["b"] += 1  # too long
    assert prefixes.by_preference(prefix_keys(turns, None), queues, none) == ["a", "b", "c"]
    assert prefixes.by_preference(prefix_keys(turns, None), queues, frozenset({"a", "b"}))[0] == "c"


def test_beginnings_not_used_for_long_are_forgotten() -> None:
    prefixes = PrefixMap(capacity=2)
    keys = [prefix_keys([i] * 8, None) for i in range(3)]
    for i, key in enumerate(keys):
        prefixes.put(key, f"r{i}")
    queues = {"r2": 0, "r1": 1, "r0": 2}
    none: frozenset[str] = frozenset()
    assert [prefixes.by_preference(key, queues, none)[0] for key in keys] == ["r2", "r1", "r2"]
