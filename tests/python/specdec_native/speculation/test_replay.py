"""Recorded answers as drafts of the next epoch: they change speed and no answer."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from specdec_native import LLM, Engine, RequestOutput, SamplingParams
from specdec_native.requests.inputs import TextPrompt
from specdec_native.speculation.speculative_config import parse_speculative_config
from tiny_text_model import OPTIONS, TEXT_TOKEN_IDS

PROMPTS = ["to be or not", "the quick brown fox", "once upon a time"]
FIXED = {"num_speculative_tokens": 8, "draft_length_policy": "fixed"}


def sampled(**more: Any) -> SamplingParams:
    return SamplingParams(
        **{"temperature": 1, "seed": 7, "n": 3, "max_tokens": 48, "ignore_eos": True, **more},
        allowed_token_ids=TEXT_TOKEN_IDS,
    )


def epoch(
    model: Path, params: SamplingParams, salt: str | None = None, **config: Any
) -> tuple[list[list[list[int]]], float]:
    """Token ids of all answers, and which share of them were accepted drafts."""
    speculation = {**FIXED, **config} if config else None
    prompts = [TextPrompt(prompt=prompt) for prompt in PROMPTS]
    for prompt in prompts if salt else []:
        prompt["cache_salt"] = salt or ""
    with Engine(model, **OPTIONS, speculative_config=speculation) as engine:
        outputs = engine.generate(prompts, params, use_tqdm=False)
    return tokens_of(outputs), accepted_share(outputs)


def tokens_of(outputs: list[RequestOutput]) -> list[list[list[int]]]:
    return [[list(each.token_ids) for each in output.outputs] for output in outputs]


def accepted_share(outputs: list[RequestOutput]) -> float:
    num_tokens = sum(len(each.token_ids) for output in outputs for each in output.outputs)
    metrics = [each.speculative_decoding for output in outputs for each in output.outputs]
    return sum(each.num_accepted_draft_tokens for each in metrics if each) / num_tokens


@pytest.fixture(scope="module")
def changed(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model after a small step of training: every weight a little different."""
    copy = tmp_path_factory.mktemp("changed") / "model"
    shutil.copytree(model, copy)
    draw = np.random.default_rng(3)
    for file in copy.glob("*.safetensors"):
        weights = {
            name: (weight * (1 + 0.002 * draw.standard_normal(weight.shape))).astype(weight.dtype)
            for name, weight in load_file(file).items()
        }
        save_file(weights, file, metadata={"format": "pt"})
    return copy


def test_an_epoch_with_equal_seeds_is_accepted_nearly_whole(model: Path, tmp_path: Path) -> None:
    plain, _ = epoch(model, sampled())
    first, alone = epoch(model, sampled(), record=tmp_path / "first")
    assert first == plain and alone < 0.3  # answers of one prompt have beginnings in common
    again, share = epoch(model, sampled(), replay=tmp_path / "first", record=tmp_path / "second")
    assert again == plain
    # Of 9 tokens 8 are drafts; an answer that is not the newest is found after a few tokens.
    assert share > 0.8
    assert epoch(model, sampled(), replay=tmp_path / "second")[1] > 0.8


def test_a_changed_model_gains(model: Path, changed: Path, tmp_path: Path) -> None:
    plain, _ = epoch(changed, sampled())
    first, _ = epoch(model, sampled(), record=tmp_path / "first")
    assert first != plain
    _, alone = epoch(changed, sampled(), record=tmp_path / "other")
    again, share = epoch(changed, sampled(), replay=tmp_path / "first")
    assert again == plain
    assert share > alone + 0.2


def test_answers_with_a_salt_are_neither_written_nor_read(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "answers"
    epoch(model, sampled(), salt="a", record=file)
    empty = file.stat().st_size
    epoch(model, sampled(), record=file)
    assert file.stat().st_size == empty + 9 * (12 + 4 * 48)
    _, alone = epoch(model, sampled(), salt="a", record=tmp_path / "other")
    assert epoch(model, sampled(), salt="a", replay=file)[1] == alone


def test_a_running_engine_replays_itself_and_llm_takes_the_keys(
    model: Path, tmp_path: Path
) -> None:
    llm = LLM(str(model), **OPTIONS, speculative_config={**FIXED, "method": "replay"})
    first = llm.generate(PROMPTS, sampled(), use_tqdm=False)
    second = llm.generate(PROMPTS, sampled(), use_tqdm=False)
    assert tokens_of(first) == tokens_of(second)
    assert accepted_share(second) > 0.8 > accepted_share(first)
    stats = {each.name: each for each in llm.engine.stats().drafters}
    assert stats["replay"].num_accepted_tokens > 0 and stats["replay"].memory_bytes > 0


def test_keys_imply_the_method_and_go_to_auto(tmp_path: Path) -> None:
    def drafters(config: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        parsed = parse_speculative_config(config, lambda *_: None)
        return [(each.method, dict(each.fields)) for each in parsed.drafters]

    path = tmp_path / "answers"
    assert drafters({"record": path}) == [("replay", {"record": str(path)})]
    home = drafters({"replay": "~/answers"})[0][1]["replay"]
    assert home == str(Path.home() / "answers")
    methods = [method for method, _ in drafters({"method": "auto", "record": path})]
    assert methods == ["replay", "suffix", "ngram"]
    with pytest.raises(ValueError, match='record belongs to the method "replay"'):
        drafters({"method": "ngram", "record": path})


def test_bad_files_are_refused_with_their_name(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"replay.*there is no file.*missing"):
        epoch(model, sampled(), replay=tmp_path / "missing")
    epoch(model, sampled(), record=tmp_path / "answers", store_tokenizer="another")
    with pytest.raises(ValueError, match=r"record.*answers.*another tokenizer"):
        epoch(model, sampled(), record=tmp_path / "answers")
    (tmp_path / "answers").write_text("no store", encoding="utf-8")
    with pytest.raises(ValueError, match=r"replay.*answers.*damaged"):
        epoch(model, sampled(), replay=tmp_path / "answers")
