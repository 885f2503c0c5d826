"""The statistic of sampled tokens: right laws pass as often as they should, wrong ones fail."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from specdec_lab.conformance.rank_statistic import NUM_RANKS, RankStatistic

Floats = npt.NDArray[np.float64]
Draw = Callable[[np.random.Generator, Floats, int], int]

NUM_ANSWERS = 60
LENGTH = 12


def statistic(seed: int, draw: Draw) -> RankStatistic:
    """Answers whose law at each token depends on the token before."""
    rng = np.random.default_rng(seed)
    laws = -np.sort(-rng.dirichlet(np.full(9, 0.6), size=9), axis=1)
    made = RankStatistic()
    for _ in range(NUM_ANSWERS):
        before = 0
        answer = []
        for _ in range(LENGTH):
            law = laws[before]
            rank = draw(rng, law, before)
            answer.append((rank, law[:NUM_RANKS].tolist()))
            before = rank
        made.add(answer)
    return made


def right(rng: np.random.Generator, law: Floats, _before: int) -> int:
    return int(rng.choice(len(law), p=law))


def sharpened(rng: np.random.Generator, law: Floats, _before: int) -> int:
    power = law**1.4
    return int(rng.choice(len(law), p=power / power.sum()))


def kept_too_often(rng: np.random.Generator, law: Floats, before: int) -> int:
    """Verification that keeps a draft, the most likely token, too often."""
    return 0 if rng.random() < 0.2 else right(rng, law, before)


class Sticky:
    """Draws each token right on the whole, and too often the best one behind the best one."""

    def __init__(self) -> None:
        self._uniform = 0.5

    def __call__(self, rng: np.random.Generator, law: Floats, _before: int) -> int:
        # Neighbouring uniform numbers that are correlated: each is uniform by itself.
        self._uniform = (self._uniform + rng.uniform(-0.1, 0.1)) % 1.0
        return int(np.searchsorted(np.cumsum(law), self._uniform, side="right").clip(0, 8))


def test_a_right_law_has_uniform_p_values() -> None:
    p_values = np.array(
        [[s.p_value(), s.pair_p_value()] for s in (statistic(i, right) for i in range(200))]
    )
    for column in p_values.T:
        # 200 uniform numbers: Kolmogorov's distance is under 0.14 but once in a thousand runs.
        distance = np.abs(np.sort(column) - (np.arange(200) + 0.5) / 200).max()
        assert distance < 0.14


@pytest.mark.parametrize("draw", [sharpened, kept_too_often])
def test_a_wrong_law_is_seen(draw: Draw) -> None:
    assert statistic(1, draw).p_value() < 1e-5


def test_a_wrong_law_of_pairs_is_seen() -> None:
    assert statistic(1, Sticky()).pair_p_value() < 1e-5


def test_a_few_tokens_give_no_verdict() -> None:
    few = RankStatistic()
    few.add([(0, [0.9, 0.05, 0.02, 0.01])] * 4)
    assert not few.is_long_enough
