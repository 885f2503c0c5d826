"""Waits for what a test expects to come true."""

import time
from collections.abc import Callable

PATIENCE = 120.0  # seconds that a loaded machine may take for what takes one at most


def wait_until(is_true: Callable[[], bool], seconds: float = PATIENCE) -> float:
    """Seconds until it came true."""
    begin = time.monotonic()
    while not is_true():
        assert time.monotonic() < begin + seconds, "what was waited for has not come true"
        time.sleep(0.005)
    return time.monotonic() - begin
