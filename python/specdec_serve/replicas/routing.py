"""Chooses the replica of a request: the one that knows its prefix, if its queue allows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TypeVar

KeyT = TypeVar("KeyT")

MAX_LEAD = 4  # how many requests longer than the shortest queue the preferred replica's may be


def prefix_keys(token_ids: Sequence[int], salt: str | None, block: int = 64) -> list[bytes]:
    """A hash for each prefix of whole blocks, longest first; at least one."""
    hasher = hashlib.blake2b((salt or "").encode(), digest_size=16)
    keys: list[bytes] = []
    for begin in range(0, max(len(token_ids), 1), block):
        piece = token_ids[begin : begin + block]
        if len(piece) < block and keys:
            break
        hasher.update(b",".join(b"%d" % token for token in piece))
        keys.append(hasher.digest())
    return keys[::-1]


class PrefixMap:
    """Remembers which replica was last given a prefix."""

    def __init__(self, capacity: int = 1 << 16) -> None:
        self._replicas: dict[bytes, str] = {}  # the least recently used first
        self._capacity = capacity

    def by_preference(
        self, keys: Sequence[bytes], queues: Mapping[str, int], avoided: frozenset[str]
    ) -> list[str]:
        """All replicas, the best first. `queues` are the numbers of requests in each.

        The replica with the longest known prefix comes first, unless its queue is more than
        MAX_LEAD longer than the shortest. Avoided replicas come last.
        """
        by_queue = sorted(queues, key=lambda replica: (replica in avoided, queues[replica]))
        shortest = min(queues.values(), default=0)
        for key in keys:
            known = self._replicas.get(key)
            if known is not None and known in queues and known not in avoided:
                if queues[known] <= shortest + MAX_LEAD:
                    by_queue.remove(known)
                    by_queue.insert(0, known)
                break
        return by_queue

    def put(self, keys: Sequence[bytes], replica: str) -> None:
        """Remembers that a replica was given these prefixes."""
        for key in keys:
            self._replicas.pop(key, None)
            self._replicas[key] = replica
        while len(self._replicas) > self._capacity:
            del self._replicas[next(iter(self._replicas))]
