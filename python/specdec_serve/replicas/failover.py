"""Requests that survive the loss of their replica.

The tokens of an answer depend only on prompt, parameters and seed, and not on how the tokens before
them were computed. So if a replica is lost, another one processes the tokens that the client has
seen as part of the prompt, and generates only the rest. It repeats the last output as a check: the
tokens must be equal. Outputs are joined at the level of the engine's RequestOutput, which counts
tokens and characters: the HTTP events of two replicas would split the answer at different places,
because steps differ in their number of tokens. Ids, roles, tool calls and event numbers are made by
the ingress, which keeps running.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import NamedTuple, TypeAlias

from specdec_native.requests.outputs import CompletionOutput, RequestOutput
from specdec_native.requests.sampling_params import SamplingParams
from specdec_serve.http.errors import ApiError

_logger = logging.getLogger("specdec_native.serve")

Outputs: TypeAlias = list[tuple[int, RequestOutput]]
ShownPrompt: TypeAlias = tuple["str | None", "list[int]"]  # text and tokens

_SEED_MASK = 2**64 - 1


class ReplicaLost(Exception):
    """The replica of a request has died, or its engine has failed."""


class ReplicasDiffer(ApiError):
    """Two replicas gave one request different tokens."""

    def __init__(self) -> None:
        super().__init__(
            500,
            "The replica of this request was lost, and another one answers differently: replicas "
            "must have the same checkpoint, engine options and kind of device.",
        )


class RequestLost(ApiError):
    """Every replica that ran the request was lost."""

    def __init__(self, num_replicas: int) -> None:
        super().__init__(
            503,
            f"{num_replicas} replicas in turn were lost while they ran this request; it is not "
            "tried again, since it may be why.",
        )


class NoReplica(ApiError):
    """No replica can answer at the moment."""

    def __init__(self) -> None:
        super().__init__(503, "No replica can answer at present.")


@dataclasses.dataclass(frozen=True)
class WorkItem:
    """One prompt with its own parameters, which include a seed.

    Attributes:
        resumed_token_ids: see Prompt.
    """

    prompt_token_ids: list[int]
    params: SamplingParams
    cache_salt: str | None = None
    priority: int = 0
    resumed_token_ids: Sequence[int] = ()

    def rest_of(self, index: int, token_ids: Sequence[int]) -> WorkItem:
        """The work item that continues completion `index` after these tokens."""
        params = self.params.clone()
        assert params.seed is not None
        params.n, params.seed = 1, (params.seed + index) & _SEED_MASK
        params.prompt_logprobs = None  # they were shown already
        return dataclasses.replace(self, params=params, resumed_token_ids=token_ids)


@dataclasses.dataclass(frozen=True)
class Work:
    """The work of a replica: the prompts of one call.

    Attributes:
        interval: least number of tokens per output.
        repeats: whether the tokens of an answer do not depend on where a replica begins, as with
            exact verification of drafts.
        avoided: ids of lost replicas that have run this work.
    """

    items: Sequence[WorkItem]
    interval: int = 1
    repeats: bool = True
    avoided: frozenset[str] = frozenset()


# Runs work on a replica: yields the replica's id, then outputs. Raises ReplicaLost.
Runner: TypeAlias = Callable[[Work], AsyncGenerator["str | Outputs", None]]


class _Cursor(NamedTuple):
    """A position in a completion.

    Attributes:
        logprob: sum of the logprobs of the tokens before it.
    """

    num_tokens: int = 0
    num_chars: int = 0
    logprob: float = 0.0


_START = _Cursor()


@dataclasses.dataclass
class _Seen:
    """The shown part of a completion, and how much of it the current replica has repeated.

    Attributes:
        end: end of the shown part.
        last: beginning of the last output with tokens.
        resumed: where the current replica began.
    """

    token_ids: list[int] = dataclasses.field(default_factory=list)
    end: _Cursor = _START
    last: _Cursor = _START
    resumed: _Cursor = _START
    has_ended: bool = False
    num_repeated_tokens: int = 0
    num_repeated_chars: int = 0

    def resume(self, cursor: _Cursor) -> list[int]:
        """Notes that another replica begins at `place`. Returns the tokens before."""
        self.resumed = cursor
        self.num_repeated_tokens, self.num_repeated_chars, _ = cursor
        return self.token_ids[: cursor.num_tokens]


class Splice:
    """Joins the outputs of several replicas into one sequence."""

    def __init__(self, work: Work, prompts: Sequence[ShownPrompt]) -> None:
        """`prompts` are added to the outputs: replicas do not send prompts back."""
        num_prompts = len(prompts)
        self._work = work
        self._prompts = prompts
        self._seen: list[dict[int, _Seen]] = [{} for _ in range(num_prompts)]
        self._num_cached: list[int | None] = [None] * num_prompts
        self._is_begun = [False] * num_prompts
        self._num_open = [item.params.n for item in work.items]  # completions that have not ended
        # Index of the prompt and of the first completion, for each item of the current replica.
        self._origins = [(index, 0) for index in range(num_prompts)]

    @property
    def is_finished(self) -> bool:
        """Whether every prompt's last output was shown."""
        return not any(self._num_open)

    def work_left(self, avoided: frozenset[str]) -> Work:
        """The work that is left for another replica, whose outputs come next."""
        self._origins = []
        items = []
        for index, item in enumerate(self._work.items):
            if not self._is_begun[index]:
                self._origins.append((index, 0))
                items.append(item)
                continue
            for completion in range(item.params.n):
                seen = self._seen[index].setdefault(completion, _Seen())
                if not seen.has_ended:
                    tokens = seen.resume(seen.last if self._work.repeats else seen.end)
                    self._origins.append((index, completion))
                    items.append(item.rest_of(completion, tokens))
        return dataclasses.replace(self._work, items=items, avoided=avoided)

    def new_parts(self, outputs: Outputs) -> Outputs:
        """The part of a replica's outputs that was not shown before.

        Raises ReplicasDiffer where the replica's tokens differ from the shown ones.
        """
        shown = []
        for item, output in outputs:
            index, first = self._origins[item]
            new = self._new_output(index, first, output)
            if new is not None:
                shown.append((index, new))
        return shown

    def _new_output(self, index: int, first: int, output: RequestOutput) -> RequestOutput | None:
        parts = [self._new_of(index, first + part.index, part) for part in output.outputs]
        parts_left = [part for part in parts if part is not None]
        if not parts_left:
            return None
        prompt_logprobs = output.prompt_logprobs
        if self._is_begun[index]:
            if prompt_logprobs is not None:
                prompt_logprobs = prompt_logprobs[:0]
        else:
            self._is_begun[index] = True
            self._num_cached[index] = output.num_cached_tokens
        return dataclasses.replace(
            output,
            prompt=self._prompts[index][0],
            prompt_token_ids=self._prompts[index][1],
            outputs=parts_left,
            prompt_logprobs=prompt_logprobs,
            finished=self._num_open[index] == 0,
            num_cached_tokens=self._num_cached[index],
        )

    def _new_of(
        self, index: int, completion: int, part: CompletionOutput
    ) -> CompletionOutput | None:
        seen = self._seen[index].setdefault(completion, _Seen())
        skipped = min(len(seen.token_ids) - seen.num_repeated_tokens, len(part.token_ids))
        expected = seen.token_ids[seen.num_repeated_tokens : seen.num_repeated_tokens + skipped]
        if list(part.token_ids[:skipped]) != expected:
            raise ReplicasDiffer
        skipped_chars = min(seen.end.num_chars - seen.num_repeated_chars, len(part.text))
        seen.num_repeated_tokens += len(part.token_ids)
        seen.num_repeated_chars += len(part.text)
        is_end = part.finish_reason is not None
        if is_end and seen.num_repeated_tokens < len(seen.token_ids):
            raise ReplicasDiffer  # it ends earlier than the shown part
        token_ids, text = part.token_ids[skipped:], part.text[skipped_chars:]
        if not token_ids and not text and not is_end:
            return None
        logprob = part.cumulative_logprob
        if logprob is not None:
            logprob += seen.resumed.logprob
        num_before = seen.end.num_tokens
        if token_ids:
            seen.last = seen.end
        seen.token_ids.extend(token_ids)
        seen.end = _Cursor(len(seen.token_ids), seen.end.num_chars + len(text), logprob or 0.0)
        seen.has_ended = is_end
        self._num_open[index] -= is_end
        trees = part.draft_trees
        return dataclasses.replace(
            part,
            index=completion,
            text=text,
            token_ids=token_ids,
            cumulative_logprob=logprob,
            logprobs=None if part.logprobs is None else part.logprobs[skipped:],
            text_lengths=None if part.text_lengths is None else part.text_lengths[skipped:],
            draft_trees=None
            if trees is None
            else [tree for tree in trees if tree.num_tokens >= num_before],
        )


class FailoverGroup(AsyncIterator[Outputs]):
    """The outputs of one call's work, whichever replicas run it.

    The work runs whether or not anybody reads. Belongs to the running event loop.
    """

    def __init__(
        self,
        work: Work,
        prompts: Sequence[ShownPrompt],
        run: Runner,
        num_replays: int,
        on_replay: Callable[[], None],
    ) -> None:
        """The remaining work is given to another replica at most `num_replays` times.

        `on_replay` is called each time.
        """
        self._work = work
        self._run = run
        self._num_replays = num_replays
        self._on_replay = on_replay
        self._num_lost = 0
        self._splice = Splice(work, prompts)
        self._news: asyncio.Queue[Outputs | Exception | None] = asyncio.Queue()
        self._task = asyncio.ensure_future(self._pump())

    async def __anext__(self) -> Outputs:
        """Raises RequestLost, ReplicasDiffer, or a replica's error about the request itself."""
        news = await self._news.get()
        if news is None:
            self._news.put_nowait(None)  # for further calls
            raise StopAsyncIteration
        if isinstance(news, Exception):
            raise news
        return news

    def abort(self) -> None:
        """Aborts the work on its replica; no more outputs are shown."""
        self._task.cancel()

    async def _pump(self) -> None:
        try:
            while not self._splice.is_finished:
                await self._run_once()
        except Exception as error:
            self._news.put_nowait(error)
        finally:
            self._news.put_nowait(None)

    async def _run_once(self) -> None:
        replica: str | None = None
        try:
            async with contextlib.aclosing(self._run(self._work)) as stream:
                async for outputs in stream:
                    if isinstance(outputs, str):
                        replica = outputs
                    elif shown := self._splice.new_parts(outputs):
                        self._news.put_nowait(shown)
            if not self._splice.is_finished:
                raise ReplicaLost("its outputs end before the answer does")
        except ReplicaLost as lost:
            self._num_lost += 1
            if self._num_lost > self._num_replays:
                raise RequestLost(self._num_lost) from lost
            self._on_replay()
            _logger.warning("a request moves, since replica %s was lost: %s", replica, lost)
            avoided = self._work.avoided if replica is None else self._work.avoided | {replica}
            self._work = self._splice.work_left(avoided)
