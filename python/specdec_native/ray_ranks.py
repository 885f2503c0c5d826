"""Ranks that are actors of Ray: `distributed_executor_backend="ray"`.

The process that makes the engine is rank 0. It starts an actor for every other rank, in the
bundles of a placement group, and the ranks find each other at an address and port of rank 0's
node. An actor ends with the engine: when the engine stops it, or when Ray sees that rank 0's
process is gone.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from specdec_native import _core
from specdec_native.checkpoints.errors import MissingDependencyError

try:
    import ray
    from ray.exceptions import GetTimeoutError
    from ray.util.placement_group import (
        PlacementGroup,
        get_current_placement_group,
        placement_group,
        remove_placement_group,
    )
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
except ModuleNotFoundError as error:
    raise MissingDependencyError("ray", 'distributed_executor_backend="ray"', "ray") from error

ServeRank = Callable[[bytes, str, int], None]  # the pickled configuration, the group, the rank


class _RankActor:
    """The process of a rank."""

    def is_up(self) -> bool:
        return True

    def run(self, serve: ServeRank, state: bytes, group: str, rank: int) -> None:
        """Serves rank 0 until the engine is closed."""
        serve(state, group, rank)


class RayRanks:
    """The actors of ranks 1 and up, which join config.rank_group.

    Each calls serve(state, group, rank). They take bundles 1 and up of the placement group that
    this process is in, as a replica of Ray Serve with `placement_group_bundles` is. Elsewhere they
    get a placement group of their own.

    Raises Unavailable where Ray does not have these resources in time.
    """

    def __init__(
        self,
        config: _core.EngineConfig,
        num_ranks: int,
        state: bytes,
        serve: ServeRank,
    ) -> None:
        self._actors: list[Any] = []
        self._own_bundles: PlacementGroup | None = None
        self._port: socket.socket | None = None
        if not ray.is_initialized():
            ray.init()
        try:
            bundles, first = self._bundles(config, num_ranks - 1)
            for bundle in range(first, first + num_ranks - 1):
                self._actors.append(_new_actor(bundles, bundle))
            ray.get(
                [actor.is_up.remote() for actor in self._actors],
                timeout=config.distributed_timeout_seconds,
            )
        except GetTimeoutError:
            self.end()
            raise _core.Unavailable(
                f"distributed_executor_backend: Ray has not started {num_ranks - 1} more ranks "
                f"within distributed_timeout_seconds ({config.distributed_timeout_seconds:g} s); "
                "`ray status` says which resources they wait for"
            ) from None
        host = ray.util.get_node_ip_address()
        self._port = reserve_port(host)
        config.rank_group = group = _core.RankGroup(num_ranks, host, self._port.getsockname()[1])
        for rank, actor in enumerate(self._actors, 1):
            actor.run.remote(serve, state, group.name, rank)

    def end(self) -> None:
        """Ends actors that have not ended with the engine, and gives their resources back."""
        for actor in self._actors:
            ray.kill(actor)
        self._actors = []
        if self._port is not None:
            self._port.close()
        bundles = self._own_bundles  # another thread may end them, too
        if bundles is not None:
            remove_placement_group(bundles)
            self._own_bundles = None

    def _bundles(self, config: _core.EngineConfig, num_actors: int) -> tuple[PlacementGroup, int]:
        """A placement group, and the number of its bundle for rank 1."""
        given = get_current_placement_group()
        if given is None:
            bundle = resources_of_rank(config.device, config.num_threads)
            self._own_bundles = placement_group([bundle] * num_actors, strategy="PACK")
            return self._own_bundles, 0
        if given.bundle_count <= num_actors:
            raise ValueError(
                f"distributed_executor_backend: the placement group has {given.bundle_count} "
                f"bundles; {num_actors + 1} ranks need one each"
            )
        return given, 1


def resources_of_rank(device: str, num_threads: int) -> dict[str, float]:
    """The Ray resources of a rank: its threads, or a GPU and the thread that drives it."""
    if device.startswith("cuda"):
        return {"CPU": 1, "GPU": 1}
    return {"CPU": num_threads or 1}


def _new_actor(bundles: PlacementGroup, bundle: int) -> Any:
    resources = bundles.bundle_specs[bundle]
    strategy = PlacementGroupSchedulingStrategy(bundles, placement_group_bundle_index=bundle)
    options = {
        "num_cpus": resources.get("CPU", 0),
        "num_gpus": resources.get("GPU", 0),
        "scheduling_strategy": strategy,
    }
    return ray.remote(_RankActor).options(**options).remote()


def reserve_port(host: str) -> socket.socket:
    """A socket at a free port, which nobody else is given while it is open.

    It does not listen, so a socket with SO_REUSEADDR, as the engine's is, may listen at the port.
    """
    held = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((host, 0))
    return held
