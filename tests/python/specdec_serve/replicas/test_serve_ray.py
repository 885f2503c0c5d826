"""Two replicas of Ray Serve under load while one is killed; and ranks that are actors."""

import concurrent.futures
import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import rank_models
import tiny_text_model
from free_port import free_port
from replica_requests import COMPLETIONS, REQUESTS, streamed, together
from server_world import MODEL, World, serving
from specdec_native import Engine
from specdec_native.errors import RankFailure, Unavailable

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'ray[serve]'")

pytestmark = pytest.mark.filterwarnings("ignore:Using extra keyword arguments on `Field`")

OPTIONS: dict[str, Any] = {
    "dtype": "float32",
    "hf_overrides": {"max_position_embeddings": 4096},
    "max_model_len": 4096,
    "num_threads": 1,
}
NUM_TOKENS = 1500
APP = f"test-{os.getpid()}"
SCALED = f"scaled-{os.getpid()}"
DEADLINE_SECONDS = 600  # of waits that end by an event


@pytest.fixture(scope="module")
def tiny(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("ray") / "llama"
    return tiny_text_model.add_byte_text(checkpoint("llama"), directory)


@pytest.fixture(scope="module")
def undisturbed(tiny: Path) -> Iterator[World]:
    with Engine(tiny, **OPTIONS) as engine, serving(engine) as world:
        yield world


@pytest.fixture(scope="module")
def cluster(tiny: Path) -> Iterator[World]:
    from ray import serve

    from specdec_serve.replicas.ray import app_builder

    folder = tempfile.mkdtemp(prefix="ray")  # short, since sockets lie in it
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # By default Ray gives up on a proxy that has not started in three tries of 5 to 15 s.
        patch.setenv("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "30")
        try:
            ray.init(
                num_cpus=4,
                include_dashboard=False,
                object_store_memory=100 << 20,
                log_to_driver=False,
                logging_level="error",
                _temp_dir=folder,
            )
            port = free_port()
            serve.start(http_options={"port": port})
            arguments = {
                "model": str(tiny),
                "num_replicas": "2",
                "engine_options": json.dumps(OPTIONS),
                "server_options": json.dumps(
                    {
                        "model_names": [MODEL],
                        "prompt_tokens_details": True,
                        "operator_endpoints": True,
                    }
                ),
            }
            serve.run(app_builder(arguments), name=APP)
            world = World.__new__(World)
            world.port, world.url = port, f"http://127.0.0.1:{port}"
            world.client = httpx.Client(base_url=world.url, timeout=DEADLINE_SECONDS)
            with world.client:
                yield world
        finally:
            ray.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


def test_no_request_is_lost(cluster: World, undisturbed: World) -> None:
    expected = {name: streamed(undisturbed, name, NUM_TOKENS) for name in REQUESTS}
    before = _replays()
    first = set(_pids())
    assert len(first) == 2
    used = {pid: _ticks(pid) for pid in first}
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        streams = {name: pool.submit(_stream, cluster, name, NUM_TOKENS) for name in REQUESTS}
        whole = pool.submit(_whole, cluster, "greedy", NUM_TOKENS)
        _wait_until(lambda: any(_ticks(pid) > used[pid] + 5 for pid in first))
        busiest = max(first, key=lambda pid: _ticks(pid) - used[pid])
        os.kill(busiest, signal.SIGKILL)
        answers = {name: stream.result() for name, stream in streams.items()}
    assert {name: _without_cached(a) for name, a in answers.items()} == {
        name: _without_cached(a) for name, a in expected.items()
    }
    assert whole.result()["text"] == expected["greedy"][0]["text"]
    assert _replays() > before
    _wait_until(lambda: len(set(_pids()) - {busiest}) == 2)  # Serve has replaced it


def test_health_is_bad_while_no_replica_runs(cluster: World) -> None:
    _wait_until(lambda: len(_pids()) == 2)
    before = set(_pids())
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    _wait_until(lambda: cluster.client.get("/health").status_code == 503)
    _wait_until(lambda: cluster.client.get("/health").status_code == 200)
    assert set(_pids()).isdisjoint(before)
    assert cluster.ask(COMPLETIONS, prompt="ab", max_tokens=2, model=MODEL)


def test_a_replica_has_threads_for_its_share_of_the_cpus(cluster: World, tiny: Path) -> None:
    """And what no node has room for is refused at once."""
    from ray import serve

    from specdec_serve.replicas.ray import build_app

    options = {name: value for name, value in OPTIONS.items() if name != "num_threads"}
    app = build_app(str(tiny), engine_options=options, ray_actor_options={"num_cpus": 1})
    serve.run(app, name="threads", route_prefix="/threads")
    engines = serve.get_deployment_handle("EngineReplica", "threads")
    assert engines.vllm_config.remote().result().model_config.info.num_threads == 1
    serve.delete("threads")

    deployment = build_app(str(tiny), engine_options=options, num_replicas=2)._bound_deployment
    engines = deployment.init_args[0]._bound_deployment
    assert engines.ray_actor_options["num_cpus"] == 2  # of four
    for more in ({"num_threads": 3}, {"pipeline_parallel_size": 4}):
        with pytest.raises(
            ValueError, match="do not fit onto the cluster, whose nodes have 4 CPUs"
        ):
            build_app(str(tiny), engine_options={**OPTIONS, **more}, num_replicas=2)
    scale = {"min_replicas": 1, "max_replicas": 9}
    build_app(str(tiny), engine_options={**OPTIONS, "num_threads": 3}, autoscaling_config=scale)


def test_a_conversation_goes_to_the_replica_that_knows_it(cluster: World) -> None:
    _wait_until(lambda: len(_pids()) == 2)
    prompt = "It was a long and quiet night. " * 20
    for turn in range(4):
        prompt += "And then? " * 5
        usage = cluster.ask(COMPLETIONS, prompt=prompt, max_tokens=2, model=MODEL)["usage"]
        if turn > 0:
            assert usage["prompt_tokens_details"]["cached_tokens"] > 300


def test_caches_of_all_replicas_are_reset(cluster: World) -> None:
    _wait_until(lambda: len(_pids()) == 2)
    prompt = "It is one more quiet night, and another one. "
    with concurrent.futures.ThreadPoolExecutor(16) as pool:  # more than one replica takes
        list(
            pool.map(
                lambda i: cluster.ask(COMPLETIONS, prompt=f"{i} {prompt}", max_tokens=40), range(32)
            )
        )

    def num_cached(i: int) -> int:
        usage = cluster.ask(COMPLETIONS, prompt=f"{i} {prompt}", max_tokens=1)["usage"]
        number: int = usage["prompt_tokens_details"]["cached_tokens"]
        return number

    assert all(num_cached(i) for i in range(32))
    assert cluster.ask("/reset_prefix_cache")["num_dropped_blocks"] > 32
    assert not any(num_cached(i) for i in range(32))


def test_a_replica_has_ranks_on_ray(cluster: World, undisturbed: World, tiny: Path) -> None:
    from ray import serve

    from specdec_serve.replicas.ray import build_app

    ranks = {"pipeline_parallel_size": 2, "distributed_executor_backend": "ray"}
    api = {"model_names": [MODEL]}
    app = build_app(str(tiny), engine_options={**OPTIONS, **ranks}, server_options=api)
    serve.run(app, name="ranks", route_prefix="/ranks")
    path, body = REQUESTS["sampled"]
    answer = cluster.client.post("/ranks" + path, json={**body, "max_tokens": 40, "model": MODEL})
    assert answer.status_code == 200, answer.text
    assert len(_pids_of("ray::_RankActor")) == 1
    serve.delete("ranks")
    assert answer.json()["choices"][0]["text"] == streamed(undisturbed, "sampled", 40)[0]["text"]
    _wait_until(lambda: not _pids_of("ray::_RankActor"))


def test_ranks_are_actors(cluster: World, tmp_path: Path) -> None:
    model = rank_models.write(tmp_path / "target", rank_models.CONFIG)
    options: dict[str, Any] = {"tensor_parallel_size": 2, "distributed_executor_backend": "ray"}
    alone = rank_models.answers_of(model, quantization="none")
    assert rank_models.answers_of(model, quantization="none", **options) == alone
    with rank_models.make_engine(model, **options) as engine:
        _wait_until(lambda: len(_pids_of("ray::_RankActor")) == 1)  # an earlier one ends
        [pid] = _pids_of("ray::_RankActor")
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(RankFailure, match="rank 1"):
            _wait_until(engine.check_health)
    with pytest.raises(Unavailable, match=r"1 more ranks within distributed_timeout_seconds \(2 s"):
        rank_models.make_engine(model, **options, num_threads=99, distributed_timeout_seconds=2)
    _wait_until(lambda: not _pids_of("ray::_RankActor"))


def test_the_port_of_ranks_is_kept_for_them() -> None:
    from specdec_native.ray_ranks import reserve_port

    with reserve_port("127.0.0.1") as held, socket.socket() as other, socket.socket() as engine:
        with pytest.raises(OSError, match="in use"):
            other.bind(held.getsockname())
        engine.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        engine.bind(held.getsockname())
        engine.listen()
        with socket.create_connection(held.getsockname()):
            engine.accept()[0].close()


@pytest.mark.filterwarnings("ignore:The `metrics_interval_s` field:DeprecationWarning")
def test_replicas_come_and_go_with_the_queue(
    cluster: World, undisturbed: World, tiny: Path
) -> None:
    """Streams that run while a replica comes, and while one is drained, are whole and its own."""
    from ray import serve

    from specdec_serve.replicas.ray import build_app

    app = build_app(
        str(tiny),
        engine_options=OPTIONS,
        server_options={"model_names": [MODEL]},
        autoscaling_config={
            "min_replicas": 1,
            "max_replicas": 2,
            "target_ongoing_requests": 2,
            "upscale_delay_s": 0.2,
            "downscale_delay_s": 2.0,
            "metrics_interval_s": 0.2,
            "look_back_period_s": 1.0,
        },
    )
    serve.run(app, name=SCALED, route_prefix="/scaled")
    [first] = _pids(SCALED)
    before: dict[int, int] = {}
    expected = _without_cached(streamed(undisturbed, "sampled", NUM_TOKENS))
    load = Load(lambda: _stream(cluster, "sampled", NUM_TOKENS, "/scaled"))
    try:
        load.run(8)
        _wait_until(lambda: _another_works(first, before))  # it has its part of the streams
        load.run(2)  # as many as one replica is to have
        _wait_until(lambda: len(_pids(SCALED)) == 1)
    finally:
        answers = load.stop()
    assert len(answers) > 8
    assert all(_without_cached(answer) == expected for answer in answers)
    assert _replays(SCALED) == 0  # the drained replica has ended its streams itself
    serve.delete(SCALED)


def test_bad_requests_are_answered_by_the_ingress(cluster: World) -> None:
    error = cluster.error(COMPLETIONS, prompt="ab", max_tokens=-1)
    assert error["param"] == "max_tokens"
    assert cluster.error(COMPLETIONS, 404, prompt="ab", model="other")["param"] == "model"


def test_arguments_of_serve_run_are_checked() -> None:
    from specdec_serve.replicas.ray import app_builder, build_app

    with pytest.raises(ValueError, match="give a model"):
        app_builder({})
    with pytest.raises(ValueError, match="replicas is no argument"):
        app_builder({"model": "x", "replicas": "2"})
    with pytest.raises(ValueError, match="num_replicas: 'two' is not JSON"):
        app_builder({"model": "x", "num_replicas": "two"})
    with pytest.raises(ValueError, match="exclude each other"):
        build_app("x", num_replicas=1, autoscaling_config={"max_replicas": 2})
    with pytest.raises(ValueError, match="max_queued_requests"):
        build_app("x", server_options={"max_queued_requests": 3})
    with pytest.raises(ValueError, match="wrong is no field"):
        build_app("x", server_options={"wrong": 3})


class Load:
    """Calls `ask` repeatedly, on as many threads as run() said last."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self._ask = ask
        self._wanted = 0
        self._pool = concurrent.futures.ThreadPoolExecutor(16)
        self._threads: list[concurrent.futures.Future[list[Any]]] = []

    def run(self, num_threads: int) -> None:
        self._wanted = num_threads
        for index in range(len(self._threads), num_threads):
            self._threads.append(self._pool.submit(self._repeat, index))

    def stop(self) -> list[Any]:
        """The results of all calls."""
        self.run(0)
        with self._pool:
            return [answer for thread in self._threads for answer in thread.result()]

    def _repeat(self, index: int) -> list[Any]:
        answers = []
        while index < self._wanted:
            answers.append(self._ask())
        return answers


def _stream(world: World, name: str, max_tokens: int, prefix: str = "") -> list[dict[str, Any]]:
    """streamed() with a client of its own."""
    path, body = REQUESTS[name]
    path = prefix + path
    more = {"stream": True, "stream_options": {"include_usage": True}, "model": MODEL}
    body = {**body, **more, "max_tokens": max_tokens}
    with (
        httpx.Client(base_url=world.url, timeout=DEADLINE_SECONDS) as client,
        client.stream("POST", path, json=body) as response,
    ):
        assert response.status_code == 200, response.read()
        lines = [line for line in response.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    return together([json.loads(line.removeprefix("data: ")) for line in lines[:-1]])


def _whole(world: World, name: str, max_tokens: int) -> dict[str, Any]:
    path, body = REQUESTS[name]
    answer = httpx.post(
        world.url + path,
        json={**body, "max_tokens": max_tokens, "model": MODEL},
        timeout=DEADLINE_SECONDS,
    )
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


def _without_cached(choices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How much of a prompt was cached depends on what a replica had run."""
    *texts, usage = choices
    return [*texts, {**usage, "prompt_tokens_details": None}]


def _replays(app: str = APP) -> int:
    from ray import serve

    count: int = serve.get_deployment_handle("Ingress", app).num_replayed.remote().result()
    return count


def _pids(app: str = APP) -> list[int]:
    return _pids_of(f"ray::ServeReplica:{app}:EngineReplica")


def _states(app: str) -> dict[str, int]:
    """How many replicas are in which state."""
    from ray import serve

    deployment = serve.status().applications[app].deployments["EngineReplica"]
    return {str(state): count for state, count in deployment.replica_states.items()}


def _pids_of(title: str) -> list[int]:
    """Processes that Ray has given a name that begins so."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdecimal() and (folder / "cmdline").read_bytes().startswith(
                title.encode()
            ):
                found.append(int(folder.name))
    return found


def _another_works(first: int, before: dict[int, int]) -> bool:
    """Whether a running replica other than `first` has used half a second since it ran.

    Ray may replace the second replica where a slow machine reports the queue late. `before` has the
    ticks of each replica when it was first seen running.
    """
    if _states(SCALED) != {"RUNNING": 2}:
        return False
    for pid in set(_pids(SCALED)) - {first}:
        with contextlib.suppress(OSError):  # a replica that has ended meanwhile
            ticks = _ticks(pid)
            if ticks > before.setdefault(pid, ticks) + 50:
                return True
    return False


def _ticks(pid: int) -> int:
    """CPU time that a process has used, in hundredths of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _wait_until(is_true: Callable[[], object]) -> None:
    end = time.monotonic() + DEADLINE_SECONDS
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.005)
