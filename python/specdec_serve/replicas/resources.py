"""Computes the resources of replicas, and whether a cluster has room for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Resources = Mapping[str, float]  # such as {"CPU": 8, "GPU": 1}


def num_fitting(need: Resources, nodes: Sequence[Resources]) -> int:
    """How many replicas with this need fit on the nodes; each is on one node."""
    wanted = {name: amount for name, amount in need.items() if amount > 0}
    return sum(
        int(min(node.get(name, 0.0) // amount for name, amount in wanted.items()))
        for node in nodes
        if wanted
    )


def equal_share(num_ranks: int, num_replicas: int, nodes: Sequence[Resources]) -> int:
    """CPUs for each rank of each replica; the ranks of a replica share a node."""
    most = int(max((node.get("CPU", 0.0) for node in nodes), default=0.0)) // num_ranks
    for cpus in range(most, 1, -1):
        if num_fitting({"CPU": cpus * num_ranks}, nodes) >= num_replicas:
            return cpus
    return 1


def shortage(need: Resources, count: int, nodes: Sequence[Resources]) -> str | None:
    """An error text if `count` replicas do not fit on the nodes; else None."""
    if num_fitting(need, nodes) >= count:
        return None
    wanted = [name for name, amount in need.items() if amount > 0]
    each = " and ".join(f"{need[name]:g} {name}s" for name in wanted)
    there = "; ".join(
        " and ".join(f"{node.get(name, 0.0):g} {name}s" for name in wanted) for node in nodes
    )
    return (
        f"{count} replicas or ranks of {each} each do not fit onto the cluster, whose nodes have "
        f"{there}: replicas x ranks x num_threads must be at most the CPUs. Set a smaller "
        "num_replicas or num_threads, or leave num_threads out for equal shares"
    )


def threads_of(num_cpus: float, num_cores: int, num_logical: int) -> int:
    """Threads for `num_cpus` reserved CPUs on a machine with several logical CPUs per core."""
    return max(1, int(num_cpus) * num_cores // max(num_logical, 1))
