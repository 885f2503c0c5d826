"""Decides in which order completions of several callers enter the engine: each caller in turn."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence

from specdec_native import _core
from specdec_native.requests.request import Request

_KEPT_FREE = 4  # a quarter of the seats stays free for callers to come


class Part:
    """Some completions of a request, which the core runs as a request of its own.

    Attributes:
        number: the request's name in the core.
        completions: indices of the completions in the request.
        share: its caller's share, as long as it exists.
        num_new_tokens: tokens of the prompt and of a resumed answer; 0 if an earlier part of the
            same request brought these.
    """

    def __init__(
        self,
        request: Request,
        completions: range,
        share: Callable[[], Share | None] = lambda: None,
    ) -> None:
        self.request = request
        self.number = -1
        self.completions = completions
        self.share = share
        self.num_new_tokens = 0
        if completions.start == 0:
            self.num_new_tokens = len(request.prompt_token_ids) + len(request.resumed_token_ids)
        self._num_running = len(completions)
        self._is_begun = False

    def prepared(self) -> _core.PreparedRequest:
        """The request as the core receives it."""
        return self.request.prepared.part(self.completions.start, len(self.completions))

    def take_ended(self) -> int:
        """The number of its completions that have ended since the last call."""
        num_running = self.request.num_running(self.completions)
        num_ended, self._num_running = self._num_running - num_running, num_running
        return num_ended

    def take_begun(self) -> int:
        """num_new_tokens at the first call, then 0."""
        num_tokens, self._is_begun = 0 if self._is_begun else self.num_new_tokens, True
        return num_tokens


class Share:
    """The requests of one caller. They enter the engine a part at a time.

    Its running parts are aborted when the share is dropped.
    """

    def __init__(self, requests: Sequence[Request]) -> None:
        self.requests = requests
        self.handles: list[_core.RequestHandle] = []
        self.num_running = 0  # completions
        self.priority = min((request.priority for request in requests), default=0)
        self._next = 0

    def next_request(self) -> Request | None:
        """The first request with completions that have not entered the engine."""
        while self._next < len(self.requests) and self.requests[self._next].num_left == 0:
            self._next += 1
        return self.requests[self._next] if self._next < len(self.requests) else None


class FairQueue:
    """Keeps a caller with thousands of completions from holding up all others.

    The first completion of every caller enters the engine at once. Further completions follow while
    less than three quarters of the engine's seats are taken, and while the prompts that it has not
    run yet are less than a step. The caller with the fewest completions in the engine is next.
    Threads share the queue.
    """

    def __init__(
        self,
        start: Callable[[Sequence[Part]], list[_core.RequestHandle]],
        max_num_seqs: int,
        max_num_batched_tokens: int,
    ) -> None:
        """`start` hands parts to the engine: all of them or, if it raises, none."""
        self._start = start
        self._most_running = max(1, max_num_seqs - max(1, max_num_seqs // _KEPT_FREE))
        self._most_tokens = max_num_batched_tokens
        self._lock = threading.Lock()
        self._num_running = 0
        self._num_tokens = 0  # in prompts of parts that the engine has not reported yet
        self._waiting: list[weakref.ref[Share]] = []

    def enter(self, share: Share) -> None:
        """Starts as many completions as may start, at least one. Raises what `start` does."""
        with self._lock:
            parts: list[Part] = []
            room, tokens = self._room()
            while (request := share.next_request()) is not None:
                if parts and (room <= 0 or tokens <= 0):
                    break
                parts.append(Part(request, request.take(max(1, room)), weakref.ref(share)))
                room -= len(parts[-1].completions)
                tokens -= parts[-1].num_new_tokens
            self._give(share, parts)
            if share.next_request() is not None:
                self._waiting.append(weakref.ref(share))

    def leave(self, share: Share) -> list[Request]:
        """Starts no more of the share and aborts its running parts.

        Returns the requests that have ended because of that.
        """
        with self._lock:
            self._waiting = [other for other in self._waiting if other() is not share]
            ended = [request for request in share.requests if request.abort_rest()]
        for handle in share.handles:
            handle.abort()
        return ended

    def leave_all(self) -> None:
        """Starts no more requests: the engine has ended."""
        with self._lock:
            for share in self._live():
                for request in share.requests:
                    request.abort_rest()
            self._waiting.clear()

    def reported(self, parts: Sequence[Part]) -> list[Request]:
        """Called when the engine has reported progress of the parts.

        Starts further completions if there is room. Returns requests that failed to start; these
        have ended with an error.
        """
        with self._lock:
            if any([self._settle(part) for part in parts]):
                return self._fill()
        return []

    def load(self) -> tuple[int, int, int]:
        """What waits: requests that have not begun, their prompt tokens; waiting completions."""
        with self._lock:
            left = [r for share in self._live() for r in share.requests if r.num_left > 0]
        unbegun = [request for request in left if not request.numbers]
        num_tokens = sum(len(request.prompt_token_ids) for request in unbegun)
        return len(unbegun), num_tokens, sum(request.num_left for request in left)

    # -- with the lock

    def _room(self) -> tuple[int, int]:
        """How many completions and how many of their prompt tokens may enter the engine."""
        return self._most_running - self._num_running, self._most_tokens - self._num_tokens

    def _live(self) -> list[Share]:
        """The shares with waiting completions."""
        shares = [share for other in self._waiting if (share := other()) is not None]
        shares = [share for share in shares if share.next_request() is not None]
        self._waiting = [weakref.ref(share) for share in shares]
        return shares

    def _fill(self) -> list[Request]:
        failed = []
        while min(self._room()) > 0 and (shares := self._live()):
            share = min(shares, key=lambda s: (s.priority, s.num_running))
            request = share.next_request()
            assert request is not None
            most = max(1, self._room()[0] // len(shares))
            part = Part(request, request.take(most), weakref.ref(share))
            try:
                self._give(share, [part])
            except Exception as error:
                request.end(error)
                failed.append(request)
        return failed

    def _give(self, share: Share, parts: Sequence[Part]) -> None:
        share.handles += self._start(parts)
        num_completions = sum(len(part.completions) for part in parts)
        share.num_running += num_completions
        self._num_running += num_completions
        self._num_tokens += sum(part.num_new_tokens for part in parts)

    def _settle(self, part: Part) -> bool:
        """Updates the counts after a part's progress; returns whether there is more room."""
        num_ended, num_tokens = part.take_ended(), part.take_begun()
        self._num_running -= num_ended
        self._num_tokens -= num_tokens
        share = part.share()
        if share is not None:
            share.num_running -= num_ended
        return num_ended + num_tokens > 0
