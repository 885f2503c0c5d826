"""Engine on a tiny checkpoint: streams, requests run step by step, threads, aborts and failures."""

import asyncio
import gc
import itertools
import json
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from specdec_native import Engine, RequestOutput, RequestOutputKind, SamplingParams
from specdec_native.errors import RequestError
from specdec_native.requests.request import Request
from tiny_text_model import OPTIONS, is_idle, only, text_params


@pytest.fixture(scope="module")
def patient_model(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has a context so long that a request goes on while a test looks at it."""
    directory = tmp_path_factory.mktemp("patient") / "llama"
    shutil.copytree(model, directory)
    file = directory / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"max_position_embeddings": 100_000}))
    return directory


@pytest.fixture(scope="module")
def patient_engine(patient_model: Path) -> Engine:
    return Engine(patient_model, dtype="float32", num_threads=1)


def endless_params(**options: Any) -> SamplingParams:
    """Parameters for more text than a test waits for."""
    return text_params(max_tokens=90_000, **options)


# -- streams


def test_a_stream_grows_into_the_answer(engine: Engine) -> None:
    expected = only(engine.generate("abc", text_params()))
    outputs = list(engine.stream("abc", text_params()))
    texts = [output.outputs[0].text for output in outputs]
    assert all(
        after.startswith(before) and len(after) > len(before)
        for before, after in itertools.pairwise(texts)
    )
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert outputs[-1].outputs[0] == expected
    assert is_idle(engine)


@pytest.mark.parametrize("stop", [None, ["never there"]])
def test_deltas_add_up(engine: Engine, stop: list[str] | None) -> None:
    expected = only(engine.generate("abc", text_params()))
    params = text_params(output_kind=RequestOutputKind.DELTA, stop=stop)
    parts = [output.outputs[0] for output in engine.stream("abc", params)]
    assert "".join(part.text for part in parts) == expected.text
    assert [token for part in parts for token in part.token_ids] == expected.token_ids


def test_a_stream_never_shows_what_a_stop_string_takes_back(engine: Engine) -> None:
    whole = only(engine.generate("abc", text_params())).text
    stop = whole[8:14]
    shown = [o.outputs[0].text for o in engine.stream("abc", text_params(stop=stop))]
    final = whole[: whole.index(stop)]
    assert shown[-1] == final and all(final.startswith(text) for text in shown)


def test_only_the_end_of_a_final_only_stream(engine: Engine) -> None:
    params = text_params(output_kind=RequestOutputKind.FINAL_ONLY)
    assert [output.finished for output in engine.stream("abc", params)] == [True]


def test_a_stream_is_refused_when_it_is_made(engine: Engine) -> None:
    with pytest.raises(ValueError, match="empty"):
        engine.stream("", text_params())


def test_a_stream_is_read_while_it_grows(patient_engine: Engine) -> None:
    with patient_engine.stream("abc", endless_params()) as stream:
        lengths = [len(next(stream).outputs[0].token_ids) for _ in range(5)]
    assert lengths[0] > 0 and all(a < b for a, b in itertools.pairwise(lengths))
    assert lengths[-1] < 90_000


def test_dropping_a_stream_aborts_its_request(patient_engine: Engine) -> None:
    aborted = patient_engine.stats().num_aborted_requests
    for output in patient_engine.stream("abc", endless_params()):
        assert not output.finished
        break
    gc.collect()
    assert is_idle(patient_engine)
    with patient_engine.stream("abc", endless_params()) as stream:
        next(stream)
    assert is_idle(patient_engine)
    assert patient_engine.stats().num_aborted_requests == aborted + 2


def test_aborting_ends_a_stream_with_what_there_is(patient_engine: Engine) -> None:
    stream = patient_engine.stream("abc", endless_params())
    seen = next(stream).outputs[0].text
    assert patient_engine.abort(stream.request_id)
    assert not patient_engine.abort(stream.request_id)
    last = list(stream)
    assert len(last) == 1 and last[0].finished
    assert last[0].outputs[0].finish_reason == "abort"
    assert last[0].outputs[0].text.startswith(seen)
    assert last[0].metrics is not None
    assert last[0].metrics.finished_time >= last[0].metrics.first_token_time > 0


def test_an_id_is_free_again_once_its_request_is_done(engine: Engine) -> None:
    for options in ({}, {"stop": only(engine.generate("abc", text_params())).text[9:12]}):
        expected = only(engine.generate("abc", text_params(**options)))
        for _ in range(3):
            engine.add_request("abc", text_params(**options), request_id="again")
            with pytest.raises(ValueError, match="in use"):
                engine.add_request("abc", text_params(**options), request_id="again")
            outputs = []
            while engine.has_unfinished_requests():
                outputs += engine.step()
            assert outputs[-1].finished and only(outputs[-1:]) == expected


def test_streams_in_one_thread_run_together(engine: Engine) -> None:
    expected = [only(engine.generate(prompt, text_params())).text for prompt in ("abc", "xyz")]
    first, second = engine.stream("abc", text_params()), engine.stream("xyz", text_params())
    next(first)
    assert [output.outputs[0].text for output in second][-1] == expected[1]
    rest = [output.outputs[0].text for output in first]
    assert rest == [] or rest[-1] == expected[0]


def test_a_stream_of_several_prompts_has_the_answers_of_all(engine: Engine) -> None:
    prompts = [f"prompt {i}" for i in range(5)]
    params = [text_params(max_tokens=1 + 7 * i, seed=i, n=1 + i % 2) for i in range(5)]
    expected = [output.outputs for output in engine.generate(prompts, params)]
    stream = engine.stream(prompts, params)
    of_prompt = {request_id: i for i, request_id in enumerate(stream.request_ids)}
    assert len(of_prompt) == 5
    seen: list[list[RequestOutput]] = [[] for _ in prompts]
    for output in stream:
        seen[of_prompt[output.request_id]].append(output)
    assert [[output.prompt for output in outputs[:1]] for outputs in seen] == [[p] for p in prompts]
    assert [outputs[-1].outputs for outputs in seen] == expected
    for outputs in seen:
        assert [o.finished for o in outputs] == [False] * (len(outputs) - 1) + [True]
        num_tokens = [sum(len(c.token_ids) for c in output.outputs) for output in outputs]
        assert all(a < b for a, b in itertools.pairwise(num_tokens))
    assert stream.finished and list(stream) == [] and is_idle(engine)


def test_outputs_of_several_requests_alternate(patient_engine: Engine) -> None:
    """A request that has always something to show keeps no other from being shown."""
    with patient_engine.stream(["abc", "xyz", "123"], endless_params()) as stream:
        shown = []
        for _ in range(60):
            shown.append(next(stream).request_id)
            time.sleep(0.002)  # all have something to show by now
    counts = [shown.count(request_id) for request_id in stream.request_ids]
    assert sum(counts) == 60 and min(counts) >= 10


def test_no_prompts_make_a_stream_without_outputs(engine: Engine) -> None:
    stream = engine.stream([], text_params())
    assert list(stream) == [] and stream.request_ids == []


def test_a_bad_prompt_among_several_starts_none(engine: Engine) -> None:
    before = engine.stats()
    with pytest.raises(ValueError, match=r"prompts\[1\]: must not be empty"):
        engine.stream(["abc", ""], text_params())
    with pytest.raises(ValueError, match="1 entries for 2 prompts"):
        engine.stream(["abc", "xyz"], [text_params()])
    with pytest.raises(ValueError, match="request_id names one request, and there are 2 prompts"):
        engine.stream(["abc", "xyz"], text_params(), request_id="mine")
    assert engine.stats() == before and is_idle(engine)


def test_a_stream_of_several_has_no_single_id(engine: Engine) -> None:
    assert engine.stream(["abc"], text_params(), request_id="mine").request_id == "mine"
    with pytest.raises(ValueError, match="2 requests: use request_ids"):
        engine.stream(["abc", "xyz"], text_params()).request_id  # noqa: B018


def test_one_request_of_several_may_be_aborted(patient_engine: Engine) -> None:
    params = [endless_params(), text_params(max_tokens=8)]
    stream = patient_engine.stream(["abc", "xyz"], params)
    endless, short = stream.request_ids
    last = {}
    for output in stream:
        last[output.request_id] = output
        if output.finished and output.request_id == short:
            assert not stream.finished and patient_engine.abort(endless)
    assert last[short].outputs[0] == only(patient_engine.generate("xyz", params[1]))
    assert last[endless].finished and last[endless].outputs[0].finish_reason == "abort"


def test_leaving_a_stream_of_several_aborts_all_of_them(patient_engine: Engine) -> None:
    aborted = patient_engine.stats().num_aborted_requests

    def leave() -> None:
        for output in patient_engine.stream(["abc", "xyz", "123"], endless_params()):
            assert not output.finished
            break

    kept = []  # so that leaving aborts, and not the end of the stream's life

    async def leave_in_a_task(is_cancelled: bool) -> None:
        async with patient_engine.stream(["abc", "xyz", "123"], endless_params()) as stream:
            kept.append(stream)
            assert not (await anext(stream)).finished
            if is_cancelled:
                raise asyncio.CancelledError

    leave()
    asyncio.run(leave_in_a_task(False))
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(leave_in_a_task(True))
    gc.collect()
    while not is_idle(patient_engine):  # aborts are not waited for
        time.sleep(0.01)
    assert patient_engine.stats().num_aborted_requests == aborted + 9


def test_chats_are_streamed_as_they_are_answered(engine: Engine) -> None:
    conversation = [{"role": "user", "content": "hi"}]
    chats = [conversation, [*conversation, *conversation]]
    options: dict[str, Any] = {"chat_template": "{{ messages | length }}{{ extra }}"}
    options["chat_template_kwargs"] = {"extra": "!"}
    expected = engine.chat(chats, text_params(), **options)
    assert [output.prompt for output in expected] == ["1!", "2!"]
    stream = engine.stream_chat(chats, text_params(), **options)
    last = {output.request_id: output for output in stream}
    assert [last[i].outputs for i in stream.request_ids] == [o.outputs for o in expected]


def test_streams_and_batches_of_several_threads_work_together(engine: Engine) -> None:
    prompts = [f"thread {i}" for i in range(8)]
    expected = [only(engine.generate(prompt, text_params())).text for prompt in prompts]
    results: list[Any] = [None] * 8
    barrier = threading.Barrier(8)

    def work(i: int) -> None:
        barrier.wait()
        for _ in range(3):
            if i % 2:
                results[i] = list(engine.stream(prompts[i], text_params()))[-1].outputs[0].text
            else:
                results[i] = only(engine.generate(prompts[i], text_params())).text
            if results[i] != expected[i]:
                return

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert results == expected
    assert is_idle(engine)


def test_a_closed_engine_says_so(patient_model: Path) -> None:
    with Engine(patient_model, dtype="float32") as engine:
        stream = engine.stream("abc", endless_params())
        next(stream)
    assert [output.outputs[0].finish_reason for output in stream] == ["abort"]
    with pytest.raises(RuntimeError, match="closed"):
        engine.generate("abc", text_params())
    with pytest.raises(RuntimeError, match="closed"):
        engine.stats()
    engine.close()


def test_an_engine_that_slept_answers_as_before(model: Path, engine: Engine) -> None:
    with Engine(model, **OPTIONS) as sleeping:
        sleeping.tokenizer.chat_template = "{{ messages[0].content }}"
        sleeping.generate("abc", text_params())
        sleeping.wake_up()
        assert sleeping.stats().num_steps > 0  # it was awake, so nothing was loaded again
        for _ in range(2):
            stream = sleeping.stream("abc", text_params(max_tokens=80))
            sleeping.sleep()
            assert sleeping.is_sleeping() and stream.finished
            with pytest.raises(RuntimeError, match="closed"):
                sleeping.generate("abc", text_params())
            sleeping.wake_up()
            assert not sleeping.is_sleeping()
            assert sleeping.generate("abc", text_params())[0].outputs == (
                engine.generate("abc", text_params())[0].outputs
            )
        assert sleeping.tokenizer.chat_template == "{{ messages[0].content }}"


# -- step by step


def test_steps_report_requests_as_they_progress(engine: Engine) -> None:
    expected = {
        "x": only(engine.generate("abc", text_params(max_tokens=4))).text,
        "y": only(engine.generate("xyz", text_params(max_tokens=9))).text,
    }
    assert engine.add_request("abc", text_params(max_tokens=4), request_id="x") == "x"
    engine.add_request("xyz", text_params(max_tokens=9), request_id="y")
    texts, finished = {}, []
    while engine.has_unfinished_requests():
        for output in engine.step():
            texts[output.request_id] = output.outputs[0].text
            if output.finished:
                finished.append(output.request_id)
    assert texts == expected and finished == ["x", "y"]
    assert engine.step() == []


def test_steps_of_others_lose_nothing(engine: Engine) -> None:
    """A stream's steps carry requests of step() along, and the other way round."""
    expected = only(engine.generate("abc", text_params())).text
    other = only(engine.generate("xyz", text_params(max_tokens=30)))
    stream = engine.stream("xyz", text_params(max_tokens=30))
    engine.add_request("abc", text_params(), request_id="mine")
    assert list(stream)[-1].outputs[0] == other
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    assert {output.request_id for output in outputs} == {"mine"}
    assert outputs[-1].finished and outputs[-1].outputs[0].text == expected


def test_added_requests_wait_for_steps(engine: Engine) -> None:
    engine.add_request("abc", text_params(max_tokens=3), request_id="waiting")
    num_steps = engine.stats().num_steps
    time.sleep(0.05)
    assert engine.stats().num_steps == num_steps
    for length in (1, 2, 3):
        assert len(engine.step()[0].outputs[0].token_ids) == length
        assert engine.stats().num_steps == num_steps + length


def test_an_aborted_request_is_not_reported(engine: Engine) -> None:
    engine.add_request("abc", text_params(), request_id="gone")
    engine.step()
    assert engine.abort("gone") and not engine.abort("gone") and not engine.abort("never was")
    assert engine.step() == [] and is_idle(engine)


def test_an_interrupted_batch_leaves_nothing_behind(patient_engine: Engine) -> None:
    class Interrupting:
        def __init__(self, **_: Any) -> None: ...

        def update(self, _: int) -> None:
            raise KeyboardInterrupt

        def close(self) -> None: ...

    params = [text_params(max_tokens=2), endless_params()]
    with pytest.raises(KeyboardInterrupt):
        patient_engine.generate(["a", "b"], params, use_tqdm=Interrupting)
    assert is_idle(patient_engine)
    assert only(patient_engine.generate("a", text_params())).finish_reason == "length"


def test_a_failure_in_one_request_spares_the_others(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    good_ids, bad_ids = engine.tokenizer.encode("abc"), engine.tokenizer.encode("xyz")
    expected = only(engine.generate(good_ids, text_params()))
    apply = Request.apply

    class Panic(BaseException):
        """As a tokenizer in Rust raises."""

    def failing(request: Request, output: Any, first: int) -> list[int]:
        if request.prompt_token_ids == bad_ids and request.num_output_tokens > 2:
            raise Panic("no way on")
        return apply(request, output, first)

    monkeypatch.setattr(Request, "apply", failing)
    good, bad = engine.stream(good_ids, text_params()), engine.stream(bad_ids, text_params())
    with pytest.raises(Panic):
        list(bad)
    assert list(bad) == [] and list(good)[-1].outputs[0] == expected
    mixed, last = engine.stream([bad_ids, good_ids], text_params()), {}
    with pytest.raises(Panic):
        for output in mixed:
            last[output.request_id] = output
    last |= {output.request_id: output for output in mixed}  # reading on gives the others
    of_bad, of_good = (last[request_id] for request_id in mixed.request_ids)
    assert len(of_bad.outputs[0].token_ids) > 2 and of_good.outputs[0] == expected
    with pytest.raises(RequestError, match="no way on") as caught:
        engine.generate([bad_ids, good_ids, bad_ids, good_ids], text_params())
    outputs = caught.value.outputs
    assert sorted(caught.value.errors) == [0, 2]
    assert all(isinstance(error, Panic) for error in caught.value.errors.values())
    assert [output.outputs[0] for output in outputs[1::2]] == [expected, expected]
    for output in outputs[::2]:
        assert output.finished and output.outputs[0].finish_reason == "error"
        assert len(output.outputs[0].token_ids) > 2
    for prompt in (bad_ids, good_ids):
        engine.add_request(prompt, text_params())
    raised, finished = [], []
    while engine.has_unfinished_requests():
        try:
            finished += [output for output in engine.step() if output.finished]
        except Panic as error:
            raised.append(error)
    assert len(raised) == 1 and only(finished) == expected
    assert is_idle(engine)
