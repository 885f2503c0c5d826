"""What every server does: models, health, whole and streamed answers of both kinds."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from server_world import MODEL, World, serving
from specdec_native import Engine, __version__
from tiny_text_model import OPTIONS, TEXT_TOKEN_IDS, text_params


def test_the_model_is_listed_under_its_name(world: World) -> None:
    cards = world.client.get("/v1/models").json()["data"]
    assert [card["id"] for card in cards] == [MODEL]
    assert cards[0]["max_model_len"] == 96
    assert cards[0]["root"] == str(world.engine.model_directory)
    assert world.client.get(f"/v1/models/{MODEL}").json() == cards[0]
    assert world.client.get("/v1/models/other").status_code == 404
    assert world.client.get("/health").status_code == 200
    assert world.client.get("/version").json() == {"version": __version__}


def test_a_completion_is_the_engines(world: World, engine: Engine) -> None:
    body = {
        "prompt": "abc",
        "seed": 5,
        "max_tokens": 24,
        "ignore_eos": True,
        "allowed_token_ids": TEXT_TOKEN_IDS,
    }
    expected = engine.generate("abc", text_params(), use_tqdm=False)[0].outputs[0].text
    assert world.ask("/v1/completions", **body)["choices"][0]["text"] == expected
    events = world.events("/v1/completions", **body)
    assert "".join(event["choices"][0]["text"] for event in events) == expected
    assert [event["choices"][0]["finish_reason"] for event in events][-1] == "length"


@pytest.mark.parametrize("is_the_checkpoints", [True, False])
def test_how_long_answers_are_by_default(
    model: Path, tmp_path: Path, is_the_checkpoints: bool
) -> None:
    """A checkpoint's max_new_tokens is a default, one that was set for the engine a limit, too."""
    options: dict[str, Any] = {"override_generation_config": {"max_new_tokens": 5}}
    directory = model
    if is_the_checkpoints:
        directory = shutil.copytree(model, tmp_path / "model")
        (directory / "generation_config.json").write_text('{"max_new_tokens": 5}')
        options = {}
    conversation = {"messages": [{"role": "user", "content": "a"}]}
    fields: dict[str, Any] = {"ignore_eos": True, "seed": 5}
    most = 9 if is_the_checkpoints else 5

    with Engine(directory, **OPTIONS, **options) as engine, serving(engine) as world:

        def length(path: str, **body: Any) -> int:
            usage = world.ask(path, **body, **fields)["usage"]
            number: int = usage.get("completion_tokens", usage.get("output_tokens"))
            return number

        assert length("/v1/chat/completions", **conversation) == 5
        assert length("/v1/chat/completions", **conversation, max_tokens=9) == most
        assert length("/v1/responses", input="a") == 5
        assert length("/v1/responses", input="a", max_output_tokens=9) == most
        assert length("/v1/completions", prompt="a") == (16 if is_the_checkpoints else 5)
        assert length("/v1/completions", prompt="a", max_tokens=9) == most
