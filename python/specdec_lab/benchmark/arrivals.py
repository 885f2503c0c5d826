"""When the requests of an open loop are sent."""

from __future__ import annotations

import math

import numpy as np


def arrival_times(num: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """Seconds from the first request to each of `num` requests.

    rate: requests a second; infinite for all at once.
    burstiness: the shape of the gamma distribution that the gaps follow. 1 is a Poisson process,
        less makes bursts, more makes gaps alike, and infinity makes them equal. Their mean is
        1 / rate in all cases.
    """
    if math.isinf(rate) or num == 0:
        return [0.0] * num
    if math.isinf(burstiness):
        return [i / rate for i in range(num)]
    gaps = np.random.default_rng(seed).gamma(burstiness, 1.0 / (rate * burstiness), num - 1)
    return [0.0, *np.cumsum(gaps).tolist()]
