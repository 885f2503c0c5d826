"""Exceptions out of signal handlers, from drafters and at the interpreter's end lose no token."""

import gc
import os
import random
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import specdec_native
from specdec_native import Engine, RequestOutputKind, SamplingParams
from specdec_native.errors import RequestError

PACKAGE = str(Path(specdec_native.__file__).parent)
NUM_INTERRUPTS = int(os.environ.get("SPECDEC_NUM_INTERRUPTS", "1000"))
PROMPTS = [[(i * 7 + j) % 150 + 3 for j in range(20)] for i in range(6)]
# In Python 3.10 an exception may still come between the return of step() and the caller's store.
KIND = RequestOutputKind.DELTA if sys.version_info >= (3, 11) else RequestOutputKind.CUMULATIVE


@pytest.fixture(scope="module")
def model(checkpoint: Callable[[str], Path]) -> Path:
    return checkpoint("llama")


def make_engine(model: Path, **options: Any) -> Engine:
    return Engine(model, num_threads=1, skip_tokenizer_init=True, **options)


def params(i: int, **options: Any) -> SamplingParams:
    return SamplingParams(
        **{"max_tokens": 30, "seed": i, "ignore_eos": True, "logprobs": 1, **options}
    )


class Late(Exception):
    """What the handler raises."""


class Alarms:
    """Raises Late in the main thread at random times, but only inside of specdec_native."""

    def __init__(self, seed: int) -> None:
        self.num_raised = 0
        self._random = random.Random(seed)
        self._armed = False

    def __enter__(self) -> "Alarms":
        signal.signal(signal.SIGALRM, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        self._armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        # Not the default, which ends the process: an alarm may still be on its way.
        signal.signal(signal.SIGALRM, signal.SIG_IGN)

    def call(self, function: Callable[[], Any]) -> Any:
        """The function's result, from as many calls as it takes until one is not interrupted."""
        for _ in range(50):
            self._armed = True
            signal.setitimer(signal.ITIMER_REAL, self._random.choice((2e-5, 1e-4, 4e-4, 2e-3)))
            try:
                return function()
            except Late:
                continue
            finally:
                self._armed = False
        return function()

    def _handle(self, _: int, frame: types.FrameType | None) -> None:
        if not self._armed:
            return
        while frame is not None and not frame.f_code.co_filename.startswith(PACKAGE):
            if frame.f_code.co_filename == __file__:
                signal.setitimer(signal.ITIMER_REAL, 2e-5)  # in the test's own code
                return
            frame = frame.f_back
        self._armed = False
        self.num_raised += 1
        raise Late


def answer_of(output: Any) -> tuple[list[int], list[Any]]:
    completion = output.outputs[0]
    return list(completion.token_ids), list(completion.logprobs)


class Answer:
    """Outputs of one request, put together."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[Any] = []
        self.finish_reason: str | None = None

    def take(self, output: Any) -> None:
        assert self.finish_reason is None
        for completion in output.outputs:
            if KIND is RequestOutputKind.CUMULATIVE:
                self.tokens, self.logprobs = [], []
            self.tokens += completion.token_ids
            self.logprobs += completion.logprobs
            self.finish_reason = completion.finish_reason


class Bystanders:
    """Threads that stream without end and check every answer."""

    def __init__(self, engine: Engine, expected: list[Any]) -> None:
        self.problems: list[str] = []
        self.num_answers = 0
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(engine, expected, i)) for i in range(2)
        ]

    def __enter__(self) -> "Bystanders":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=60)
            if thread.is_alive():
                self.problems.append("a stream hangs")

    def _run(self, engine: Engine, expected: list[Any], i: int) -> None:
        while not self._stop.is_set():
            answer = Answer()
            for output in engine.stream(PROMPTS[i], params(i, output_kind=KIND)):
                answer.take(output)
            self.num_answers += 1
            if (answer.tokens, answer.logprobs) != expected[i]:
                self.problems.append(f"prompt {i}: {len(answer.tokens)} tokens")


def steps_of(engine: Engine, alarms: Alarms, expected: list[Any], turn: int) -> Iterator[str]:
    """Adds requests, aborts one, steps the others to their end. Yields what was wrong."""
    answers = {str(i): Answer() for i in range(2, len(PROMPTS))}
    for i in range(2, len(PROMPTS)):
        add = lambda i=i: engine.add_request(  # noqa: E731
            PROMPTS[i], params(i, output_kind=KIND), request_id=f"{turn}-{i}"
        )
        alarms.call(add)
    for num_steps in range(1000):
        if not engine.has_unfinished_requests():
            break
        for output in alarms.call(engine.step):
            answers[output.request_id.split("-")[1]].take(output)
        if num_steps == 0 and turn % 3 == 0:
            alarms.call(lambda: engine.abort(f"{turn}-3"))
        alarms.call(engine.stats)
    else:
        yield "has_unfinished_requests() stays True"
    for name, answer in answers.items():
        wanted = expected[int(name)]
        if turn % 3 == 0 and name == "3":
            if answer.tokens != wanted[0][: len(answer.tokens)]:
                yield f"aborted request: {answer.tokens}"
        elif (answer.tokens, answer.logprobs) != wanted:
            yield f"request {name}: {len(answer.tokens)} tokens"


def stream_of(engine: Engine, alarms: Alarms, expected: list[Any]) -> Iterator[str]:
    stream = alarms.call(lambda: engine.stream(PROMPTS[4], params(4, output_kind=KIND)))
    answer = Answer()
    while True:
        output = alarms.call(lambda: next(stream, None))
        if output is None:
            break
        answer.take(output)
    if (answer.tokens, answer.logprobs) != expected[4]:
        yield f"stream: {len(answer.tokens)} tokens"


@pytest.mark.fuzz
def test_interrupts_lose_nothing(model: Path) -> None:
    engine = make_engine(model)
    expected = [
        answer_of(engine.generate(prompt, params(i))[0]) for i, prompt in enumerate(PROMPTS)
    ]
    problems: list[str] = []
    turn = 0
    with Alarms(7) as alarms, Bystanders(engine, expected) as bystanders:
        while alarms.num_raised < NUM_INTERRUPTS:
            turn += 1
            assert turn < 20 * NUM_INTERRUPTS
            problems += steps_of(engine, alarms, expected, turn)
            problems += stream_of(engine, alarms, expected)
            whole = alarms.call(
                lambda: engine.generate(PROMPTS, [params(i) for i in range(len(PROMPTS))])
            )
            problems += [
                f"generate: prompt {i}"
                for i, output in enumerate(whole)
                if answer_of(output) != expected[i]
            ]
    assert problems == [] and bystanders.problems == []
    assert bystanders.num_answers > 0
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting) == (0, 0)
    assert stats.num_free_kv_blocks == stats.num_kv_blocks


def test_a_lost_output_would_be_noticed(model: Path) -> None:
    """The comparison above, with a step's outputs thrown away once."""
    engine = make_engine(model)
    expected = [
        answer_of(engine.generate(prompt, params(i))[0]) for i, prompt in enumerate(PROMPTS)
    ]
    with Alarms(1) as alarms:
        step, calls = engine.step, iter(range(10**6))

        def losing() -> Any:
            outputs = step()
            return [] if next(calls) == 5 else outputs

        engine.step = losing  # type: ignore[method-assign]
        assert list(steps_of(engine, alarms, expected, 1))


def test_streams_may_be_collected_anywhere(model: Path) -> None:
    """A collected stream aborts its request and waits for nothing, whoever holds which lock."""
    engine = make_engine(model)
    thresholds = gc.get_threshold()

    class Cycle:
        stream: Any
        itself: Any

    def litter() -> None:
        for _ in range(60):
            cycle = Cycle()
            cycle.stream = engine.stream([5, 6, 7], params(1, max_tokens=50))
            cycle.itself = cycle
            next(cycle.stream)

    threads = [threading.Thread(target=litter, daemon=True) for _ in range(3)]
    gc.set_threshold(2)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
    finally:
        gc.set_threshold(*thresholds)
    assert not any(thread.is_alive() for thread in threads)
    gc.collect()
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting) == (0, 0)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, as it does unless a shell started us in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Interrupting:
    """A drafter that raises, or makes the process be told to stop, once."""

    def __init__(self, interrupt: Callable[[], None]) -> None:
        self.num_calls = 0
        self._interrupt = interrupt

    def propose(self, tokens: list[int], max_tokens: int) -> list[int]:
        self.num_calls += 1
        if self.num_calls == 4:
            self._interrupt()
        return [tokens[-1]]


def leave() -> None:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("interrupt", "error"),
    [(lambda: os.kill(os.getpid(), signal.SIGINT), KeyboardInterrupt), (leave, SystemExit)],
)
def test_interrupts_pass_through_python_drafters(
    model: Path, interrupt: Callable[[], None], error: type[BaseException], ctrl_c: None
) -> None:
    plain = make_engine(model)
    expected = answer_of(plain.generate(PROMPTS[0], params(0))[0])
    drafter = Interrupting(interrupt)
    engine = make_engine(
        model,
        speculative_config={
            "drafters": [{"method": "custom_class", "drafter": drafter}],
            "num_speculative_tokens": 3,
            "draft_length_policy": "fixed",
        },
    )
    stream = engine.stream(PROMPTS[0], params(0))
    with pytest.raises(error):
        for _ in range(100):
            engine.generate(PROMPTS, params(1))
    assert drafter.num_calls >= 4
    assert answer_of(list(stream)[-1]) == expected
    assert answer_of(engine.generate(PROMPTS[0], params(0))[0]) == expected


def test_a_drafter_cannot_call_its_engine(model: Path) -> None:
    engines: list[Engine] = []
    calls = [lambda e: e.stats(), lambda e: e.step(), lambda e: e.close(), lambda e: e.abort("0")]

    def propose(tokens: list[int], max_tokens: int) -> list[int]:
        calls[len(tokens) % len(calls)](engines[0])
        return []

    engines.append(
        make_engine(
            model,
            speculative_config={
                "drafters": [{"method": "custom_class", "drafter": propose}],
                "num_speculative_tokens": 2,
                "draft_length_policy": "fixed",
            },
        )
    )
    for length in range(5, 9):
        with pytest.raises(RequestError, match="cannot call the engine"):
            engines[0].generate([[7] * length], params(0))


@pytest.mark.parametrize("work", ["while True: engine.generate(PROMPTS, P)", "list(stream())"])
def test_a_daemon_thread_ends_with_the_interpreter(model: Path, work: str) -> None:
    script = f"""
import threading, time
from specdec_native import Engine, SamplingParams
PROMPTS = [[i + 3] * 100 for i in range(16)]
P = SamplingParams(max_tokens=100, ignore_eos=True)
engine = Engine({str(model)!r}, num_threads=2, skip_tokenizer_init=True)
started = threading.Event()
def stream():
    return engine.stream(PROMPTS[0], P)
def run():
    started.set()
    {work}
threading.Thread(target=run, daemon=True).start()
started.wait()
time.sleep(0.1)
"""
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_a_forked_child_is_told_and_ends(model: Path) -> None:
    script = f"""
import os, sys
from specdec_native import Engine, SamplingParams
engine = Engine({str(model)!r}, num_threads=2, skip_tokenizer_init=True)
stream = engine.stream([5, 6, 7], SamplingParams(max_tokens=60, ignore_eos=True))
child = os.fork()
if child == 0:
    num_told = 0
    generate, read = lambda: engine.generate([5, 6, 7]), lambda: next(stream)
    for call in (generate, read, stream.close, engine.stats):
        try:
            call()
        except RuntimeError as error:
            num_told += "the process that made it" in str(error)
    del stream
    sys.exit(num_told)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), len(list(stream)[-1].outputs[0].token_ids))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.split()) == (0, ["4", "60"]), done.stderr


def test_an_interrupted_step_still_has_something_to_report(model: Path) -> None:
    """The loop `while engine.has_unfinished_requests()` must not end before the last output."""
    engine = make_engine(model)
    engine.add_request(PROMPTS[0], params(0, max_tokens=1))
    runner = engine._runner

    class Interrupting(dict[Any, Any]):
        def pop(self, *args: Any) -> Any:
            super().pop(*args)
            raise Late

    runner._stepped = Interrupting(runner._stepped)
    with pytest.raises(Late):
        engine.step()
    runner._stepped = dict(runner._stepped)
    assert engine.has_unfinished_requests()
    assert [output.finished for output in engine.step()] == [True]
    assert not engine.has_unfinished_requests()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_reader_that_dies_tells_who_waits(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(model)

    def failing(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(engine._runner, "_take_in", failing)
    with pytest.raises(RuntimeError):
        engine.generate(PROMPTS, params(1))
    with pytest.raises(RuntimeError, match="closed"):
        engine.generate(PROMPTS, params(1))
    released: list[bool] = []
    monkeypatch.setattr(engine._runner, "_on_closed", lambda: released.append(True))
    engine.close()  # what has ended by itself holds a thread and the model until here
    engine.close()
    assert released == [True]


def test_closing_that_was_interrupted_goes_on(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(model)
    interrupts = [KeyboardInterrupt()]
    ended: list[bool] = []

    def end_ranks() -> None:
        if interrupts:
            raise interrupts.pop()
        ended.append(True)

    monkeypatch.setattr(engine._runner, "_on_closed", end_ranks)
    with pytest.raises(KeyboardInterrupt):
        engine.close()
    engine.close()
    engine.close()
    assert ended == [True]


def test_an_engine_that_cannot_be_made_leaves_no_thread(model: Path) -> None:
    class Proposer:
        def __init__(self, vllm_config: Any) -> None:
            raise ValueError("no proposer today")

        def propose(self, a: Any, b: Any, c: Any, d: Any) -> Any: ...

    module = types.ModuleType("failing_proposers")
    module.Proposer = Proposer  # type: ignore[attr-defined]
    sys.modules["failing_proposers"] = module
    before = threading.active_count()
    for _ in range(3):
        with pytest.raises(ValueError, match="no proposer today"):
            make_engine(
                model,
                speculative_config={
                    "method": "custom_class",
                    "model": "failing_proposers.Proposer",
                    "num_speculative_tokens": 2,
                },
            )
    gc.collect()
    assert threading.active_count() <= before
