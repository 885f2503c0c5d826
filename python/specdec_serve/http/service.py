"""One engine behind the API: starts and counts the requests of clients."""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import logging
import re
import time
import uuid
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from specdec_native.errors import EngineFailed
from specdec_native.requests.inputs import Prompt
from specdec_native.requests.outputs import RequestOutput
from specdec_native.requests.request import Request
from specdec_native.requests.sampling_params import RequestOutputKind, SamplingParams
from specdec_serve.http.admission import RETRY_SECONDS, QueueFull, check_queue
from specdec_serve.http.errors import ApiError, bad_request
from specdec_serve.http.served_engine import EngineStatistics, OutputGroup, ServedEngine
from specdec_serve.http.server_options import ServerOptions
from specdec_serve.http.sse import KEEP_ALIVE, EventStream
from specdec_serve.http.structured import Grammar
from specdec_serve.http.tools.parsers import AnswerFormat

Result = TypeVar("Result")

_logger = logging.getLogger("specdec_native.server")

_POLL_SECONDS = 0.02
_QUICK_BYTES = 4096
_QUICK_COMPLETIONS = 16
_NUM_TEXT_THREADS = 2  # they tokenize and render; the native code of both runs beside others
_LONG_BYTES = 64 << 10


class Asked(Protocol):
    """The body of a request that generates text."""

    stream: bool
    priority: int
    request_id: str | None

    def grammar(self) -> Grammar | None:
        """The answer's grammar; None for any text."""

    def field_names(self) -> Mapping[str, str]:
        """Engine fields with a different name in the body, with that name."""


@dataclasses.dataclass
class Call:
    """A client's request to generate text.

    Attributes:
        kind: the kind of request, such as "chat.completion"; for logs and metrics.
        request_id: the answer's id; clients may use one twice.
        make_prompts: reads or renders the prompts, for text in a thread; raises ValueError.
        stream: whether outputs are read as they grow.
        is_plain: whether there is no grammar, and make_prompts makes one prompt without a template
            or variables from the request.
        field_names: engine fields with a different name in the request, for errors.
        num_bytes: length of the request's body.
        arrival: time.monotonic() of the arrival.
    """

    kind: str
    request_id: str
    make_prompts: Callable[[], list[Prompt]]
    params: SamplingParams
    stream: bool = False
    priority: int = 0
    is_plain: bool = True
    field_names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    num_bytes: int = 0
    arrival: float = dataclasses.field(default_factory=time.monotonic)

    @classmethod
    def of(
        cls,
        body: Asked,
        http: HTTPConnection,
        *,
        kind: str,
        id_prefix: str,
        make_prompts: Callable[[], list[Prompt]],
        params: SamplingParams,
        is_plain: bool,
    ) -> Call:
        """The call of an HTTP request; X-Request-Id takes precedence over the body's request_id.

        Without both, the id is the one that RequestIds has put into the state of `http`, or a new
        one. The id is stored in the state.
        """
        grammar = body.grammar()
        made_id = getattr(http.state, "request_id", None) or uuid.uuid4().hex
        given_id = http.headers.get("x-request-id") or body.request_id or made_id
        http.state.request_id = given_id
        return cls(
            kind=kind,
            request_id=f"{id_prefix}{given_id}",
            make_prompts=make_prompts,
            params=params,
            stream=body.stream,
            priority=body.priority,
            is_plain=is_plain and grammar is None,
            field_names=body.field_names(),
            num_bytes=body_bytes(http.headers),
        )

    @property
    def is_quick(self) -> bool:
        """Whether preparing its text is faster than waking a thread on a busy machine."""
        return (
            self.is_plain and self.params.n <= _QUICK_COMPLETIONS and self.num_bytes <= _QUICK_BYTES
        )


class Observer:
    """Is notified of what happens to generations. This base class ignores it."""

    def started(self, generation: Generation) -> None:
        """The generation's requests are in the engine."""

    def progressed(self, generation: Generation, outputs: list[tuple[int, RequestOutput]]) -> None:
        """A step's outputs were read."""

    def ended(self, generation: Generation) -> None:
        """The generation was read to its end, failed, or its client left."""

    def refused(self, reason: str) -> None:
        """A request was refused; `reason` is the option that limits, or "draining"."""


class Generation(AsyncIterator[list[tuple[int, RequestOutput]]]):
    """The requests of one call. Iterates over their outputs by step, with the index of the prompt.

    close() must be called, whether or not all outputs were read.

    Attributes:
        error: the error that ended it early, or None.
    """

    def __init__(self, call: Call, requests: list[Request], group: OutputGroup, service: Service):
        self.call = call
        self.requests = requests
        self.error: BaseException | None = None
        self.is_complete = False
        self._group = group
        self._service = service
        self._is_open = True

    async def __anext__(self) -> list[tuple[int, RequestOutput]]:
        """Raises ApiError where a request failed in the engine."""
        try:
            outputs = await anext(self._group)
        except StopAsyncIteration:
            self.is_complete = True
            raise
        except BaseException as error:
            self.error = error
            if isinstance(error, Exception):
                raise self._service.as_api_error(error, self.call.field_names) from error
            raise
        self._service.observer.progressed(self, outputs)
        return outputs

    async def results(self) -> list[RequestOutput]:
        """The final output of every prompt. Closes the generation."""
        final: list[RequestOutput | None] = [None] * len(self.requests)
        try:
            async for outputs in self:
                for index, output in outputs:
                    final[index] = output
        finally:
            self.close()
        return [output for output in final if output is not None]

    def abort(self) -> None:
        """Aborts its requests; its outputs end soon with finish_reason "abort"."""
        self._group.abort()

    def close(self) -> None:
        """Aborts unfinished requests."""
        if self._is_open:
            self._is_open = False
            self._group.abort()
            self._service.ended(self)


class Service:
    """The state that the routes share. Used by one event loop.

    Attributes:
        statistics: the engine's statistics; None where it runs elsewhere, as on replicas.
        defaults: sampling defaults from the checkpoint or the operator.
        answer_format: how the model writes its answers.
        created: time at which the model was loaded, for /v1/models.
        is_draining: whether new calls are refused because the server is ending.
        on_failure: called once when the engine has failed.
    """

    def __init__(
        self, engine: ServedEngine, options: ServerOptions, observer: Observer | None = None
    ) -> None:
        self.engine = engine
        self.statistics = engine if isinstance(engine, EngineStatistics) else None
        self.options = options
        self.observer = observer or Observer()
        self.defaults = engine.generation_defaults()
        self.answer_format = AnswerFormat.of(
            engine.model_info().architecture,
            engine.tokenizer.template_for_tools if engine.has_tokenizer else None,
            tool_call_parser=options.tool_call_parser,
            reasoning_parser=options.reasoning_parser,
        )
        self.created = int(time.time())
        self.is_draining = False
        self.failure: BaseException | None = None
        self.on_failure: Callable[[], None] = lambda: None
        self._open: weakref.WeakSet[Generation] = weakref.WeakSet()
        self._threads = concurrent.futures.ThreadPoolExecutor(_NUM_TEXT_THREADS, "specdec text")
        self._long_thread = concurrent.futures.ThreadPoolExecutor(1, "specdec long text")

    @property
    def model_name(self) -> str:
        """The name that answers report."""
        return self.options.model_names[0]

    @property
    def num_open(self) -> int:
        """The number of running calls, for /load and for draining."""
        return len(self._open)

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and output together."""
        return self.engine.model_info().max_model_len

    def check_model(self, name: str | None) -> None:
        """Raises the ApiError for a model that is not served."""
        if name and name not in self.options.model_names:
            raise ApiError(404, f"The model `{name}` does not exist.", param="model")

    async def in_thread(
        self, num_bytes: int, function: Callable[..., Result], *args: Any
    ) -> Result:
        """Runs a function of a text of `num_bytes` bytes in a thread.

        A long text, which may take a minute, delays only other long texts.
        """
        threads = self._long_thread if is_long(num_bytes) else self._threads
        return await asyncio.get_running_loop().run_in_executor(threads, function, *args)

    async def start(self, call: Call) -> Generation:
        """Starts a call. Raises ApiError where the call is bad or refused."""
        self._check_open()
        try:
            requests = await self._prepare(call)
            self._check_open(requests)
            group = self.engine.start(requests, interval=self.options.stream_interval)
        except Exception as error:
            raise self.as_api_error(error, call.field_names) from error
        generation = Generation(call, requests, group, self)
        self._open.add(generation)
        if self.options.log_requests:
            self._log(generation)
        self.observer.started(generation)
        return generation

    def ended(self, generation: Generation) -> None:
        """Called by Generation.close()."""
        self._open.discard(generation)
        self.observer.ended(generation)

    def event_stream(
        self,
        generation: Generation,
        events: AsyncGenerator[bytes, None],
        *,
        pulse: bytes = KEEP_ALIVE,
    ) -> EventStream:
        """The response that sends a generation's `events` and closes the generation.

        `pulse` is what a client gets that waits for long.
        """
        return EventStream(
            events,
            close=generation.close,
            keep_alive_seconds=self.options.sse_keep_alive_seconds,
            pulse=pulse,
        )

    def abort_all(self) -> None:
        """Aborts all calls; their answers have finish_reason "abort"."""
        for generation in list(self._open):
            generation.abort()

    async def wait_until_idle(self, seconds: float) -> bool:
        """Waits for all calls to end, at most `seconds`; returns whether they have."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while self._open and loop.time() < end:
            await asyncio.sleep(_POLL_SECONDS)
        return not self._open

    def is_well(self) -> bool:
        """Whether requests are accepted and the engine works."""
        try:
            self.engine.check_health()
        except EngineFailed as error:
            self.as_api_error(error)
        except ApiError:  # temporarily without an engine
            return False
        return self.failure is None and not self.is_draining

    def _check_open(self, requests: Sequence[Request] = ()) -> None:
        """Raises ApiError if `requests` are refused; without `requests`, if all are."""
        if self.is_draining:
            self.observer.refused("draining")
            raise ApiError(
                503, "The server is shutting down.", headers={"retry-after": RETRY_SECONDS}
            )
        try:
            if self.statistics is not None:
                check_queue(self.statistics, self.options, requests)
        except QueueFull as error:
            self.observer.refused(error.limit)
            raise

    def _log(self, generation: Generation) -> None:
        call = generation.call
        longest = self.options.max_log_len
        for request in generation.requests:
            shown = request.prompt if request.prompt is not None else request.prompt_token_ids
            _logger.info(
                "%s %s: prompt %r, %d tokens, %r",
                call.kind,
                call.request_id,
                shown[:longest],
                len(request.prompt_token_ids),
                call.params,
            )

    def as_api_error(self, error: Exception, names: Mapping[str, str] | None = None) -> ApiError:
        """The error as a client sees it; `names` are Call.field_names."""
        if isinstance(error, ApiError):
            return error
        if isinstance(error, EngineFailed):
            if self.failure is None:
                self.failure = error
                self.on_failure()
            return ApiError(500, "The engine has failed, and the server ends.")
        if isinstance(error, ValueError):
            return as_sent(str(error), names)
        _logger.error("a request has failed", exc_info=error)
        return ApiError(500, "An error in the server has ended the request; its log says more.")

    def close(self) -> None:
        """Ends the threads. The caller closes the engine."""
        for threads in (self._threads, self._long_thread):
            threads.shutdown(wait=False, cancel_futures=True)

    async def _prepare(self, call: Call) -> list[Request]:
        """The call's requests. A template may turn a short body into a long text."""
        if call.is_quick:
            return self._build(call, call.make_prompts())
        prompts = await self.in_thread(call.num_bytes, call.make_prompts)
        num_bytes = max(call.num_bytes, sum(len(prompt.text or "") for prompt in prompts))
        return await self.in_thread(num_bytes, self._build, call, prompts)

    def _build(self, call: Call, prompts: list[Prompt]) -> list[Request]:
        """Tokenizes prompts and checks requests."""
        kind = RequestOutputKind.DELTA if call.stream else RequestOutputKind.FINAL_ONLY
        call.params.record_draft_steps = self.options.acceptance_metrics == "detailed"
        try:
            return self.engine.prepare(prompts, call.params, kind=kind, priority=call.priority)
        except ValueError as error:
            raise as_sent(str(error), call.field_names) from error


_NO_NAME = re.compile(r"[\s=:.,\[]")
_FIELDS = {
    *(field.name for field in dataclasses.fields(SamplingParams)),
    *("prompt", "prompts", "messages", "cache_salt", "priority"),
    *("prefix", "suffix", "files"),
    *("chat_template", "continue_final_message"),
}


def is_long(num_bytes: int) -> bool:
    """Whether a text of this length takes long enough for the separate thread."""
    return num_bytes > _LONG_BYTES


def body_bytes(headers: Headers) -> int:
    """The length of a request's body, which middleware.Bodies has set."""
    return int(headers["content-length"])


def as_sent(message: str, names: Mapping[str, str] | None = None) -> ApiError:
    """The engine's error, with the client's name for the field that the message begins with."""
    names = names or {}
    field = _field_named_in(message)
    if (limit := names.get("max_tokens")) is not None and field != "max_tokens":
        message = message.replace("max_tokens=", f"{limit}=")  # a limit named in the text
    if field is None or field not in names:
        return bad_request(re.sub(r"^prompts\b", "prompt", message), field)
    name = names[field]
    if field == "prompt":
        return bad_request(re.sub(r"^prompt:?", f"{name}: the prompt", message), name)
    # The part after a dot belongs to the engine's field.
    return bad_request(name + re.sub(r"^\.\w+", "", message[len(field) :]), name)


def _field_named_in(message: str) -> str | None:
    """The field at the beginning of an engine's message."""
    if message.startswith("the chat template"):  # it refuses the conversation
        return "messages"
    word = _NO_NAME.split(message, maxsplit=1)[0]
    name = "prompt" if word == "prompts" else word  # prompts[1] is one of the prompts
    return name if name in _FIELDS else None
