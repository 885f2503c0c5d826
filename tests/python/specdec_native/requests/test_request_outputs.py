"""Outputs of a request, from what the core reports: stop strings, logprobs, deltas, errors."""

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers

from core_reports import apply, make_request, report
from specdec_native import RequestOutputKind
from specdec_native.requests.request import Request
from specdec_native.text.tokenizer import Tokenizer
from tiny_tokenizers import byte_level, sentencepiece_like


def test_tokens_after_a_stop_string_leave_no_trace() -> None:
    request, tokenizer = make_request(stop=["wor"], logprobs=1)
    ids = tokenizer.encode(" world the")
    assert apply(request, report((0, ids, None))) == [0]
    output = request.take_output()
    completion = output.outputs[0]
    assert output.finished and output.metrics is not None and output.metrics.finished_time > 0
    assert (completion.text, completion.finish_reason, completion.stop_reason) == (
        " ",
        "stop",
        "wor",
    )
    assert 0 < len(completion.token_ids) < len(ids)
    assert completion.logprobs is not None
    assert len(completion.logprobs) == len(completion.token_ids)
    assert completion.cumulative_logprob == pytest.approx(-0.5 * len(completion.token_ids))


def test_a_stop_string_in_the_last_step_wins_over_its_length_limit() -> None:
    request, tokenizer = make_request(stop=["the"])
    assert apply(request, report((0, tokenizer.encode("the"), "length"))) == []
    assert request.take_output().outputs[0].stop_reason == "the"


def test_stop_reasons() -> None:
    for reason, stop_token_id, expected in (
        ("stop", 1, 1),
        ("stop", None, None),
        ("length", None, None),
    ):
        request, tokenizer = make_request()
        apply(
            request, report((0, [*tokenizer.encode("a"), 1], reason), stop_token_id=stop_token_id)
        )
        completion = request.take_output().outputs[0]
        assert (completion.finish_reason, completion.stop_reason) == (reason, expected)
        assert completion.text == "a" and completion.token_ids[-1] == 1


def test_logprobs_have_the_chosen_token_first_and_its_text() -> None:
    request, tokenizer = make_request("caf", logprobs=1)
    ids = [tokenizer.convert_tokens_to_ids(t) for t in ("Ã", "©")]  # the two bytes of é
    apply(request, report((0, ids, None)))
    logprobs = request.take_output().outputs[0].logprobs
    assert logprobs is not None
    assert [list(position) for position in logprobs] == [[ids[0], 7], [ids[1], 7]]
    assert [position[i].decoded_token for position, i in zip(logprobs, ids, strict=True)] == [
        "",
        "é",
    ]
    assert logprobs[0][ids[0]].rank == 2


def test_deltas_add_up_to_the_cumulative_output() -> None:
    steps = ["hel", "lo wor", "ld", " 日", "本"]
    results = {}
    for kind in (RequestOutputKind.DELTA, RequestOutputKind.CUMULATIVE):
        request, tokenizer = make_request(output_kind=kind, logprobs=0, stop=["zzz"])
        texts, tokens, logprobs = [], [], []
        for i, text in enumerate(steps):
            reason = "length" if i == len(steps) - 1 else None
            apply(request, report((0, tokenizer.encode(text), reason)))
            assert request.has_news()
            completion = request.take_output().outputs[0]
            assert not request.has_news()
            texts.append(completion.text)
            tokens.append(list(completion.token_ids))
            logprobs.append(completion.logprobs or [])
        results[kind] = (texts, tokens, logprobs)
    texts, tokens, logprobs = results[RequestOutputKind.DELTA]
    whole = results[RequestOutputKind.CUMULATIVE]
    assert "".join(texts) == whole[0][-1] == "hello world 日本"
    assert list(itertools.chain(*tokens)) == whole[1][-1]
    assert list(itertools.chain(*logprobs)) == whole[2][-1]


@pytest.mark.parametrize("make_tokenizer", [byte_level, sentencepiece_like])
@pytest.mark.parametrize("stop", [[], ["本 wor"]])
def test_an_answer_goes_on_behind_tokens_shown_elsewhere(
    make_tokenizer: Callable[[], tokenizers.Tokenizer], stop: list[str]
) -> None:
    def request(**more: Any) -> Request:
        return make_request("caf", make_tokenizer, **more, **options)[0]

    options: dict[str, Any] = {
        "output_kind": RequestOutputKind.DELTA,
        "logprobs": 1,
        "stop": stop,
        "min_tokens": 3,
    }
    ids = Tokenizer.wrap(make_tokenizer()).encode("é 🎊 the 日本 world")
    for num_shown in range(1, len(ids) - 1):
        whole, rest = request(), request(resumed_token_ids=ids[:num_shown])
        apply(whole, report((0, ids[:num_shown], None)))
        whole.take_output()
        assert not rest.has_news()
        outputs = []
        for each in (whole, rest):
            apply(each, report((0, ids[num_shown:], "length")))
            outputs.append(each.take_output().outputs[0])
        outputs[1].cumulative_logprob = outputs[0].cumulative_logprob  # of its own tokens, of all
        assert outputs[1] == outputs[0]
        assert outputs[1].stop_reason == (stop[0] if stop else None)
        assert outputs[1].text_lengths == outputs[0].text_lengths


def test_only_the_final_output_when_asked() -> None:
    request, tokenizer = make_request(output_kind=RequestOutputKind.FINAL_ONLY, n=2)
    ids = tokenizer.encode("the")
    apply(request, report((0, ids, "length"), (1, ids, None)))
    assert not request.has_news()
    apply(request, report((1, ids, "length")))
    assert request.has_news()
    assert [completion.text for completion in request.take_output().outputs] == ["the", "thethe"]
    assert not request.has_news()


def test_a_stream_interval_thins_outputs_out() -> None:
    request, tokenizer = make_request(stream_interval=3)
    news = []
    for i in range(6):
        apply(request, report((0, tokenizer.encode("a"), "length" if i == 5 else None)))
        news.append(request.has_news())
        if request.has_news():
            request.take_output()
    assert news == [True, False, False, True, False, True]


def test_an_ended_request_keeps_what_it_has() -> None:
    request, tokenizer = make_request()
    apply(request, report((0, tokenizer.encode("hello w"), None)))
    request.end(ValueError("why"))
    completion = request.take_output().outputs[0]
    assert (completion.text, completion.finish_reason) == ("hello w", "error")
    with pytest.raises(ValueError, match="why"):
        request.take_output()


def test_prompt_logprobs_begin_with_none() -> None:
    request, _ = make_request("hello world", prompt_logprobs=0)
    output = report((0, [5], "length"))
    output.new_prompt_logprobs = [[SimpleNamespace(token_id=9, logprob=-1.0, rank=1)]]
    apply(request, output)
    logprobs = request.take_output().prompt_logprobs
    assert logprobs is not None and logprobs[0] is None
    assert logprobs[1] is not None and logprobs[1][9].logprob == -1.0


@pytest.mark.parametrize("text", ["x ü 🎊 日本", "na🎊ïve a\u00a0b", "テキ 🎉 ra語"])
def test_the_texts_of_tokens_add_up(text: str) -> None:
    request, tokenizer = make_request(logprobs=1)
    ids = tokenizer.encode(text)
    assert any("\ufffd" in tokenizer.token_text(token) for token in ids)
    apply(request, report((0, ids, "length")))
    logprobs = request.take_output().outputs[0].logprobs
    assert logprobs is not None
    pieces = [row[token].decoded_token for token, row in zip(ids, logprobs, strict=True)]
    assert "".join(map(str, pieces)) == tokenizer.decode(ids) == text


@pytest.mark.parametrize("make_tokenizer", [byte_level, sentencepiece_like])
@pytest.mark.parametrize("text", ["x😀😀", "x 🧑‍🚀 日本語 é", "x\u0100\x80\n"])
def test_texts_of_tokens_in_every_script(
    make_tokenizer: Callable[[], tokenizers.Tokenizer], text: str
) -> None:
    """Each character is the text of its last token, also where the prompt has its first tokens."""
    ids = Tokenizer.wrap(make_tokenizer()).encode(text, add_special_tokens=False)
    for split in range(1, len(ids)):
        request, tokenizer = make_request(
            "", make_tokenizer, prompt_ids=ids[:split], logprobs=0, prompt_logprobs=0
        )
        output = report((0, ids[split:], "length"))
        output.new_prompt_logprobs = [
            [SimpleNamespace(token_id=i, logprob=-1.0, rank=1)] for i in ids[1:split]
        ]
        apply(request, output)
        shown = request.take_output()
        assert shown.prompt_logprobs is not None and shown.outputs[0].logprobs is not None
        rows = [*shown.prompt_logprobs[1:], *shown.outputs[0].logprobs]
        decoded = [
            (row or {})[token].decoded_token for token, row in zip(ids[1:], rows, strict=True)
        ]
        lengths = [len(tokenizer.decode(ids[: i + 1]).rstrip("\ufffd")) for i in range(len(ids))]
        # Half a character makes a decoder with byte fallback forget whole ones before it.
        ends = itertools.accumulate(lengths, max)
        whole = tokenizer.decode(ids)
        expected = [whole[a:b] for a, b in itertools.pairwise(ends)]
        assert decoded == expected


def test_a_text_begins_without_the_space_that_its_decoder_strips() -> None:
    ids = Tokenizer.wrap(sentencepiece_like()).encode("the world", add_special_tokens=False)
    for prompt, first in (([1], "the"), ([1, *ids], " the")):
        request, _ = make_request("", sentencepiece_like, prompt_ids=prompt, logprobs=0)
        apply(request, report((0, ids, "length")))
        completion = request.take_output().outputs[0]
        assert completion.text == f"{first} world" and completion.logprobs is not None
        rows = zip(ids, completion.logprobs, strict=True)
        assert "".join(str(row[i].decoded_token) for i, row in rows) == completion.text
        assert sum(completion.text_lengths or ()) == len(completion.text)


@pytest.mark.parametrize("make_tokenizer", [byte_level, sentencepiece_like])
def test_an_answer_cut_in_a_character_leaves_it_out(
    make_tokenizer: Callable[[], tokenizers.Tokenizer],
) -> None:
    request, tokenizer = make_request("x", make_tokenizer, logprobs=0)
    ids = tokenizer.encode("a😀", add_special_tokens=False)
    apply(request, report((0, ids[:-1], "length")))
    completion = request.take_output().outputs[0]
    assert completion.text.lstrip() == "a" and list(completion.token_ids) == ids[:-1]
    joined = b"".join(map(tokenizer.token_bytes, ids[:-1]))
    assert joined.strip() == "a😀".encode()[: len(joined.strip())]
    assert len(joined.strip()) > 1
