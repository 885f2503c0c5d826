"""Data for heads: the target's answers, and runs that are interrupted and go on."""

import errno
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import make_checkpoints
import tiny_text_model
from specdec_lab.training import generate_data, made_up_prompts, store
from specdec_lab.training.answers import Answerer, AnswerOptions
from specdec_lab.training.batch import Example
from specdec_lab.training.errors import TrainingError
from specdec_lab.training.generate_data import check_target, make_data
from specdec_lab.training.made_up_prompts import SampledTurns
from specdec_lab.training.recomputed import RecomputedExamples, states_of
from specdec_lab.training.store import ExampleStore
from specdec_native import Engine, SamplingParams
from specdec_native.checkpoints.safetensors_writer import write_shard
from training_world import assert_equal

TAPS: list[int | str] = [1, 2, "final"]
OPTIONS = AnswerOptions(max_answer_tokens=12, max_length=90, seed=4)
SHORT = AnswerOptions(max_answer_tokens=3, max_length=90)


pytestmark = pytest.mark.usefixtures("one_torch_thread")


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


QUESTIONS = [[user(f"question {i} " + "?" * (i % 7))] for i in range(23)]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama whose tokens are characters, but for those that are special."""
    folder = tmp_path_factory.mktemp("target")
    variant = make_checkpoints.Variant("Llama", {"vocab_size": 3 + len(tiny_text_model.CHARS)})
    make_checkpoints.build(variant).save_pretrained(folder / "plain")
    return tiny_text_model.add_text(folder / "plain", folder / "text")


@pytest.fixture(scope="module")
def engine(target: Path) -> Iterator[Engine]:
    """One that runs fewer requests at once than there are conversations."""
    with make_engine(target) as engine:
        yield engine


def make_engine(target: Path, **options: Any) -> Engine:
    return Engine(
        target, dtype="float32", max_model_len=96, max_num_seqs=4, num_threads=1, **options
    )


@pytest.fixture(scope="module")
def tapped(target: Path) -> Iterator[Engine]:
    with make_engine(target, taps=TAPS) as engine:
        yield engine


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate_data, "SHARD_EXAMPLES", 4)
    monkeypatch.setattr(made_up_prompts, "_ROUND", 24)


def files_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def answers_of(
    engine: Engine, conversations: Sequence[Any], options: AnswerOptions, **arguments: Any
) -> list[Example | None]:
    answerer = Answerer(engine, options, with_states=False)
    answered = list(answerer.answer(conversations, **arguments))
    first = arguments.get("first", 0)
    assert [a.index for a in answered] == list(range(first, first + len(conversations)))
    assert answerer.num_left_out == sum(a.example is None for a in answered)
    return [a.example for a in answered]


def only_example(engine: Engine, conversation: Sequence[Any], options: AnswerOptions) -> Example:
    (example,) = answers_of(engine, [conversation], options)
    assert example is not None
    return example


# -- answers


def test_greedy_answers_are_those_of_transformers_in_order(target: Path, engine: Engine) -> None:
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    examples = answers_of(engine, QUESTIONS, AnswerOptions(12, sampled_share=0.0))
    for conversation, example in zip(QUESTIONS, examples, strict=True):
        prompt = f"user:{conversation[0]['content']};assistant:"
        ids = [ord(c) - 32 + tiny_text_model.FIRST_CHAR for c in prompt]
        wanted = model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)[0]
        assert example is not None and example.is_greedy
        assert example.token_ids.tolist() == wanted.tolist()
        assert example.is_answer.tolist() == [i >= len(ids) for i in range(len(wanted))]


def test_a_share_is_sampled_whatever_else_is_asked(engine: Engine) -> None:
    options = AnswerOptions(6, sampled_share=0.3)
    many = answers_of(engine, [QUESTIONS[0]] * 200, options)
    greedy = [e.token_ids.tolist() for e in many if e is not None and e.is_greedy]
    sampled = [e.token_ids.tolist() for e in many if e is not None and not e.is_greedy]
    assert 35 <= len(sampled) <= 85  # four standard deviations from 60
    assert len({tuple(ids) for ids in greedy}) == 1
    assert len({tuple(ids) for ids in sampled}) > len(sampled) / 2
    alone = answers_of(engine, [QUESTIONS[0]] * 20, options, first=50)
    for a, b in zip(many[50:70], alone, strict=True):
        assert a is not None and b is not None
        assert_equal(a, b)


def test_every_turn_is_answered_anew(engine: Engine) -> None:
    given = [user("first"), assistant("not this"), user("second"), user("third"), assistant("nor")]
    example = only_example(engine, given, AnswerOptions(9, sampled_share=0.0))
    greedy = SamplingParams(temperature=0, max_tokens=9)
    history: list[Any] = []
    asked, answers = [], []
    for text in ("first", "second", "third"):
        history.append(user(text))
        (output,) = engine.chat(history, greedy, use_tqdm=False)
        asked.append(list(output.prompt_token_ids or []))
        answers.append(list(output.outputs[0].token_ids))
        history.append(assistant(output.outputs[0].text))
    token_ids = asked[-1] + answers[-1]
    assert example.token_ids.tolist() == token_ids
    is_answer = [False] * len(token_ids)
    for prompt, answer in zip(asked, answers, strict=True):
        for i, token in enumerate(answer, len(prompt)):
            if token_ids[: i + 1] != prompt + answer[: i + 1 - len(prompt)]:
                break  # a special token, which the text does not have
            assert token_ids[i] == token
            is_answer[i] = True
    assert example.is_answer.tolist() == is_answer
    assert example.num_answer_tokens > 20


def test_turns_that_do_not_fit_are_left_out(engine: Engine) -> None:
    options = AnswerOptions(8, sampled_share=0.0, max_length=60)
    long = user("x" * 60)
    conversations = [[user("a")], [long], [user("a"), long, user("b")], [user("y" * 40)]]
    whole, none, cut, short = answers_of(engine, conversations, options)
    assert none is None
    assert whole is not None and cut is not None and short is not None
    assert torch.equal(cut.token_ids, whole.token_ids)
    assert len(short.token_ids) == 60  # "user:", ";assistant:" and the text leave 4


def test_keeps_answers_of_the_file(engine: Engine) -> None:
    options = AnswerOptions(keep_answers=True, max_length=60)
    talk = [user("a"), assistant("first answer"), user("b"), assistant("another"), user("c")]
    example = only_example(engine, talk, options)
    text = "user:a;assistant:first answer;user:b;assistant:another;"
    assert engine.tokenizer.decode(example.token_ids.tolist()) == text
    marked = "".join(c for c, is_one in zip(text, example.is_answer, strict=True) if is_one)
    assert marked.startswith("first answer") and marked.endswith("another;")
    assert not example.is_greedy
    long = [user("a"), assistant("z" * 80)]
    assert len(only_example(engine, long, options).token_ids) == 60
    assert (
        answers_of(engine, [[user("x" * 60), assistant("a")], [user("a")]], options) == [None] * 2
    )


def test_bad_options_are_named() -> None:
    values: dict[str, Any] = {
        "max_answer_tokens": 0,
        "sampled_share": 1.5,
        "temperature": 0.0,
        "max_length": 1,
        "seed": -1,
    }
    for name, value in values.items():
        with pytest.raises(ValueError, match=name):
            AnswerOptions(**{name: value})


def test_a_conversation_that_the_template_refuses_is_named(engine: Engine) -> None:
    bad = [user("a\ud800")]
    with pytest.raises(TrainingError, match="conversation 1: "):
        answers_of(engine, [QUESTIONS[0], bad], SHORT)
    assert tiny_text_model.is_idle(engine)


# -- states


def test_states_are_those_of_transformers(target: Path, tapped: Engine, tmp_path: Path) -> None:
    talk = [[user("a"), user("b")], [user("longer text")]]
    made = make_data(tapped, target, tmp_path, talk, OPTIONS, taps=TAPS)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    assert len(made) == 2
    for example in made:
        ids = example.token_ids[None, :-1].long()
        hidden = model(ids, output_hidden_states=True).hidden_states
        wanted = torch.stack([hidden[1], hidden[2], hidden[-1]], 2)[0]
        assert example.states.dtype == torch.bfloat16
        torch.testing.assert_close(example.states.float(), wanted, rtol=8e-3, atol=1e-4)


def test_recomputed_states_are_those_that_were_stored(
    target: Path, tapped: Engine, engine: Engine, tmp_path: Path
) -> None:
    stored = make_data(tapped, target, tmp_path / "a", QUESTIONS, OPTIONS, taps=TAPS)
    plain = make_data(engine, target, tmp_path / "b", QUESTIONS, OPTIONS)
    assert not plain.has_states and plain[0].states.numel() == 0
    recomputed = RecomputedExamples(plain, tapped)
    assert len(recomputed) == len(stored)
    assert recomputed.lengths.tolist() == stored.lengths.tolist()
    for a, b in zip(stored.load([5, 0, 7]), recomputed.load([5, 0, 7]), strict=True):
        assert torch.equal(a.token_ids, b.token_ids)
        assert torch.equal(a.states, b.states.bfloat16())


def test_kept_answers_have_states(target: Path, tapped: Engine, tmp_path: Path) -> None:
    options = AnswerOptions(keep_answers=True, max_length=90)
    talk = [[user("a"), assistant("some answer")]]
    (example,) = make_data(tapped, target, tmp_path, talk, options, taps=TAPS)
    (wanted,) = states_of(tapped, [example.token_ids.tolist()])
    assert torch.equal(example.states, wanted.bfloat16())


def test_other_taps_than_the_engine_has_are_refused(
    target: Path, tapped: Engine, tmp_path: Path
) -> None:
    with pytest.raises(TrainingError, match="taps names 2 states, and the engine gives 3"):
        make_data(tapped, target, tmp_path, QUESTIONS, OPTIONS, taps=[1, "final"])


def test_an_engine_without_taps_is_refused(target: Path, engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="the engine taps no layers"):
        make_data(engine, target, tmp_path, QUESTIONS, OPTIONS, taps=TAPS)
    assert tiny_text_model.is_idle(engine)


# -- making and going on


@pytest.mark.parametrize("taps", [[], TAPS])
def test_a_run_that_is_ended_anywhere_goes_on(
    target: Path, engine: Engine, tapped: Engine, tmp_path: Path, taps: list[int | str]
) -> None:
    used = tapped if taps else engine

    def make(name: str, progress: Callable[[int, int], None] | None = None) -> None:
        directory = tmp_path / name
        make_data(used, target, directory, QUESTIONS, OPTIONS, taps=taps, progress=progress)

    make("whole")
    whole = files_of(tmp_path / "whole")
    assert len([name for name in whole if name.endswith(".safetensors")]) == 6
    num_done = 0

    def interrupt_after(number: int) -> Callable[[int, int], None]:
        def progress(done: int, wanted: int) -> None:
            nonlocal number, num_done
            number -= 1
            num_done = done
            if number == 0:
                raise KeyboardInterrupt

        return progress

    for i, number in enumerate([1, 3, 4, 5, 9]):
        with pytest.raises(KeyboardInterrupt):
            make("a", interrupt_after(number))
        assert tiny_text_model.is_idle(used)
        assert ExampleStore(tmp_path / "a").num_answer_tokens == num_done, i  # nothing is lost
    make("a")
    assert files_of(tmp_path / "a") == whole


def test_less_and_then_more_is_the_same_as_more(
    target: Path, engine: Engine, tmp_path: Path
) -> None:
    turns = SampledTurns(engine, seed=3, max_tokens=64)
    for n in (20, 55, 60, 170):
        a = make_data(engine, target, tmp_path / "a", turns, OPTIONS, num_answer_tokens=n)
        assert n <= a.num_answer_tokens < n + OPTIONS.max_answer_tokens
    make_data(engine, target, tmp_path / "b", turns, OPTIONS, num_answer_tokens=170)
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")
    assert len(make_data(engine, target, tmp_path / "c", turns, OPTIONS, num_conversations=7)) == 7


KILLED = """
import sys
from specdec_native import Engine
from specdec_lab.training import generate_data, made_up_prompts
from specdec_lab.training.answers import AnswerOptions
from specdec_lab.training.made_up_prompts import SampledTurns
target, directory = sys.argv[1:]
generate_data.SHARD_EXAMPLES, made_up_prompts._ROUND = 4, 24
engine = Engine(target, dtype="float32", max_model_len=96, max_num_seqs=4, num_threads=1)
turns = SampledTurns(engine, seed=3, max_tokens=64)
options = AnswerOptions(max_answer_tokens=12, max_length=90, seed=4)
print("begins", flush=True)
generate_data.make_data(engine, target, directory, turns, options, num_conversations=4000)
"""


def test_a_killed_run_goes_on_to_the_same_bytes(
    target: Path, engine: Engine, tmp_path: Path
) -> None:
    killed = tmp_path / "killed"
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, target, killed], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "begins\n"
        while len(list(killed.glob("examples-*"))) < 5:
            assert process.poll() is None
            time.sleep(0.002)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    wanted = len(ExampleStore(killed)) + 9
    with (killed / "turns.jsonl").open("a") as file:
        file.write('[[{"role": "user", "con')  # a kill in the middle of a line leaves this
    turns = SampledTurns(engine, seed=3, max_tokens=64)
    make_data(engine, target, killed, turns, OPTIONS, num_conversations=wanted)
    make_data(engine, target, tmp_path / "whole", turns, OPTIONS, num_conversations=wanted)
    a, b = files_of(killed), files_of(tmp_path / "whole")
    turns_a, turns_b = a.pop("turns.jsonl"), b.pop("turns.jsonl")
    assert turns_a.startswith(turns_b)
    for name in list(a):
        if name.endswith(".part"):  # what was being written
            del a[name]
    assert a == b


def test_kept_turns_are_not_sampled_again(engine: Engine, tmp_path: Path) -> None:
    told: list[None] = []  # an entry for each round that is sampled

    def first(kept: Path | None) -> list[Any]:
        told.clear()
        turns = SampledTurns(engine, seed=9, max_tokens=64, on_round=lambda: told.append(None))
        return list(itertools.islice(turns.conversations(kept), 30))

    wanted = first(None)
    path = tmp_path / "turns.jsonl"
    assert first(path) == wanted
    rounds = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(told) == len(rounds) > 1
    rounds[0][0][0]["content"] = "another turn"
    path.write_text("".join(json.dumps(r) + "\n" for r in rounds[:-1]) + '[[{"rol')
    again = first(path)
    assert again[0] == [user("another turn")] and again[1:] == wanted[1:]
    assert len(told) == 1
    assert [json.loads(line) for line in path.read_text().splitlines()] == rounds
    path.write_text("[\n")
    with pytest.raises(TrainingError, match=r"turns\.jsonl: is damaged"):
        first(path)


def test_a_target_that_makes_up_nothing_is_an_error(engine: Engine) -> None:
    turns = SampledTurns(engine, seed=1, max_tokens=2)
    with pytest.raises(TrainingError, match="the target makes up no new turns"):
        next(turns.conversations())


def test_too_little_is_an_error_and_is_kept(target: Path, engine: Engine, tmp_path: Path) -> None:
    talks = [*QUESTIONS[:6], [user("x" * 90)]]
    with pytest.raises(TrainingError, match=r"\(1 did not fit.* gave 6 examples .* 9999 answer"):
        make_data(engine, target, tmp_path, talks, OPTIONS, num_answer_tokens=9999)
    assert len(ExampleStore(tmp_path)) == 6
    more = [*talks, *QUESTIONS[6:10]]
    assert len(make_data(engine, target, tmp_path, more, OPTIONS, num_conversations=10)) == 10
    with pytest.raises(TrainingError, match="num_answer_tokens must be given"):
        make_data(engine, target, tmp_path, SampledTurns(engine, seed=1))
    with pytest.raises(TrainingError, match="gave 0 examples"):
        make_data(engine, target, tmp_path / "none", [[user("x" * 90)]], OPTIONS)


def test_a_store_made_in_another_way_is_refused(
    target: Path, engine: Engine, tmp_path: Path
) -> None:
    made = make_data(engine, target, tmp_path / "a", QUESTIONS, OPTIONS, num_conversations=5)

    def refused(fault: str, source: Any = QUESTIONS, **changes: Any) -> None:
        options = AnswerOptions(**{**OPTIONS.__dict__, **changes})
        with pytest.raises(TrainingError, match=fault):
            make_data(engine, target, tmp_path / "a", source, options, num_conversations=9)

    refused("answers.max_answer_tokens = 12, and 13 is asked", max_answer_tokens=13)
    refused("answers.seed = 4, and 5 is", seed=5)
    refused('source = "given"|source.sampled', SampledTurns(engine, seed=1))
    refused("other conversations: those of the first 5", [[user("else")], *QUESTIONS[1:]])
    refused("other conversations", QUESTIONS[:3])
    check_target(made, target, TAPS)
    other = tmp_path / "other"
    shutil.copytree(target, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-3}))
    with pytest.raises(TrainingError, match="of another target, text, not of other"):
        check_target(made, other, TAPS)
    with pytest.raises(TrainingError, match="is no checkpoint"):
        check_target(made, tmp_path / "nowhere", TAPS)


def test_one_run_at_a_time(target: Path, engine: Engine, tmp_path: Path) -> None:
    def progress(done: int, wanted: int) -> None:
        with pytest.raises(TrainingError, match="another process makes this data"):
            make_data(engine, target, tmp_path, QUESTIONS, OPTIONS, num_conversations=2)

    make_data(engine, target, tmp_path, QUESTIONS, OPTIONS, num_conversations=2, progress=progress)


def test_a_full_disk_is_told_and_loses_nothing(
    target: Path, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_data(engine, target, tmp_path / "whole", QUESTIONS, OPTIONS)
    directory = tmp_path / "a"
    num_written = 0

    def write_until_full(path: Path, specs: Any) -> None:
        nonlocal num_written
        num_written += 1
        if num_written > 2:
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_shard(path, specs)

    with monkeypatch.context() as patch:
        patch.setattr(store, "write_shard", write_until_full)
        with pytest.raises(TrainingError, match=rf"{directory}: .* bytes\) are needed"):
            make_data(engine, target, directory, QUESTIONS, OPTIONS)
    assert tiny_text_model.is_idle(engine)
    assert len(ExampleStore(directory)) == 8
    usage = shutil.disk_usage(directory)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10))
        with pytest.raises(TrainingError, match="are needed and 0 MiB are free"):
            make_data(engine, target, directory, QUESTIONS, OPTIONS)
    make_data(engine, target, directory, QUESTIONS, OPTIONS)
    assert files_of(directory) == files_of(tmp_path / "whole")


def test_progress_is_told(target: Path, engine: Engine, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    made = make_data(
        engine,
        target,
        tmp_path,
        QUESTIONS,
        SHORT,
        num_answer_tokens=30,
        progress=lambda done, wanted: told.append((done, wanted)),
    )
    assert [done for done, _ in told] == np.cumsum(made.answer_lengths).tolist()
    assert {wanted for _, wanted in told} == {30}
    assert told[-2][0] < 30 <= told[-1][0]
