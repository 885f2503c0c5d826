"""Whether sampled tokens follow the probabilities that the server says they have.

Every token of every answer counts, whatever stands before it. Given what stands before it, the
indicators of "the r-th most likely token was drawn" have the probabilities p_r for their means and
diag(p) - p p^T for their covariance, so the sums of indicators minus means over all tokens are a
martingale, and S^T V^-1 S with the summed covariances V is chi-square with as many degrees of
freedom as ranks, for long enough runs (the martingale central limit theorem).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

NUM_RANKS = 4  # the most likely tokens that are told apart; the others are one class
_NUM_PAIR_RANKS = 2
_LEAST_EXPECTED = 5.0  # of a class, as for every chi-square


class RankStatistic:
    """Sums over tokens, and over pairs of neighbouring tokens."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self._expected = np.zeros(NUM_RANKS + 1)
        self._sum = np.zeros(NUM_RANKS)
        self._covariance = np.zeros((NUM_RANKS, NUM_RANKS))
        num_pairs = _NUM_PAIR_RANKS**2
        self._pair_sum = np.zeros(num_pairs)
        self._pair_covariance = np.zeros((num_pairs, num_pairs))

    def add(self, answer: Sequence[tuple[int, Sequence[float]]]) -> None:
        """Adds the tokens of one answer, in order.

        answer: for each token the rank that was drawn (0 is the most likely; NUM_RANKS and more
            are the others) and the probabilities of the first NUM_RANKS ranks.
        """
        before: npt.NDArray[np.float64] | None = None
        for rank, listed in answer:
            means = np.asarray(listed, dtype=np.float64)
            drawn = np.zeros(NUM_RANKS)
            if rank < NUM_RANKS:
                drawn[rank] = 1.0
            centred = drawn - means
            covariance = np.diag(means) - np.outer(means, means)
            self.num_tokens += 1
            self._expected[:NUM_RANKS] += means
            self._expected[NUM_RANKS] += 1.0 - means.sum()
            self._sum += centred
            self._covariance += covariance
            head = centred[:_NUM_PAIR_RANKS]
            if before is not None:
                # Given the first token of the pair, its factor is a number.
                self._pair_sum += np.outer(before, head).ravel()
                inner = covariance[:_NUM_PAIR_RANKS, :_NUM_PAIR_RANKS]
                self._pair_covariance += np.kron(np.outer(before, before), inner)
            before = head

    @property
    def is_long_enough(self) -> bool:
        """Whether each class is expected often enough for the law to be chi-square's."""
        return bool((self._expected >= _LEAST_EXPECTED).all())

    def p_value(self) -> float:
        """The chance of sums so far from their means, or further, if the law is right."""
        return _chi_square_tail(self._sum, self._covariance)

    def pair_p_value(self) -> float:
        """The same for products of neighbours: a law of pairs that tokens alone do not show."""
        return _chi_square_tail(self._pair_sum, self._pair_covariance)


def _chi_square_tail(sums: npt.NDArray[np.float64], covariance: npt.NDArray[np.float64]) -> float:
    """The upper tail of chi-square at S^T V^-1 S, for an even number of degrees of freedom."""
    value = float(sums @ np.linalg.pinv(covariance, hermitian=True) @ sums)
    half = max(value, 0.0) / 2
    degrees = len(sums)
    terms = (half**i / math.factorial(i) for i in range(degrees // 2))
    return math.exp(-half) * sum(terms)
