"""Pages of /metrics, and a server whose page has something of everything."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client.metrics_core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

from server_world import World, serving
from specdec_native import Engine
from tiny_text_model import OPTIONS, TEXT_TOKEN_IDS

PROMPT = "abcabcabcabc"
MAX_TOKENS = 10
# Where one letter is allowed, this drafter is right.
SPECULATIVE = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "draft_length_policy": "fixed",
    "prompt_lookup_min": 1,
}
ONE_LETTER = TEXT_TOKEN_IDS[40:41]


class Page:
    """A scrape: families by name, and the values of samples."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families: dict[str, Family] = {}
        for family in text_string_to_metric_families(text):
            assert family.name not in self.families, f"{family.name} comes twice"
            self.families[family.name] = family
        self.samples = [s for family in self.families.values() for s in family.samples]

    def value(self, name: str, **labels: str) -> float:
        """The sum of the samples of that name with these labels; there must be at least one."""
        found = [s for s in self.samples if s.name == name and labels.items() <= s.labels.items()]
        assert found, (name, labels)
        return sum(sample.value for sample in found)


def scrape(world: World) -> Page:
    response = world.client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    return Page(response.text)


def body(**further: Any) -> dict[str, Any]:
    fixed = {"ignore_eos": True, "max_tokens": MAX_TOKENS, "seed": 3}
    return {"prompt": PROMPT, "allowed_token_ids": TEXT_TOKEN_IDS, **fixed, **further}


@contextlib.contextmanager
def serving_drafts(model: Path) -> Iterator[World]:
    """A server that has answered some requests with drafts; some of the drafts were right."""
    with (
        Engine(model, **OPTIONS, speculative_config=SPECULATIVE) as engine,
        serving(engine, slo_ttft=60.0) as world,
    ):
        world.ask("/v1/completions", **body(allowed_token_ids=ONE_LETTER))
        world.events("/v1/completions", **body(n=2))
        world.events("/v1/chat/completions", messages=[{"role": "user", "content": "hi"}])
        yield world
