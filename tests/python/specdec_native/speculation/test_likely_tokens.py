"""Which rows of the target's LM head a draft head scores with by itself."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import train_heads
from conftest import HeadMaker
from specdec_native import Engine
from specdec_native.checkpoints.safetensors_file import open_checkpoint
from specdec_native.speculation import likely_tokens
from specdec_native.speculation.likely_tokens import DraftTarget, likely_tokens_first
from speculative_configs import parse

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM = 1024, 2048, 8, 2, 64


def write_target(directory: Path, *, vocab: int, layers: int) -> Path:
    directory.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": vocab,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
    }
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def write_head(directory: Path, target: Path) -> dict[str, Any]:
    """Fields of an EAGLE-1 head that scores with its target's LM head."""
    directory.mkdir()
    config = json.loads((target / "config.json").read_text()) | {"num_hidden_layers": 1}
    (directory / "config.json").write_text(json.dumps(config))
    return {"method": "eagle", "model": str(directory), "quantization": "int8"}


def pass_bytes(vocab: int, layers: int) -> int:
    """What a pass of the target over one row at position 0 reads, and the KV it writes."""
    attention = 2 * HIDDEN * (HEADS + KV_HEADS) * HEAD_DIM
    return 2 * (layers * (attention + 3 * HIDDEN * INNER) + vocab * HIDDEN) + (
        layers * 2 * KV_HEADS * HEAD_DIM * 2
    )


@pytest.mark.parametrize(
    ("vocab", "layers", "quantization", "size"),
    [
        (100_000, 60, "int8", None),  # as many as 5% pay for
        (100_000, 60, "none", None),
        (100_000, 1, "int8", 25_000),  # a quarter, though it costs more
        (40_000, 1, "int8", 16_384),  # no fewer than that
        (20_000, 40, "none", 16_384),
        (20_000, 40, "int8", 20_000),  # a copy of all rows in fewer bits
    ],
)
def test_a_head_reads_rows_for_a_twentieth_of_a_pass(
    tmp_path: Path, vocab: int, layers: int, quantization: str, size: int | None
) -> None:
    directory = write_target(tmp_path / "target", vocab=vocab, layers=layers)
    head = write_head(tmp_path / "head", directory) | {"quantization": quantization}
    target = DraftTarget(directory, "bfloat16", "none", has_weights=False)
    row_bytes = HIDDEN * (1 if quantization == "int8" else 2)
    expected = int(0.05 * pass_bytes(vocab, layers) / row_bytes) if size is None else size
    assert target.affordable_tokens(head) == expected
    assert target.tokens_for(head, None) == list(range(expected))


def test_an_lm_head_that_costs_little_is_not_cut(tmp_path: Path) -> None:
    directory = write_target(tmp_path / "target", vocab=20_000, layers=60)
    head = write_head(tmp_path / "head", directory)
    assert 0.05 * pass_bytes(20_000, 60) > 20_000 * HIDDEN * 2
    target = DraftTarget(directory, "bfloat16", "none", has_weights=False)
    assert target.affordable_tokens(head) is None
    assert target.tokens_for(head, None) == []
    assert target.tokens_for(head, 300) == list(range(300))
    assert target.tokens_for(head, 20_001) == []
    small = write_target(tmp_path / "small", vocab=16_384, layers=1)
    of_small = write_head(tmp_path / "of_small", small)
    target = DraftTarget(small, "bfloat16", "none", has_weights=False)
    assert target.tokens_for(of_small, None) == []


# -- which rows


def write_matrix(directory: Path, rows: np.ndarray, dtype: torch.dtype, name: str) -> DraftTarget:
    """A target whose tokenizer has all tokens but the last 32."""
    write_target(directory, vocab=len(rows), layers=1)
    tensors = {name: torch.from_numpy(rows).to(dtype), "mtp.lm_head.weight": torch.zeros(len(rows))}
    save_file(tensors, directory / "model.safetensors")
    return DraftTarget(directory, "bfloat16", "none", num_tokens=len(rows) - 32)


def made_rows(rng: np.random.Generator, frequency: np.ndarray) -> np.ndarray:
    """Rows the further from those of padding, the more frequent their token is."""
    unused = rng.normal(size=48)
    rows = rng.normal(size=(len(frequency), 48)) + np.log(frequency / frequency.mean())[
        :, None
    ] * -unused / np.linalg.norm(unused)
    rows[-32:] = unused + 0.01 * rng.normal(size=(32, 48))
    found: np.ndarray = rows.astype(np.float32)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["lm_head.weight", "model.language_model.embed_tokens.weight"])
def test_tokens_far_from_padding_go_before_others_of_like_id(
    tmp_path: Path, dtype: torch.dtype, name: str
) -> None:
    """Half of the tokens, wherever their ids are, are of a language that is never written."""
    rng = np.random.default_rng(5)
    is_written = rng.random(4000) < 0.5
    frequency = np.where(is_written, 1.0, 1e-6) / np.arange(1, 4001)
    target = write_matrix(tmp_path / "target", made_rows(rng, frequency), dtype, name)
    order = list(likely_tokens_first(target))
    assert sorted(order) == list(range(4000))
    covered = frequency[order[:1500]].sum() / frequency.sum()
    by_id = frequency[:1500].sum() / frequency.sum()
    most = np.sort(frequency)[::-1][:1500].sum() / frequency.sum()
    assert by_id < covered <= most and 1 - covered < 0.7 * (1 - by_id)
    assert not set(order[:3000]) & set(range(3968, 4000))  # padding


def test_without_padding_that_agrees_low_ids_are_taken(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    rows = made_rows(rng, 1.0 / np.arange(1, 401))
    rows[-32:] = rng.normal(size=(32, 48))
    differing = write_matrix(tmp_path / "a", rows, torch.float32, "lm_head.weight")
    assert list(likely_tokens_first(differing)) == list(range(400))
    rows[-32:] = 0
    empty = write_matrix(tmp_path / "b", rows, torch.float32, "lm_head.weight")
    assert list(likely_tokens_first(empty)) == list(range(400))
    unknown = DraftTarget(empty.directory, "bfloat16", "none")
    assert list(likely_tokens_first(unknown)) == list(range(400))


def test_special_tokens_are_always_drafted(tmp_path: Path) -> None:
    directory = write_target(tmp_path / "target", vocab=100_000, layers=1)
    head = write_head(tmp_path / "head", directory)
    special = (99_990, 2, 99_999, 100_003)  # the last is one of the tokenizer's alone
    target = DraftTarget(
        directory, "bfloat16", "none", has_weights=False, num_tokens=None, special_ids=special
    )
    tokens = target.tokens_for(head, 1000)
    assert tokens == [*range(998), 99_990, 99_999]


# -- heads


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(likely_tokens, "LEAST_TOKENS", 8)


def map_of(target: Path, **config: Any) -> list[int]:
    """The token map that a head gets."""
    (drafter,) = parse(**config).drafters
    core = drafter.to_core(
        lambda name, *_: Path(name), lambda _: [5, 6, 6], DraftTarget(target, "float32", "none")
    )
    return list(core.speculative_token_map)


@pytest.mark.usefixtures("small_limits")
def test_heads_with_a_matrix_or_a_choice_of_their_own_keep_it(
    head: HeadMaker, checkpoint: Callable[[str], Path]
) -> None:
    llama, own = checkpoint("llama"), str(head("eagle_no_bias"))
    cut = map_of(llama, model=own, method="eagle")
    assert cut == list(range(len(cut))) and len(cut) > 0
    assert map_of(llama, model=own, method="eagle", speculative_token_map="auto") == cut
    assert map_of(llama, model=own, method="eagle", speculative_token_map="all") == []
    assert map_of(llama, model=own, method="eagle", speculative_token_map=[4, 9]) == [4, 9]
    sized = map_of(llama, model=own, method="eagle", speculative_token_map={"size": 20})
    assert sized == list(range(20))
    for variant, method in (("eagle3", "eagle3"), ("medusa", "medusa")):
        assert map_of(llama, model=str(head(variant)), method=method) == []
    assistant = str(head("assistant", "gemma4"))
    assert map_of(checkpoint("gemma4"), model=assistant, method="mtp") == []


def test_a_small_vocabulary_is_not_cut(head: HeadMaker, checkpoint: Callable[[str], Path]) -> None:
    assert map_of(checkpoint("llama"), model=str(head("eagle_no_bias")), method="eagle") == []


@pytest.mark.usefixtures("small_limits", "one_torch_thread")
def test_a_cut_changes_no_answer(trained_head: Callable[[str], Path]) -> None:
    target = trained_head("mtp")
    prompts = train_heads.ToyLanguage().texts(6, 20, seed=3).tolist()
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": 96}
    with Engine(target, **options) as engine:
        expected = [o.outputs[0].token_ids for o in engine.generate(prompts)]
    config: dict[str, Any] = {"method": "mtp", "quantization": "none"}
    vocab = json.loads((target / "config.json").read_text())["vocab_size"]
    assert 8 <= len(map_of(target, **config)) < vocab
    config |= {"num_speculative_tokens": 3, "draft_length_policy": "fixed"}
    for token_map in ("auto", {"size": 40}, "all"):
        speculative = {**config, "speculative_token_map": token_map}
        with Engine(target, speculative_config=speculative, **options) as engine:
            found = [o.outputs[0].token_ids for o in engine.generate(prompts)]
            assert engine.stats().drafters[0].num_accepted_tokens > 0
        assert found == expected


def test_rows_of_a_file_as_float32(tmp_path: Path) -> None:
    values = torch.linspace(-3, 3, 60).reshape(10, 6)
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        save_file({"x": values.to(dtype)}, tmp_path / "model.safetensors")
        found = open_checkpoint(tmp_path)["x"].as_float32(slice(2, 5))
        assert np.array_equal(found, values.to(dtype).float()[2:5].numpy())
