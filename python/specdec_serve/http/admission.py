"""Limits the number of waiting requests."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_native.requests.request import Request
from specdec_serve.http.errors import ApiError
from specdec_serve.http.served_engine import EngineStatistics
from specdec_serve.http.server_options import ServerOptions

RETRY_SECONDS = "1"  # the Retry-After header


class QueueFull(ApiError):
    """A request exceeds a limit of the queue.

    Attributes:
        limit: the name of the option, such as "max_num_queued_reqs".
    """

    def __init__(self, limit: str, most: int) -> None:
        super().__init__(
            503,
            f"The queue is full (--{limit.replace('_', '-')} {most}); ask again later.",
            headers={"retry-after": RETRY_SECONDS},
        )
        self.limit = limit


def check_queue(
    engine: EngineStatistics, options: ServerOptions, requests: Sequence[Request] = ()
) -> None:
    """Raises QueueFull if the queue has no room for `requests`, or for any further request."""
    most_requests, most_tokens = options.max_queued_requests, options.max_queued_tokens
    if most_requests is None and most_tokens is None:
        return
    load = engine.load()
    num_tokens = sum(len(request.prompt_token_ids) for request in requests)
    _check("max_num_queued_reqs", load.num_waiting, len(requests), most_requests)
    _check("max_num_queued_tokens", load.num_waiting_tokens, num_tokens, most_tokens)


def _check(limit: str, num_waiting: int, num_new: int, most: int | None) -> None:
    # A call that exceeds the limit by itself may run when nothing waits.
    if most is not None and num_waiting + max(1, num_new) > most and (num_waiting or not most):
        raise QueueFull(limit, most)
