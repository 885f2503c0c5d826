"""Send times of the requests in an open loop."""

from __future__ import annotations

import math

import numpy as np


def arrival_times(num: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """Seconds from the first request to each of `num` requests.

    rate: requests a second; infinite for all at once.
    burstiness: the shape of the gaps' gamma distribution. 1 is a Poisson process, smaller values
        make bursts, larger ones more regular gaps, and infinity equal gaps. The mean gap is always
        1 / rate.
    """
    if math.isinf(rate) or num == 0:
        return [0.0] * num
    if math.isinf(burstiness):
        return [i / rate for i in range(num)]
    gaps = np.random.default_rng(seed).gamma(burstiness, 1.0 / (rate * burstiness), num - 1)
    return [0.0, *np.cumsum(gaps).tolist()]
