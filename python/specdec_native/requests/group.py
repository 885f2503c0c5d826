"""Several requests of one caller, read by one coroutine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from specdec_native.requests.news import Mailbox
from specdec_native.requests.outputs import RequestOutput
from specdec_native.requests.request import Request
from specdec_native.requests.request_runner import RequestRunner


class RequestGroup(AsyncIterator[list[tuple[int, RequestOutput]]]):
    """Streams the outputs of several requests, each with the index of its request.

    The requests run whether or not anybody reads: an output holds everything since the last one.
    They are aborted when the group is dropped. If there are very many requests, some start only
    when others have ended: see FairQueue.
    """

    def __init__(
        self,
        owner: object,
        runner: RequestRunner,
        requests: Sequence[Request],
        interval: int = 1,
    ) -> None:
        """Starts the requests. Must be called in a coroutine.

        Between a completion's first token and its end, there is an output for every `interval`
        tokens.
        """
        self.requests = requests
        self._interval = interval
        self._owner = owner  # the engine, which lives as long as the group
        self._runner = runner
        self._mailbox: Mailbox[Request] = Mailbox()
        self._indices = {request: i for i, request in enumerate(requests)}
        self._num_unread = len(requests)  # requests whose end was not shown
        for request in requests:
            request.mailbox = self._mailbox
        self._share = runner.enter(requests)

    async def __anext__(self) -> list[tuple[int, RequestOutput]]:
        """Raises the error of a request that failed, even where it has unread tokens."""
        if self._num_unread == 0:
            raise StopAsyncIteration
        outputs: list[tuple[int, RequestOutput]] = []
        while not outputs:
            for request in await self._runner.wait_for_news(self._mailbox):
                if request.error is not None:
                    raise request.error
                if self._interval > 1 and not request.has_unseen(self._interval):
                    continue
                output = request.take_output()
                if request.error is not None:  # it may have failed since has_news()
                    raise request.error
                if output.finished:
                    self._num_unread -= 1
                outputs.append((self._indices[request], output))
        return outputs

    def abort(self) -> None:
        """Ends the requests soon, with the finish_reason "abort"."""
        self._runner.leave(self._share)
