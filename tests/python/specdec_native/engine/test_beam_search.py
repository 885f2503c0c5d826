"""Beam search against transformers' and against searches in float64."""

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import tiny_text_model
from logprobs import load_reference, random_tokens
from make_checkpoints import VOCAB_SIZE
from specdec_native import LLM, BeamSearchOutput, BeamSearchParams, Engine
from specdec_native.beam_search import beam_search
from specdec_native.requests.inputs import PromptType
from test_speculation_law import speculative

Checkpoint = Callable[[str], Path]
PROMPTS = [random_tokens(5 + 12 * i, seed=i) for i in range(3)]
STOPS = [2, 9, 30, 31, 77, 78, 100, 101, 130, 150]
TOLERANCE = 2e-4


def make_engine(model: Path, **options: Any) -> Engine:
    sizes = {"max_model_len": 64, "num_kv_blocks": 256, "max_num_batched_tokens": 256}
    return Engine(model, dtype="float32", max_logprobs=-1, **{**sizes, **options})


@pytest.fixture(scope="module")
def stopping(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with so many end-of-sequence tokens that some beams come to one."""
    model = tmp_path_factory.mktemp("stopping") / "llama"
    shutil.copytree(checkpoint("llama"), model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "eos_token_id": STOPS}))
    (model / "generation_config.json").unlink(missing_ok=True)
    return model


def plain(outputs: list[BeamSearchOutput]) -> list[list[tuple[list[int], float]]]:
    return [[(beam.tokens, beam.cum_logprob) for beam in output.sequences] for output in outputs]


@pytest.mark.parametrize("width", [2, 5])
def test_sequences_are_transformers(checkpoint: Checkpoint, width: int) -> None:
    model = checkpoint("llama")
    with make_engine(model) as engine:
        params = BeamSearchParams(beam_width=width, max_tokens=9, ignore_eos=True)
        outputs = beam_search(engine, PROMPTS, params)
    reference = load_reference(model)
    reference.generation_config.eos_token_id = None
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        expected = reference.generate(
            torch.tensor([prompt]),
            num_beams=width,
            num_return_sequences=width,
            do_sample=False,
            max_new_tokens=9,
            pad_token_id=1,
            return_dict_in_generate=True,
            output_scores=True,
        )
        assert [beam.tokens for beam in output.sequences] == expected.sequences.tolist()
        scores = [beam.cum_logprob / 9 for beam in output.sequences]
        np.testing.assert_allclose(scores, expected.sequences_scores, atol=TOLERANCE)
        assert all(beam.finish_reason == "length" for beam in output.sequences)


def logprobs_after(reference: Any, texts: list[list[int]]) -> npt.NDArray[np.float64]:
    """Logprobs of the token after each of some texts of one length, [num_texts, vocab]."""
    with torch.no_grad():
        logits: torch.Tensor = reference(torch.tensor(texts)).logits[:, -1]
    return logits.double().log_softmax(-1).numpy()


def search(
    reference: Any, prompt: list[int], width: int, length: int, penalty: float
) -> list[tuple[float, list[int], float]]:
    """The best (score, tokens, cumulative logprob) in float64.

    A beam goes on with, and ends at, one of its 2 * width likeliest tokens.
    """
    alive: list[tuple[list[int], float]] = [([], 0.0)]
    ended: list[tuple[list[int], float]] = []
    for _ in range(length):
        grown = []
        rows = logprobs_after(reference, [prompt + tokens for tokens, _ in alive])
        for (tokens, total), row in zip(alive, rows, strict=True):
            for token in map(int, np.argsort(-row)[: 2 * width]):
                grown.append(([*tokens, token], total + float(row[token])))
        ended += [beam for beam in grown if beam[0][-1] in STOPS]
        going = [beam for beam in grown if beam[0][-1] not in STOPS]
        alive = sorted(going, key=lambda beam: -beam[1])[:width]
    scored = [(total / len(t) ** penalty, prompt + t, total) for t, total in ended + alive]
    return sorted(scored, key=lambda beam: -beam[0])[:width]


@pytest.mark.parametrize("penalty", [1.0, 0.0, 2.5])
def test_beams_end_at_the_end_of_a_sequence(stopping: Path, penalty: float) -> None:
    with make_engine(stopping) as engine:
        assert set(STOPS) <= set(engine.eos_token_ids)
        params = BeamSearchParams(beam_width=4, max_tokens=6, length_penalty=penalty)
        outputs = beam_search(engine, PROMPTS, params)
    reference = load_reference(stopping)
    num_stopped = 0
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        expected = search(reference, prompt, 4, 6, penalty)
        assert [beam.tokens for beam in output.sequences] == [tokens for _, tokens, _ in expected]
        for beam, (_, tokens, total) in zip(output.sequences, expected, strict=True):
            assert beam.cum_logprob == pytest.approx(total, abs=TOLERANCE)
            new = tokens[len(prompt) :]
            stopped = new[-1] in STOPS
            num_stopped += stopped
            assert (beam.finish_reason, beam.stop_reason) == (
                ("stop", new[-1]) if stopped else ("length", None)
            )
            assert len(beam.logprobs) == len(new)
            chosen = zip(new, beam.logprobs, strict=True)
            assert beam.cum_logprob == sum(position[token].logprob for token, position in chosen)
    assert num_stopped > 0


def test_beams_of_the_whole_vocabulary_search_everything(checkpoint: Checkpoint) -> None:
    model = checkpoint("llama")
    prompt = PROMPTS[0]
    with make_engine(model) as engine:
        params = BeamSearchParams(beam_width=VOCAB_SIZE, max_tokens=2, ignore_eos=True)
        output = beam_search(engine, prompt, params)[0]
    reference = load_reference(model)
    first = logprobs_after(reference, [prompt])[0]
    second = logprobs_after(reference, [[*prompt, token] for token in range(VOCAB_SIZE)])
    totals = first[:, None] + second
    best = np.sort(totals.ravel())[::-1][:VOCAB_SIZE]
    assert len(output.sequences) == VOCAB_SIZE
    found = [beam.cum_logprob for beam in output.sequences]
    np.testing.assert_allclose(found, best, atol=TOLERANCE)
    for beam in output.sequences:
        assert beam.cum_logprob == pytest.approx(totals[tuple(beam.tokens[-2:])], abs=TOLERANCE)


def test_answers_do_not_depend_on_how_they_are_computed(checkpoint: Checkpoint) -> None:
    model = checkpoint("llama")
    params = BeamSearchParams(beam_width=3, max_tokens=6)
    with make_engine(model) as engine:
        expected = plain(beam_search(engine, PROMPTS, params))
        assert plain(beam_search(engine, PROMPTS, params, concurrency_limit=1)) == expected
        cached = engine.stats().num_cached_tokens
        assert cached > 0
        alone = [plain(beam_search(engine, prompt, params)) for prompt in PROMPTS]
        assert list(itertools.chain(*alone)) == expected
    for options in (
        {"enable_prefix_caching": False},
        {"speculative_config": speculative("suffix", model, 3, 1)},
        {"max_num_batched_tokens": 7, "max_num_seqs": 2},
    ):
        with make_engine(model, **options) as engine:
            assert plain(beam_search(engine, PROMPTS, params)) == expected


def test_llm_returns_texts(checkpoint: Checkpoint, tmp_path: Path) -> None:
    model = tiny_text_model.add_text(checkpoint("llama"), tmp_path / "llama")
    llm = LLM(model, dtype="float32", max_model_len=32, num_kv_blocks=64)
    params = BeamSearchParams(beam_width=2, max_tokens=4, ignore_eos=True)
    prompts: list[PromptType] = ["abc", {"prompt_token_ids": [5, 6]}]
    outputs = llm.beam_search(prompts, params, use_tqdm=False)
    assert [len(output.sequences) for output in outputs] == [2, 2]
    tokenizer = llm.get_tokenizer()
    starts = [tokenizer.encode("abc"), [5, 6]]
    for start, output in zip(starts, outputs, strict=True):
        for beam in output.sequences:
            assert beam.tokens[: len(start)] == start and len(beam.tokens) == len(start) + 4
            assert beam.text == tokenizer.decode(beam.tokens, skip_special_tokens=True)
    assert outputs[0].sequences[0].orig_prompt == {"prompt": "abc", "prompt_token_ids": starts[0]}
    with pytest.raises(ValueError, match="lora_request"):
        llm.beam_search(["abc"], params, lora_request=object())
    with pytest.raises(ValueError, match="max_logprobs"):
        llm.beam_search(["abc"], BeamSearchParams(beam_width=11, max_tokens=1))
    with pytest.raises(ValueError, match="BeamSearchParams"):
        llm.beam_search(["abc"], llm.get_default_sampling_params())  # type: ignore[arg-type]


def test_beams_end_where_the_model_does(checkpoint: Checkpoint) -> None:
    with make_engine(checkpoint("llama"), max_model_len=32) as engine:
        params = BeamSearchParams(beam_width=2, max_tokens=9, ignore_eos=True)
        outputs = beam_search(engine, [random_tokens(28, seed=1), [5, 6]], params)
        assert [len(output.sequences[0].tokens) for output in outputs] == [32, 11]
        with pytest.raises(ValueError, match="max_model_len"):
            beam_search(engine, [[5, 6], random_tokens(32, seed=1)], params)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("beam_width", value) for value in (0, -1, 1.5, None)),
        *(("max_tokens", value) for value in (0, None)),
        *(("temperature", value) for value in (-0.1, float("nan"))),
        *(("length_penalty", value) for value in (float("inf"), 51, "1")),
        ("ignore_eos", "yes"),
        ("structured_outputs", {"json": {}}),
        ("allowed_token_ids", [1]),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        BeamSearchParams(**{"beam_width": 2, "max_tokens": 4, field: value})
