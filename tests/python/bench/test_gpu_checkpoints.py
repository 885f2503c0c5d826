"""bench/gpu/checkpoints.py: the shapes are those of the models."""

from pathlib import Path

import pytest

from gpu import checkpoints, step_model


@pytest.mark.parametrize(
    ("name", "parameters"), [("llama-3.2-1b", 1_235_814_400), ("llama-3.1-8b", 8_030_261_248)]
)
def test_shapes_are_those_of_the_models(name: str, parameters: int) -> None:
    config = checkpoints.SHAPES[name]
    norms = (2 * config["num_hidden_layers"] + 1) * config["hidden_size"]
    embeddings = (
        0 if config["tie_word_embeddings"] else config["vocab_size"] * config["hidden_size"]
    )
    assert step_model.weight_bytes(config) / 2 + norms + embeddings == parameters


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
    config = checkpoints.SHAPES["tiny"]
    norms = (2 * config["num_hidden_layers"] + 1) * config["hidden_size"]
    assert engine.model_info().num_parameters == step_model.weight_bytes(config) / 2 + norms
