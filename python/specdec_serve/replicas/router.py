"""routing.PrefixMap as a request router of Ray Serve.

Ray Serve has no stable interface to choose a call's replica: its base class RequestRouter is public
but "alpha" in Ray 2.60. Ray's own routers do not fit: ConsistentHashRouter ignores queues, and
PrefixCacheAffinityRouter reads prompts from requests of ray.serve.llm.
"""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from specdec_serve.replicas.failover import Work
from specdec_serve.replicas.routing import PrefixMap, prefix_keys


class PrefixRouter(RequestRouter):  # type: ignore[misc, unused-ignore]
    """Sends work to the replica that has its prefix in the cache, unless its queue is long."""

    def initialize_state(self, **_: Any) -> None:
        """Called once, before anything is routed."""
        self._prefixes = PrefixMap()

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """The replicas in the order in which to try them."""
        work = _work_of(pending_request)
        if work is None:
            return [candidate_replicas]
        cache = self.replica_queue_len_cache
        by_name = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        queues = {name: cache.get(r.replica_id) or 0 for name, r in by_name.items()}
        by_preference = self._prefixes.by_preference(_keys_of(work), queues, work.avoided)
        return [[by_name[name]] for name in by_preference]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        """Remembers where the work went."""
        work = _work_of(pending_request)
        if work is not None:
            self._prefixes.put(_keys_of(work), replica_id.unique_id)


def _work_of(request: PendingRequest | None) -> Work | None:
    first = request.args[0] if request is not None and request.args else None
    return first if isinstance(first, Work) else None


def _keys_of(work: Work) -> list[bytes]:
    return prefix_keys(work.items[0].prompt_token_ids, work.items[0].cache_salt)
