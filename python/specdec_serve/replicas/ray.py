"""The OpenAI-compatible server on Ray Serve: an ingress before replicas of one engine.

    serve run specdec_serve.replicas.ray:app_builder model=Qwen/Qwen3-0.6B num_replicas=2

The ingress runs the HTTP API (specdec_serve.http): it tokenizes, renders templates, checks and
writes events. A replica runs an Engine and streams its outputs (RequestOutput), not events. So if a
replica is lost, its requests continue on another one: see failover.py. Clients talk to the ingress,
which holds no model; if an ingress itself is lost, its streams break.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import math
import os
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import fastapi

from specdec_native import _core
from specdec_native.checkpoints.errors import MissingDependencyError
from specdec_native.errors import EngineFailed
from specdec_native.options.vllm_config import VllmConfig
from specdec_native.ray_ranks import resources_of_rank
from specdec_serve.http.admission import RETRY_SECONDS
from specdec_serve.http.app import make_app
from specdec_serve.http.errors import ApiError
from specdec_serve.http.server_options import ServerOptions
from specdec_serve.http.service import Service
from specdec_serve.replicas.failover import Outputs, ReplicaLost, Runner, Work
from specdec_serve.replicas.remote_engine import RemoteEngine
from specdec_serve.replicas.replica import Replica
from specdec_serve.replicas.resources import Resources, equal_share, shortage, threads_of

try:
    import ray
    from ray import serve
    from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError
    from ray.serve.config import RequestRouterConfig
    from ray.serve.exceptions import BackPressureError, ReplicaUnavailableError
    from ray.serve.handle import DeploymentHandle
    from ray.util.metrics import Counter
except ModuleNotFoundError as error:
    raise MissingDependencyError("ray", "specdec_serve.replicas.ray", "ray") from error

_logger = logging.getLogger("specdec_native.serve")

_ROUTER = "specdec_serve.replicas.router.PrefixRouter"
_REPLICA = "EngineReplica"
_COUNT_SECONDS = 1.0  # between two queries of the number of replicas
_MOST_INGRESS_REQUESTS = 100_000
_ENGINE_COUNTS = ("tensor_parallel_size", "pipeline_parallel_size")
_LOST = (ActorDiedError, ActorUnavailableError, ReplicaUnavailableError, EngineFailed)


class EngineReplica:
    """The Ray Serve deployment of an engine."""

    def __init__(self, model: str, engine_options: Mapping[str, Any]) -> None:
        self._replica = Replica(model, _with_threads(engine_options))
        self._id = serve.get_replica_context().replica_id.unique_id

    def vllm_config(self) -> VllmConfig:
        """The engine's resolved options."""
        return self._replica.vllm_config()

    async def reset_prefix_cache(self) -> int:
        """Drops the cached beginnings of prompts; returns how many blocks."""
        return await self._replica.reset_prefix_cache()

    async def run(self, work: Work) -> AsyncGenerator[str | Outputs, None]:
        """Yields the id of this replica, then the outputs of the work."""
        yield self._id
        outputs = self._replica.run(work)
        try:
            async for step in outputs:
                yield step
        finally:
            await outputs.aclose()

    def check_health(self) -> None:
        """Called by Ray Serve, which replaces the replica if this raises EngineFailed."""
        self._replica.check()


class Ingress:
    """The Ray Serve deployment of the HTTP API."""

    async def __init__(  # type: ignore[misc]
        self,
        engines: DeploymentHandle,
        model: str,
        engine_options: Mapping[str, Any],
        server_options: ServerOptions,
        num_replays: int,
    ) -> None:
        vllm_config: VllmConfig = await engines.vllm_config.remote()
        self._num_replayed = 0
        self._replays = Counter(
            "specdec_native_request_replays",
            "Times a request was given to another replica because its replica was lost.",
        )
        engine = RemoteEngine(
            model,
            engine_options,
            vllm_config,
            runner_of(engines),
            num_replays=num_replays,
            on_replay=self._count_replay,
            count_replicas=lambda: self._num_running,
            reset_caches=lambda: sum(engines.broadcast("reset_prefix_cache").results()),
        )
        self._num_running = 1  # the replica that the configuration came from
        self._counting = asyncio.ensure_future(self._count_replicas())
        self._service = Service(engine, server_options)

    def num_replayed(self) -> int:
        """How often a request was given to another replica; for callers with a handle."""
        return self._num_replayed

    def _count_replay(self) -> None:
        self._num_replayed += 1
        self._replays.inc()

    async def _count_replicas(self) -> None:
        """Keeps track of the number of running replicas, for /health."""
        app = serve.get_replica_context().app_name
        while True:
            await asyncio.sleep(_COUNT_SECONDS)
            with contextlib.suppress(Exception):  # the controller is restarting
                self._num_running = await asyncio.to_thread(_num_running, app)

    def __serve_build_asgi_app__(self) -> fastapi.FastAPI:
        """Called once by Ray Serve to get the application."""
        return make_app(self._service)


def runner_of(engines: DeploymentHandle) -> Runner:
    """Runs work on a replica that the deployment's router chooses."""
    streaming = engines.options(stream=True)

    async def run(work: Work) -> AsyncGenerator[str | Outputs, None]:
        response = streaming.run.remote(work)
        is_over = False
        try:
            async for outputs in response:
                yield outputs
            is_over = True
        except _LOST as error:
            raise ReplicaLost(f"{type(error).__name__}: {error}") from error
        except BackPressureError as error:
            raise ApiError(
                503,
                "All replicas are busy and the queue is full; ask again later.",
                headers={"retry-after": RETRY_SECONDS},
            ) from error
        except RayTaskError as error:  # the original error cannot be pickled
            if isinstance(error.cause, EngineFailed):
                raise ReplicaLost(str(error.cause)) from error
            raise error.cause from error
        finally:
            if not is_over:
                response.cancel()

    return run


def build_app(
    model: str,
    *,
    engine_options: Mapping[str, Any] | None = None,
    server_options: ServerOptions | Mapping[str, Any] | None = None,
    num_replicas: int | None = None,
    autoscaling_config: Mapping[str, Any] | None = None,
    num_ingresses: int = 1,
    max_ongoing_requests: int = 256,
    max_queued_requests: int = -1,
    num_replays: int = 2,
    ray_actor_options: Mapping[str, Any] | None = None,
    placement_group_strategy: str = "PACK",
    health_check_period_s: float = 2.0,
    graceful_shutdown_timeout_s: float = 60.0,
) -> serve.Application:
    """An application for serve.run().

    Args:
        model: a directory or name. Its configuration and tokenizer must be where the ingress runs,
            too.
        engine_options: options of specdec_native.Engine, except objects that cannot be pickled.
        server_options: options of the API, a ServerOptions or a dict of its fields.
        num_replicas: number of engines; None for one, or for autoscaling_config to decide.
        autoscaling_config: Ray Serve's, such as {"min_replicas": 1, "max_replicas": 4,
            "target_ongoing_requests": 32}; exclusive with num_replicas.
        num_ingresses: processes that run the API.
        max_ongoing_requests: calls in a replica at a time; its engine queues them.
        max_queued_requests: calls that may wait in an ingress for a replica; more are answered with
            503. -1 for no limit.
        num_replays: how often a call is given to another replica because its replica was lost.
        ray_actor_options: resources of a replica. The default is the CPUs of num_threads, and on
            CUDA one GPU per rank. An actor's resources are on one node, so its ranks are, too. If
            num_threads is left out, replicas share the cluster's CPUs equally and set num_threads
            accordingly. If ray_actor_options is given, nothing checks whether the cluster has these
            resources.
        placement_group_strategy: with the engine option distributed_executor_backend="ray", where
            each rank is an actor with such resources: "PACK" them onto few nodes, "STRICT_PACK"
            onto one, or "SPREAD" them.
        health_check_period_s: how often replicas are asked whether their engine works.
        graceful_shutdown_timeout_s: time for a replica that is scaled down to finish its calls;
            unfinished calls continue elsewhere.

    Raises ValueError for options that contradict one another, and where the cluster (Ray starts one
    if there is none) has too few CPUs or GPUs and cannot grow.
    """
    engine_options = dict(engine_options or {})
    if num_replicas is not None and autoscaling_config is not None:
        raise ValueError("num_replicas and autoscaling_config exclude each other; give one")
    if not 0 <= num_replays <= 8:
        raise ValueError(f"num_replays must be in [0, 8], got {num_replays}")
    api = _server_options(server_options, model)
    given: dict[str, Any] = {"ray_actor_options": dict(ray_actor_options or {})}
    if ray_actor_options is not None and _has_actors_for_ranks(engine_options):
        rank = _resources_of_rank(engine_options, 1)
        given |= _bundles(rank, _num_ranks(engine_options), placement_group_strategy)
    scale: dict[str, Any] = {"num_replicas": 1 if num_replicas is None else num_replicas}
    if autoscaling_config is not None:
        scale = {"autoscaling_config": dict(autoscaling_config)}
    if ray_actor_options is None:
        least, most = _num_replicas(scale)
        given = _placement(engine_options, placement_group_strategy, least, most)
    engines = serve.deployment(EngineReplica).options(
        name=_REPLICA,
        max_ongoing_requests=max_ongoing_requests,
        max_queued_requests=max_queued_requests,
        health_check_period_s=health_check_period_s,
        graceful_shutdown_timeout_s=graceful_shutdown_timeout_s,
        request_router_config=RequestRouterConfig(request_router_class=_ROUTER),
        **given,
        **scale,
    )
    ingress = serve.deployment(serve.ingress()(Ingress)).options(
        name="Ingress",
        num_replicas=num_ingresses,
        max_ongoing_requests=_MOST_INGRESS_REQUESTS,
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_timeout_s=graceful_shutdown_timeout_s,
    )
    return ingress.bind(
        engines.bind(model, engine_options), model, engine_options, api, num_replays
    )


_ARGUMENTS_OF_JSON = (
    *("engine_options", "server_options", "num_replicas", "autoscaling_config", "num_ingresses"),
    *("max_ongoing_requests", "max_queued_requests", "num_replays", "ray_actor_options"),
    *("placement_group_strategy", "health_check_period_s", "graceful_shutdown_timeout_s"),
)


def app_builder(args: dict[str, Any]) -> serve.Application:
    """build_app() for `serve run` and Serve's config files; on the command line values are JSON.

    Raises ValueError for an unknown argument, or one that is not JSON.
    """
    given = dict(args)
    model = given.pop("model", None)
    if not isinstance(model, str):
        raise ValueError(
            "give a model: serve run specdec_serve.replicas.ray:app_builder model=NAME"
        )
    for name, value in given.items():
        if name not in _ARGUMENTS_OF_JSON:
            known = ", ".join(("model", *_ARGUMENTS_OF_JSON))
            raise ValueError(f"{name} is no argument of app_builder; it has {known}")
        if isinstance(value, str):
            try:
                given[name] = json.loads(value)
            except ValueError as error:
                raise ValueError(f"{name}: {value!r:.80} is not JSON: {error}") from None
    return build_app(model, **given)


def _server_options(given: ServerOptions | Mapping[str, Any] | None, model: str) -> ServerOptions:
    if not isinstance(given, ServerOptions):
        fields: dict[str, Any] = {"model_names": (model,), **(given or {})}
        known = {field.name for field in dataclasses.fields(ServerOptions)}
        if unknown := sorted(set(fields) - known):
            raise ValueError(f"server_options: {unknown[0]} is no field of ServerOptions")
        for name, value in fields.items():  # JSON has no tuples
            fields[name] = tuple(value) if isinstance(value, list) else value
        given = ServerOptions(**fields)
    for name in ("max_queued_requests", "max_queued_tokens"):
        if getattr(given, name) is not None:
            raise ValueError(
                f"server_options: {name} is for one engine; use build_app's max_queued_requests"
            )
    return given


def _num_ranks(engine_options: Mapping[str, Any]) -> int:
    counts = (engine_options.get(name, 1) for name in _ENGINE_COUNTS)
    return math.prod(map(int, counts))


def _num_replicas(scale: Mapping[str, Any]) -> tuple[int, int]:
    """The least and the largest number of replicas."""
    if "num_replicas" in scale:
        return int(scale["num_replicas"]), int(scale["num_replicas"])
    bounds = scale["autoscaling_config"]
    least = int(bounds.get("min_replicas", 1))
    return least, max(least, int(bounds.get("max_replicas", 1)))


def _has_actors_for_ranks(engine_options: Mapping[str, Any]) -> bool:
    is_on_ray = engine_options.get("distributed_executor_backend") == "ray"
    return is_on_ray and _num_ranks(engine_options) > 1


def _resources_of_rank(engine_options: Mapping[str, Any], num_threads: int) -> dict[str, float]:
    device = str(engine_options.get("device", "auto"))
    return resources_of_rank(device, engine_options.get("num_threads") or num_threads)


def _bundles(rank: Resources, num_ranks: int, strategy: str) -> dict[str, Any]:
    return {
        "placement_group_bundles": [dict(rank)] * num_ranks,
        "placement_group_strategy": strategy,
    }


def _placement(
    engine_options: Mapping[str, Any], strategy: str, least: int, most: int
) -> dict[str, Any]:
    """A replica's placement: one actor with all its ranks, or a bundle per rank.

    Raises ValueError where the least number of replicas does not fit the cluster.
    """
    num_ranks = _num_ranks(engine_options)
    nodes = _nodes()
    if _has_actors_for_ranks(engine_options):
        rank = _resources_of_rank(engine_options, equal_share(1, most * num_ranks, nodes))
        _check_room(rank, least * num_ranks, nodes)
        options = _actor_options(rank, 1)
        return {"ray_actor_options": options, **_bundles(rank, num_ranks, strategy)}
    rank = _resources_of_rank(engine_options, equal_share(num_ranks, most, nodes))
    _check_room({name: num_ranks * amount for name, amount in rank.items()}, least, nodes)
    return {"ray_actor_options": _actor_options(rank, num_ranks)}


def _nodes() -> list[Resources]:
    """The resources of each node of the cluster. Starts a cluster if there is none."""
    if not ray.is_initialized():
        ray.init(namespace="serve")
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _check_room(need: Resources, count: int, nodes: list[Resources]) -> None:
    message = shortage(need, count, nodes)
    if message is None:
        return
    if not _may_grow():
        raise ValueError(message)
    _logger.warning("%s. They wait until the cluster has grown.", message)


def _may_grow() -> bool:
    """Whether an autoscaler may add nodes: on Kubernetes, or in a cluster of `ray up`."""
    is_in_kubernetes = "KUBERNETES_SERVICE_HOST" in os.environ
    return is_in_kubernetes or (Path.home() / "ray_bootstrap_config.yaml").is_file()


def _with_threads(engine_options: Mapping[str, Any]) -> dict[str, Any]:
    """A replica's engine options, with num_threads set for the CPUs that Ray gave it."""
    options = dict(engine_options)
    num_cpus = ray.get_runtime_context().get_assigned_resources().get("CPU", 0.0)
    if not options.get("num_threads") and num_cpus >= 1 and not _is_on_gpu(options):
        if not _has_actors_for_ranks(options):
            num_cpus /= _num_ranks(options)
        num_cores = next(d.num_threads for d in _core.list_devices() if d.name == "cpu")
        num_logical = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
        options["num_threads"] = threads_of(num_cpus, num_cores, num_logical or os.cpu_count() or 1)
    return options


def _is_on_gpu(engine_options: Mapping[str, Any]) -> bool:
    return "GPU" in _resources_of_rank(engine_options, 1)


def _num_running(app: str) -> int:
    """The number of running replicas, from Ray Serve's controller."""
    deployment = serve.status().applications[app].deployments[_REPLICA]
    return sum(n for state, n in deployment.replica_states.items() if state == "RUNNING")


def _actor_options(rank: Mapping[str, float], num_ranks: int) -> dict[str, Any]:
    return {
        "num_cpus": num_ranks * rank["CPU"],
        "num_gpus": num_ranks * rank.get("GPU", 0),
    }
