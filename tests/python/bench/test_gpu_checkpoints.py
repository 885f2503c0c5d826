"""bench/gpu/checkpoints.py: the shapes are those of the models."""

from pathlib import Path

import pytest

from gpu import checkpoints, predictions
from gpu.step_time import weight_bytes

BUILD = Path(__file__).parents[3] / "build/release"


@pytest.mark.parametrize(
    ("name", "parameters"), [("llama-3.2-1b", 1_235_814_400), ("llama-3.1-8b", 8_030_261_248)]
)
def test_shapes_are_those_of_the_models(name: str, parameters: int) -> None:
    if not (BUILD / "bench/cuda_step_bench").is_file():
        pytest.skip("benchmarks are not built: scripts/test.sh bench builds them")
    config = checkpoints.SHAPES[name]
    sizes = ("--contexts=64", "--batches=1", "--drafts=0")
    record = predictions.list_launches(BUILD, "cuda_step_bench", name, *sizes)[0]
    norms = (2 * config["num_hidden_layers"] + 1) * config["hidden_size"]
    embeddings = (
        0 if config["tie_word_embeddings"] else config["vocab_size"] * config["hidden_size"]
    )
    assert weight_bytes(record) / 2 + norms + embeddings == parameters


@pytest.mark.parametrize("name", ["tiny", "tiny-eagle3"])
def test_a_config_is_all_that_made_up_weights_need(name: str, tmp_path: Path) -> None:
    from specdec_native import Engine

    checkpoints.write("tiny", tmp_path)
    head = checkpoints.write(name, tmp_path)
    drafter = {"method": "eagle3", "model": str(head), "num_speculative_tokens": 2}
    engine = Engine(
        tmp_path / "tiny",
        device="cpu",
        load_format="dummy",
        skip_tokenizer_init=True,
        max_model_len=64,
        speculative_config=drafter if name != "tiny" else None,
    )
    layer = 128 * (4 * 64 + 128 + 3 * 256) + 2 * 128
    assert engine.model_info().num_parameters == 2 * layer + 128 + 512 * 128
