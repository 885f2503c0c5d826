"""Runs requests in the background: a native thread steps, a Python thread applies its outputs."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Sequence

from specdec_native import _core
from specdec_native.requests.completion import Shown
from specdec_native.requests.fair_queue import FairQueue, Part, Share
from specdec_native.requests.news import Mailbox, News
from specdec_native.requests.outputs import RequestOutput
from specdec_native.requests.request import Request


class RequestRunner:
    """The requests of one engine and the threads that run them.

    The core's loop steps without the GIL. One Python thread, the reader, applies the loop's
    outputs to the requests and wakes the threads that wait for them. Python runs signal handlers
    only in the main thread, so an exception from a handler (Ctrl-C, an alarm) never comes between
    a step and its outputs.

    The main thread changes shared state only in single statements without calls: CPython runs
    signal handlers, and switches threads, where a function begins, after a call and where a loop
    goes back, never between two stores. Interrupted code can be called again.
    """

    def __init__(
        self, core: _core.EngineLoop, on_closed: Callable[[], None] = lambda: None
    ) -> None:
        """`on_closed` is called when the core is closed.

        It may be called again: after an interrupt, or by another thread that closes.
        """
        self._core = core
        self._on_closed = on_closed
        self._process = os.getpid()
        self._numbers = itertools.count()
        self._names = itertools.count()
        self._running: dict[str, Request] = {}  # by id
        self._add_lock = threading.Lock()  # held from checking an id to using it
        info = core.model_info()
        self._queue = FairQueue(self._start, info.max_num_seqs, info.max_num_batched_tokens)
        self._news = News()
        self._interrupt: BaseException | None = None  # from a drafter; a waiting thread raises it
        self._closed = False  # the loop reports nothing more
        self._released = False  # the threads have ended and the model is freed
        self._parting = False  # waiting threads are no longer woken
        # For step(). _stepped: requests whose end was not reported. _reported: requests with news
        # from the reader. _leaving: taken from _reported, output not taken yet. _returning: by
        # thread, the outputs that step() is about to return.
        self._stepped: dict[str, tuple[Request, _core.RequestHandle]] = {}
        self._reported: dict[Request, None] = {}
        self._leaving: dict[Request, None] = {}
        self._returning: dict[int, list[tuple[Request, RequestOutput, list[Shown]]]] = {}
        self._step_lock = threading.Lock()
        self._answered_step = 0
        self._reader = threading.Thread(target=self._read, name="specdec reader", daemon=True)
        self._reader.start()

    # -- for callers

    @property
    def core(self) -> _core.EngineLoop:
        """The native loop. Raises RuntimeError where it cannot be called."""
        self._check_open()
        self._check_caller()
        return self._core

    def add(self, requests: Sequence[Request]) -> list[_core.RequestHandle]:
        """Starts all of the requests, or none. Each is aborted when its handle is dropped."""
        self._check_open()
        self._check_caller()
        return self._start([Part(request, request.take(request.params.n)) for request in requests])

    def enter(self, requests: Sequence[Request]) -> Share:
        """Starts the first of the requests, and the others when it is their turn.

        All are aborted when the share is dropped.
        """
        self._check_open()
        self._check_caller()
        share = Share(requests)
        self._queue.enter(share)
        return share

    def leave(self, share: Share) -> None:
        """Aborts the requests of a share; they end soon."""
        ended = self._queue.leave(share)
        for request in ended:
            self._running.pop(request.request_id, None)
        if ended:
            self._news.announce(ended)

    def waiting(self) -> tuple[int, int, int]:
        """What waits in the FairQueue: requests, their prompt tokens, and completions."""
        return self._queue.load()

    def add_for_steps(self, request: Request) -> None:
        """Queues a request that step() advances and reports."""
        try:
            self._check_open()
            self._check_caller()
            part = Part(request, request.take(request.params.n))
            with self._add_lock:
                handles = self._add([part], by_step=True)
                self._stepped[request.request_id] = request, handles[0]
        except BaseException:
            request.is_silent = True
            if self._stepped.get(request.request_id, (None,))[0] is request:
                self._stepped.pop(request.request_id, None)
            raise

    def new_id(self) -> str:
        """An id that no unfinished request has."""
        while self._is_in_use(name := str(next(self._names))):
            pass
        return name

    def wait_for(self, is_true: Callable[[], bool], timeout: float = -1.0) -> bool:
        """Waits like News.wait_until. Raises a KeyboardInterrupt or SystemExit from a drafter."""
        self._check_process()
        self._news.wait_until(lambda: is_true() or self._is_over(), timeout)
        return self._outcome_of(is_true)

    async def wait_for_news(self, mailbox: Mailbox[Request]) -> list[Request]:
        """The requests of this mailbox (Request.mailbox) that have news, once there is one.

        Raises like wait_for().
        """
        self._check_process()
        while True:
            if self._interrupt is not None:
                self._outcome_of(lambda: False)
            if requests := mailbox.take():
                return requests
            self._check_open()
            await mailbox.wait()

    def step(self) -> list[RequestOutput]:
        """Runs one step; returns the new outputs of the requests of add_for_steps().

        Raises the error of a failed request, once.
        """
        thread = threading.get_ident()
        with self._step_lock:
            if thread not in self._returning:  # else an earlier call was interrupted
                self._take_step()
                self._collect(thread)
            for request, _, shown in self._returning[thread]:
                request.shown = shown
                if request.finished:
                    self._stepped.pop(request.request_id, None)
            outputs = [output for _, output, _ in self._returning[thread]]
        del self._returning[thread]
        return outputs

    def abort(self, request_id: str) -> bool:
        """Ends a request and waits until it has ended.

        Returns False when it is unknown, finished or finishes in the step under way.
        """
        core = self.core
        stepped = self._stepped.get(request_id)
        request = self._running.get(request_id) if stepped is None else stepped[0]
        if request is None or request.finished:
            return False
        if request.by_step:  # step() reports nothing more of it
            self._stepped.pop(request_id, None)
            request.is_silent = True
        request.abort_rest()
        for number in request.numbers:
            core.abort(number)
        self.wait_for(request.is_finished)
        return request.is_silent or request.is_aborted()

    def has_unfinished(self) -> bool:
        """Whether step() has anything to do or to report."""
        is_returning = threading.get_ident() in self._returning  # a call was interrupted
        return (is_returning or bool(self._stepped)) and not self._closed

    def interrupt(self, error: BaseException) -> None:
        """Raises the error in a thread or coroutine that waits, or in the next that does."""
        self._interrupt = error
        self._news.announce(list(self._running.values()))

    def close(self) -> None:
        """Aborts every request, wakes waiting threads, and frees the model."""
        if not self._released:
            self._check_caller()
            self._release()

    def part(self) -> None:
        """Frees the model when the engine is collected or the interpreter ends.

        Only daemon threads can still wait then, and they stay asleep.
        """
        self._parting = True
        if self._released or os.getpid() != self._process:
            return
        self._core.stop()
        if not self._core.is_loop_thread() and threading.get_ident() != self._reader.ident:
            self._release()

    # -- inside

    def _release(self) -> None:
        """Ends the threads and frees the model, also where the loop has ended by itself.

        No thread of an engine may outlive the interpreter. Further calls change nothing.
        """
        self._core.close()
        self._reader.join()
        self._on_closed()
        self._released = True

    def _start(self, parts: Sequence[Part]) -> list[_core.RequestHandle]:
        with self._add_lock:
            handles = self._add(parts, by_step=False)
            for request in (part.request for part in parts):
                self._running[request.request_id] = request
                if request.finished:  # perhaps before it was entered
                    self._running.pop(request.request_id, None)
        return handles

    def _add(self, parts: Sequence[Part], *, by_step: bool) -> list[_core.RequestHandle]:
        for part in parts:
            request = part.request
            if not request.numbers and self._is_in_use(request.request_id):
                raise ValueError(
                    f"request_id {request.request_id!r} is in use by an unfinished request"
                )
            part.number = next(self._numbers)
            request.numbers.append(part.number)
            request.by_step = by_step
        return self._core.add([(part.number, part.prepared(), part) for part in parts], by_step)

    def _is_in_use(self, request_id: str) -> bool:
        stepped = self._stepped.get(request_id)
        return request_id in self._running or (stepped is not None and not stepped[0].is_silent)

    def _is_over(self) -> bool:
        return self._interrupt is not None or self._closed

    def _outcome_of(self, is_true: Callable[[], bool]) -> bool:
        interrupt, self._interrupt = self._interrupt, None
        if interrupt is not None:
            raise interrupt
        if is_true():
            return True
        self._check_open()
        return False

    def _check_open(self) -> None:
        if self._parting and threading.current_thread() is not threading.main_thread():
            threading.Event().wait()  # the interpreter ends, and this daemon thread with it
        if self._closed:
            raise RuntimeError("the engine is closed")

    def _check_caller(self) -> None:
        self._check_process()
        if self._core.is_loop_thread():
            raise RuntimeError("a drafter or logits processor cannot call the engine that runs it")

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(
                "the engine belongs to the process that made it; make one in this process"
            )

    def _take_step(self) -> None:
        number = self.core.ask_for_step()
        self.wait_for(lambda: self._answered_step >= number)

    def _collect(self, thread: int) -> None:
        """Fills self._returning[thread] with the outputs of reported requests."""
        self._leaving, self._reported = self._leaving | self._reported, {}
        requests = [r for r in self._leaving if r.has_news() and not r.is_silent]
        failed = next((r for r in requests if r.error is not None), None)
        if failed is not None and failed.error is not None:
            # A failed request is returned alone, so that raising its error loses no other output.
            self._stepped.pop(failed.request_id, None)
            failed.is_silent = True
            raise failed.error
        ready = [(r, *r.peek()) for r in requests]
        self._returning[thread], self._leaving = ready, {}

    def _read(self) -> None:
        """The reader's work: until the loop has ended."""
        try:
            while (taken := self._core.take_outputs()) is not None and not self._parting:
                self._take_in(*taken)
                taken = None  # its requests must not live as long as this thread waits
        except BaseException as error:  # no request's own error: no further output could be read
            self._core.stop()
            stepped = list(self._stepped.values())
            for request in [*self._running.values(), *(request for request, _ in stepped)]:
                if not request.finished:
                    request.end(error)
            raise
        finally:
            self._closed = True
            self._queue.leave_all()
            if not self._parting:
                self._news.announce(list(self._running.values()))

    def _take_in(self, outputs: list[tuple[Part, _core.RequestOutput]], step: int) -> None:
        with_news = [part.request for part, output in outputs if self._apply(part, output)]
        with_news += self._queue.reported([part for part, _ in outputs])
        is_answer = step != self._answered_step
        self._answered_step = step
        if with_news or is_answer:
            self._news.announce(with_news)

    def _apply(self, part: Part, output: _core.RequestOutput) -> bool:
        """Applies an output to a part; returns whether a waiting thread has to be woken."""
        request = part.request
        if request.finished:
            return False
        if request.num_left > 0 and part.share() is None:  # no share is left to start more of it
            request.abort_rest()
        try:
            for index in request.apply(output, part.completions.start):
                self._core.stop_completion(part.number, index)
        except BaseException as error:  # this request's own error: the others go on
            for number in request.numbers:
                self._core.abort(number)
            request.end(error)
        if not request.by_step:
            if request.finished:
                self._running.pop(request.request_id, None)
        elif not request.is_silent:
            self._reported[request] = None
        return request.has_news()
