"""Logits that are reported, changed and searched over, against transformers and float64."""

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
from specdec_native import (
    CompletionOutput,
    Engine,
    FlatLogprobs,
    Logprob,
    RequestOutputKind,
    SamplingParams,
    _core,
)
from test_speculation_law import Setting, check, speculative
from tiny_text_model import TEXT_TOKEN_IDS

Checkpoint = Callable[[str], Path]
Logits = npt.NDArray[np.float32]

EMULATED = pytest.mark.skipif(
    not _core.build_info().has_emulated_device, reason="built without the emulated device"
)
DEVICES = [
    "cpu",
    pytest.param("emulated", marks=EMULATED),
    pytest.param("cuda", marks=pytest.mark.skipif(bool(_core.gpu_problem()), reason="no GPU")),
]
# Tolerance of logits that the engine computes in bfloat16 on a device.
TOLERANCE = {"cpu": 2e-4, "emulated": 0.15, "cuda": 0.15}
# A bit of everything that changes logits.
SHAPED = SamplingParams(
    temperature=0.7,
    top_k=9,
    logit_bias={7: 3.0, 11: -2.0},
    repetition_penalty=1.3,
    presence_penalty=0.4,
    frequency_penalty=0.3,
    seed=2,
    max_tokens=8,
    ignore_eos=True,
    logprobs=-1,
)


@pytest.fixture(scope="module", params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def make_engine(model: Path, device: str, **options: Any) -> Engine:
    dtype = "float32" if device == "cpu" else "bfloat16"
    sizes = {"max_model_len": 128, "num_kv_blocks": 64, "max_num_batched_tokens": 64}
    return Engine(model, device=device, dtype=dtype, max_logprobs=-1, **{**sizes, **options})


def reference_logits(model: Path, tokens: list[int]) -> npt.NDArray[np.float64]:
    """After each token, [num_tokens, vocab]."""
    with torch.no_grad():
        logits: torch.Tensor = load_reference(model)(torch.tensor([tokens])).logits[0]
    return logits.double().numpy()


def reported(completion: CompletionOutput) -> npt.NDArray[np.float64]:
    """The values in the logprobs of the whole vocabulary, [num_tokens, vocab]."""
    assert completion.logprobs is not None
    rows = [[position[t].logprob for t in range(VOCAB_SIZE)] for position in completion.logprobs]
    return np.array(rows)


# -- logprobs_mode


def test_raw_logits_are_the_models(checkpoint: Checkpoint, device: str) -> None:
    model = checkpoint("llama")
    prompt = random_tokens(20, seed=1)
    params = SamplingParams(
        temperature=0.7, top_k=5, logit_bias={7: 3.0}, seed=2, max_tokens=6, ignore_eos=True
    )
    params.logprobs = params.prompt_logprobs = -1
    with make_engine(model, device, logprobs_mode="raw_logits") as engine:
        output = engine.generate([prompt], params)[0]
    completion = output.outputs[0]
    expected = reference_logits(model, prompt + list(completion.token_ids))
    found = reported(completion)
    np.testing.assert_allclose(found, expected[len(prompt) - 1 : -1], atol=TOLERANCE[device])
    assert output.prompt_logprobs is not None and output.prompt_logprobs[0] is None
    for position, row in zip(output.prompt_logprobs[1:], expected, strict=False):
        assert position is not None
        values = [position[t].logprob for t in range(VOCAB_SIZE)]
        np.testing.assert_allclose(values, row, atol=TOLERANCE[device])
    assert completion.logprobs is not None and completion.cumulative_logprob is not None
    chosen = zip(completion.token_ids, completion.logprobs, strict=True)
    total = sum(position[token].logprob for token, position in chosen)
    assert completion.cumulative_logprob == pytest.approx(total)
    for token, position, row in zip(completion.token_ids, completion.logprobs, found, strict=True):
        assert position[token].rank == (row >= row[token]).sum()


def processed(
    logits: npt.NDArray[np.float64], prompt: list[int], output: list[int], params: SamplingParams
) -> npt.NDArray[np.float64]:
    """The processors of one row in float64: bias, penalties, temperature, top_k."""
    row = logits.copy()
    for token, bias in (params.logit_bias or {}).items():
        row[token] += bias
    for token in {*prompt, *output}:
        penalty = params.repetition_penalty
        row[token] = row[token] / penalty if row[token] > 0 else row[token] * penalty
    for token in set(output):
        row[token] -= params.frequency_penalty * output.count(token) + params.presence_penalty
    row /= params.temperature
    if params.top_k:
        row[row < np.sort(row)[-params.top_k]] = -np.inf
    return row


def test_processed_logits_are_what_is_drawn_from(checkpoint: Checkpoint, device: str) -> None:
    """From the raw ones of the same run, so that the device's rounding plays no part."""
    model = checkpoint("llama")
    prompt = random_tokens(20, seed=1)
    completions = {}
    for mode in ("raw_logits", "processed_logits", "processed_logprobs"):
        with make_engine(model, device, logprobs_mode=mode) as engine:
            completions[mode] = engine.generate([prompt], SHAPED)[0].outputs[0]
    tokens = [list(completion.token_ids) for completion in completions.values()]
    assert tokens[0] == tokens[1] == tokens[2]
    raw, logits, logprobs = (reported(completion) for completion in completions.values())
    for i in range(len(raw)):
        expected = processed(raw[i], prompt, tokens[0][:i], SHAPED)
        np.testing.assert_allclose(logits[i], expected, rtol=1e-5, atol=1e-5)
        weights = np.exp(logits[i] - logits[i].max())
        np.testing.assert_allclose(np.exp(logprobs[i]), weights / weights.sum(), rtol=1e-4)
    assert [
        [(token, entry.rank) for token, entry in position.items()]
        for position in completions["processed_logits"].logprobs or []
    ] == [
        [(token, entry.rank) for token, entry in position.items()]
        for position in completions["processed_logprobs"].logprobs or []
    ]


@pytest.mark.parametrize(
    ("method", "mode"), [("suffix", "raw_logits"), ("draft_model", "processed_logits")]
)
def test_reported_logits_do_not_depend_on_speculation(
    checkpoint: Checkpoint, device: str, method: str, mode: str
) -> None:
    setting = make_setting(checkpoint, device, logprobs_mode=mode)
    check(setting, "everything", speculative(method, setting.model, 3, 1)).close()


def make_setting(checkpoint: Checkpoint, device: str, **options: Any) -> Setting:
    return Setting(
        checkpoint("llama"),
        VOCAB_SIZE,
        "float32" if device == "cpu" else "bfloat16",
        8,
        num_requests=5,
        device=device,
        **{"num_kv_blocks": 64, "max_num_batched_tokens": 128, **options},
    )


# -- flat_logprobs


@pytest.mark.parametrize("method", [None, "suffix"])
def test_flat_logprobs_read_like_a_list_of_dicts(
    checkpoint: Checkpoint, tmp_path: Path, method: str | None
) -> None:
    model = tiny_text_model.add_text(checkpoint("llama"), tmp_path / "llama")
    options: dict[str, Any] = {"temperature": 1, "seed": 4, "max_tokens": 12, "ignore_eos": True}
    options |= {"logprobs": 3, "prompt_logprobs": 2, "allowed_token_ids": TEXT_TOKEN_IDS}
    config = None if method is None else speculative(method, model, 3, 1)
    with make_engine(model, "cpu", speculative_config=config) as engine:
        listed = engine.generate("hello", SamplingParams(**options))[0]
        flat = engine.generate("hello", SamplingParams(flat_logprobs=True, **options))[0]
    found, expected = flat.outputs[0], listed.outputs[0]
    assert found.token_ids == expected.token_ids
    assert found.cumulative_logprob == expected.cumulative_logprob
    assert isinstance(found.logprobs, FlatLogprobs) and isinstance(expected.logprobs, list)
    assert len(found.logprobs) == 12 and list(found.logprobs) == expected.logprobs
    assert isinstance(flat.prompt_logprobs, FlatLogprobs)
    assert flat.prompt_logprobs[0] == {} and listed.prompt_logprobs is not None
    assert list(flat.prompt_logprobs[1:]) == listed.prompt_logprobs[1:]
    # The chosen token, then the top 3: every position is as long.
    assert found.logprobs.start_indices == list(range(0, 48, 4))
    assert found.logprobs.end_indices == list(range(4, 52, 4))
    assert found.logprobs.token_ids[::4] == list(found.token_ids)
    assert "".join(map(str, found.logprobs.decoded_tokens[::4])) == found.text
    assert all(found.logprobs.ranks[i + 1 : i + 4] == [1, 2, 3] for i in range(0, 48, 4))
    for i, token in enumerate(found.token_ids):
        assert found.logprobs.logprobs[4 * i] == expected.logprobs[i][token].logprob


def test_flat_logprobs_are_a_sequence() -> None:
    positions = [
        {5: Logprob(-0.5, 1, "a"), 7: Logprob(-1.5, 2, None)},
        {6: Logprob(-0.25, 1)},
        {8: Logprob(-3.0, 4), 9: Logprob(-1.0, 1), 1: Logprob(-2.0, 2)},
        {2: Logprob(-0.125, 1)},
    ]
    flat = FlatLogprobs()
    flat.append(None)
    flat.extend(positions)
    as_list = [{}, *positions]
    assert len(flat) == 5 and list(flat) == as_list and flat[-1] == as_list[-1]
    for cut in (slice(2), slice(1, None), slice(-2, None), slice(None, None, 2), slice(3, 3)):
        part = flat[cut]
        assert isinstance(part, FlatLogprobs) and list(part) == as_list[cut]
        assert part == FlatLogprobs(**{k: list(v) for k, v in vars(part).items()})
    assert flat[2:4].start_indices == [0, 1] and flat[2:4].token_ids == [6, 8, 9, 1]
    assert positions[1] in flat and flat.index(positions[1]) == 2
    with pytest.raises(IndexError):
        flat[5]
    with pytest.raises(TypeError):
        flat[0] = positions[0]
    with pytest.raises(TypeError):
        del flat[0]
    with pytest.raises(TypeError):
        flat.insert(0, positions[0])
    assert list(flat) == as_list


def test_flat_logprobs_come_in_parts(checkpoint: Checkpoint) -> None:
    params = SamplingParams(
        temperature=0,
        max_tokens=6,
        ignore_eos=True,
        logprobs=1,
        prompt_logprobs=0,
        flat_logprobs=True,
        output_kind=RequestOutputKind.DELTA,
    )
    with make_engine(checkpoint("llama"), "cpu") as engine:
        engine.add_request([5, 6, 7], params)
        parts = []
        while engine.has_unfinished_requests():
            parts += engine.step()
        whole = engine.generate([5, 6, 7], params)[0].outputs[0].logprobs
    assert whole is not None and len(parts) > 1
    deltas = [part.outputs[0].logprobs for part in parts]
    assert all(isinstance(delta, FlatLogprobs) for delta in deltas)
    assert [position for delta in deltas for position in delta or ()] == list(whole)
    assert [len(part.prompt_logprobs or ()) for part in parts] == [3] + [0] * (len(parts) - 1)
