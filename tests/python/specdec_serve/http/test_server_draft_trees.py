"""`draft_trees` of chats: accepted drafts are the tokens that come."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server_world import World, serving
from specdec_native import Engine
from tiny_text_model import CHARS, FIRST_CHAR, OPTIONS, TEXT_TOKEN_IDS, text_params

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "ab" * 16}]
BODY: dict[str, Any] = {
    "messages": MESSAGES,
    "temperature": 0,
    "seed": 5,
    "max_tokens": 24,
    "ignore_eos": True,
    "allowed_token_ids": TEXT_TOKEN_IDS,
}
TREES = {
    "drafters": [{"method": "ngram", "prompt_lookup_min": 1}, {"method": "suffix"}],
    "merge_drafters": True,
    "num_speculative_tokens": 4,
    "tree_width": 2,
    "draft_length_policy": "fixed",
}


@pytest.fixture(scope="module")
def drafting(model: Path) -> Engine:
    return Engine(model, **OPTIONS, speculative_config=TREES)


@pytest.fixture(scope="module")
def world(drafting: Engine) -> Iterator[World]:
    with serving(drafting) as world:
        yield world


def of_stream(world: World, **more: Any) -> tuple[list[int], list[dict[str, Any]]]:
    """Token ids and trees of a streamed chat."""
    tokens: list[int] = []
    trees: list[dict[str, Any]] = []
    for event in world.events(CHAT, **BODY, draft_trees=True, return_token_ids=True, **more):
        for choice in event["choices"]:
            for tree in choice.get("draft_trees", ()):
                # The chunk has the first token of each step that it tells of.
                assert len(tokens) <= tree["at"] < len(tokens) + len(choice["token_ids"])
                trees.append(tree)
            tokens += choice.get("token_ids", ())
    return tokens, trees


def check(tree: dict[str, Any], tokens: list[int]) -> None:
    accepted = [node["token_id"] for node in tree["nodes"] if node["accepted"]]
    at = tree["at"]
    assert tokens[at : at + len(accepted)] == accepted[: len(tokens) - at]
    for i, node in enumerate(tree["nodes"]):
        assert node["parent"] < i and node["drafter"] in {"ngram", "suffix"}
        above = 0 if node["parent"] < 0 else tree["nodes"][node["parent"]]["depth"]
        assert node["depth"] == above + 1
        assert 0 <= node["probability"] <= 1
        assert node["text"] == CHARS[node["token_id"] - FIRST_CHAR]


@pytest.mark.parametrize("more", [{}, {"stream_interval": 5}])
def test_a_stream_says_what_was_drafted(world: World, more: dict[str, Any]) -> None:
    tokens, trees = of_stream(world, **more)
    assert len(tokens) == 24 and trees
    assert any(node["accepted"] for tree in trees for node in tree["nodes"])
    for tree in trees:
        check(tree, tokens)


def test_a_whole_answer_says_what_was_drafted(world: World, drafting: Engine) -> None:
    (choice,) = world.ask(CHAT, **BODY, draft_trees=True, return_token_ids=True)["choices"]
    assert choice["draft_trees"]
    for tree in choice["draft_trees"]:
        check(tree, choice["token_ids"])
    (output,) = drafting.chat(MESSAGES, text_params(temperature=0), use_tqdm=False)
    assert output.outputs[0].token_ids == choice["token_ids"]


def test_trees_come_on_wish(world: World, engine: Engine) -> None:
    (choice,) = world.ask(CHAT, **BODY)["choices"]
    assert "draft_trees" not in choice
    assert all("draft_trees" not in str(event) for event in world.events(CHAT, **BODY))
    with serving(engine) as plain:  # does not speculate
        (choice,) = plain.ask(CHAT, **BODY, draft_trees=True)["choices"]
        assert "draft_trees" not in choice
    error = world.error(CHAT, **BODY, draft_trees="many")
    assert error["param"] == "draft_trees"
