"""What replicas take of a cluster: equal shares of its CPUs, and a sentence where it is short."""

import pytest

from specdec_serve.replicas.resources import equal_share, num_fitting, shortage, threads_of


@pytest.mark.parametrize(
    ("cpus", "num_ranks", "num_replicas", "share"),
    [
        ([8], 1, 1, 8),
        ([8], 1, 2, 4),
        ([8], 1, 3, 2),
        ([8], 2, 2, 2),
        ([4, 4], 1, 2, 4),
        ([6, 3], 1, 3, 3),
        ([4, 4], 1, 3, 2),  # one on a node, two on the other
        ([2], 1, 5, 1),  # which do not fit
        ([], 1, 1, 1),
    ],
)
def test_replicas_share_the_cpus(
    cpus: list[int], num_ranks: int, num_replicas: int, share: int
) -> None:
    nodes = [{"CPU": float(count)} for count in cpus]
    assert equal_share(num_ranks, num_replicas, nodes) == share
    if share > 1:
        assert num_fitting({"CPU": share * num_ranks}, nodes) >= num_replicas
        assert num_fitting({"CPU": (share + 1) * num_ranks}, nodes) < num_replicas


def test_a_replica_is_on_one_node() -> None:
    nodes = [{"CPU": 4.0}, {"CPU": 4.0, "GPU": 1.0}]
    assert num_fitting({"CPU": 8}, nodes) == 0
    assert num_fitting({"CPU": 1, "GPU": 1}, nodes) == 1
    assert num_fitting({"CPU": 1, "GPU": 0}, nodes) == 8


def test_a_shortage_is_a_sentence() -> None:
    nodes = [{"CPU": 4.0}, {"CPU": 2.0}]
    assert shortage({"CPU": 2}, 3, nodes) is None
    message = shortage({"CPU": 8}, 2, nodes)
    assert message is not None
    for part in ("2 replicas", "8 CPUs", "4 CPUs; 2 CPUs", "num_threads"):
        assert part in message
    gpus = shortage({"CPU": 1, "GPU": 1}, 1, nodes)
    assert gpus is not None and "4 CPUs and 0 GPUs" in gpus


@pytest.mark.parametrize(
    ("num_cpus", "num_cores", "num_logical", "threads"),
    [(8, 8, 16, 4), (8, 8, 8, 8), (1, 8, 16, 1), (16, 8, 16, 8), (3, 2, 0, 6)],
)
def test_threads_are_for_cores(
    num_cpus: float, num_cores: int, num_logical: int, threads: int
) -> None:
    """Ray's CPUs are the system's logical CPUs; a core may have two."""
    assert threads_of(num_cpus, num_cores, num_logical) == threads
