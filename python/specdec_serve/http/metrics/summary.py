"""Logs a summary every ten seconds while there is work."""

from __future__ import annotations

import asyncio
import logging
import time

from specdec_native.requests.outputs import EngineStats, SpeculativeDecodingMetrics
from specdec_serve.http.served_engine import EngineStatistics

_logger = logging.getLogger("specdec_native.server")

INTERVAL_SECONDS = 10.0


class Summary:
    """Summarises the change of an engine's statistics between two calls."""

    def __init__(self, stats: EngineStats, now: float) -> None:
        """`now` is in seconds of any clock."""
        self._before = stats
        self._then = now

    def lines(self, stats: EngineStats, now: float) -> list[str]:
        """The summary since the last call; empty if the engine was and is idle."""
        before, seconds = self._before, max(now - self._then, 1e-9)
        self._before, self._then = stats, now
        num_prompt = stats.num_prompt_tokens - before.num_prompt_tokens
        num_cached = stats.num_cached_tokens - before.num_cached_tokens
        num_generated = stats.num_generation_tokens - before.num_generation_tokens
        is_idle = not (num_prompt or num_generated or stats.num_running or stats.num_waiting)
        if is_idle:
            return []
        parts = [
            f"prompts {num_prompt / seconds:.1f} tokens/s",
            f"generation {num_generated / seconds:.1f} tokens/s",
            f"{stats.num_running} running",
            f"{stats.num_waiting} waiting",
        ]
        if num_preempted := stats.num_preemptions - before.num_preemptions:
            parts.append(f"{num_preempted} preempted")
        used = stats.num_kv_blocks - stats.num_free_kv_blocks
        parts.append(f"KV cache {100 * used / max(stats.num_kv_blocks, 1):.1f}% used")
        if num_prompt + num_cached:
            parts.append(f"prefix cache hits {100 * num_cached / (num_prompt + num_cached):.1f}%")
        lines = ["Engine 000: " + ", ".join(parts)]
        if stats.speculative_decoding is not None and before.speculative_decoding is not None:
            lines += _of_drafts(before.speculative_decoding, stats.speculative_decoding, seconds)
        return lines


def _of_drafts(
    before: SpeculativeDecodingMetrics, now: SpeculativeDecodingMetrics, seconds: float
) -> list[str]:
    num_steps = now.num_spec_steps - before.num_spec_steps
    if num_steps == 0:
        return []
    num_drafted = now.num_draft_tokens - before.num_draft_tokens
    num_accepted = now.num_accepted_draft_tokens - before.num_accepted_draft_tokens
    rates = [
        (late - early) / num_steps
        for early, late in zip(before.accepted_per_position, now.accepted_per_position, strict=True)
    ]
    return [
        f"Engine 000: drafts: mean acceptance length {1 + num_accepted / num_steps:.2f}, "
        f"accepted {num_accepted / seconds:.1f} of {num_drafted / seconds:.1f} tokens/s "
        f"({100 * num_accepted / max(num_drafted, 1):.1f}%), "
        f"by position {', '.join(f'{rate:.3f}' for rate in rates)}"
    ]


async def log_summaries(engine: EngineStatistics) -> None:
    """Logs every INTERVAL_SECONDS until it is cancelled, or the engine is closed."""
    summary = Summary(await asyncio.to_thread(engine.stats), time.monotonic())
    while True:
        await asyncio.sleep(INTERVAL_SECONDS)
        for line in summary.lines(await asyncio.to_thread(engine.stats), time.monotonic()):
            _logger.info("%s", line)
