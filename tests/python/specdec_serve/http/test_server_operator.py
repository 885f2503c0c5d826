"""/server_info, /reset_prefix_cache, HEAD, and paths of embeddings."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server_world import BODY, MODEL, World, error_of, serving
from specdec_native import Engine, __version__
from tiny_text_model import OPTIONS

SECRET = "xyzzy-plugh-4711"
ENDPOINTS = (("GET", "/server_info"), ("POST", "/reset_prefix_cache"))


@pytest.fixture(scope="module")
def operated(engine: Engine) -> Iterator[World]:
    with serving(engine, operator_endpoints=True, prompt_tokens_details=True) as world:
        yield world


def test_only_who_asks_for_them_has_them(world: World) -> None:
    for method, path in ENDPOINTS:
        error = error_of(world.client.request(method, path), 404)
        assert "--enable-operator-endpoints" in error["message"]


def test_they_need_a_key(engine: Engine) -> None:
    with serving(engine, operator_endpoints=True, api_keys=(SECRET,)) as world:
        for method, path in ENDPOINTS:
            for headers in ({}, {"authorization": "Bearer other"}):
                error_of(world.client.request(method, path, headers=headers), 401)
            good = world.client.request(method, path, headers={"authorization": f"Bearer {SECRET}"})
            assert good.status_code == 200
            assert SECRET not in good.text


def test_server_info_has_what_was_resolved(model: Path) -> None:
    drafts = {"method": "ngram", "num_speculative_tokens": 3}
    with (
        Engine(model, **OPTIONS, speculative_config=drafts) as engine,
        serving(engine, operator_endpoints=True) as world,
    ):
        text = world.client.get("/server_info").json()
        assert world.client.get("/server_info?config_format=text").json() == text
        assert text["version"] == __version__ and text["model_names"] == [MODEL]
        assert text["vllm_config"] == str(engine.vllm_config)
        assert "object at 0x" not in text["vllm_config"]
        answer = world.client.get("/server_info", params={"config_format": "json"}).json()
        config = answer["vllm_config"]
        assert config["model_config"]["model"] == str(engine.model_directory)
        assert config["model_config"]["info"]["num_kv_blocks"] > 0
        assert config["cache_config"]["block_size"] == engine.model_info().block_size
        assert config["speculative_config"] == drafts
        bad = world.client.get("/server_info", params={"config_format": "yaml"})
        assert error_of(bad, 400)["param"] == "config_format"


def test_a_reset_empties_the_prefix_cache(operated: World) -> None:
    body: dict[str, Any] = {**BODY, "prompt": "abcdefgh" * 5}

    def num_cached() -> int:
        usage = operated.ask("/v1/completions", **body)["usage"]
        number: int = usage["prompt_tokens_details"]["cached_tokens"]
        return number

    num_cached()
    assert num_cached() == 32
    num_blocks = operated.engine.stats().num_cached_kv_blocks
    assert operated.ask("/reset_prefix_cache") == {"num_dropped_blocks": num_blocks}
    assert num_cached() == 0
    assert num_cached() == 32


@pytest.mark.parametrize("path", ["/health", "/ping", "/version", "/v1/models"])
def test_head_is_get_without_a_body(world: World, path: str) -> None:
    get, head = world.client.get(path), world.client.head(path)
    assert head.status_code == get.status_code == 200
    assert head.content == b""
    assert head.headers["content-length"] == str(len(get.content))


def test_head_of_a_server_that_is_ending(engine: Engine) -> None:
    with serving(engine) as world:
        world.service.is_draining = True
        assert world.client.head("/health").status_code == 503
        world.service.is_draining = False


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings", "/pooling", "/v1/rerank"])
def test_embeddings_are_refused_by_a_sentence(world: World, path: str) -> None:
    error = world.error(path, 404, model=MODEL, input="abc")
    assert "embeddings and scores are not served" in error["message"]
