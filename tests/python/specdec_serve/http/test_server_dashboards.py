"""What dashboards show is exported: ours, and those that vLLM brings."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from metrics_page import Page, scrape, serving_drafts
from server_world import World

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def drafting(model: Path) -> Iterator[World]:
    with serving_drafts(model) as world:
        yield world


# Labels that Prometheus itself adds to what is scraped, and variables of Grafana.
ADDED = {"job", "instance", "le"}
NAME = re.compile(
    r"\b((?:vllm|specdec_native):\w+|(?:http|process)_\w+)(?:\{([^}]*)\})?"
    r"|\b(?:by|on)\s*\(([^)]*)\)"
)


def expressions(dashboard: dict[str, Any]) -> list[tuple[str, str]]:
    """Every target's expression and legend."""
    targets = [t for panel in dashboard["panels"] for t in panel.get("targets", [])]
    return [(target["expr"], target["legendFormat"]) for target in targets]


def labels_missing(page: Page, expression: str, legend: str = "") -> set[str]:
    """Names and labels of an expression that the page does not have."""
    names: set[str] = set()
    labels = set(re.findall(r"\{\{(\w+)\}\}", legend))
    missing = set()
    for name, matchers, by in NAME.findall(expression):
        if name:
            names.add(name)
            series = [s for s in page.samples if s.name == name]
            used = set(re.findall(r"(\w+)\s*[=!]~?", matchers)) - ADDED
            missing |= {f"{name}: {label}" for label in used if label not in _labels(series)}
            missing |= set() if series else {name}
        labels |= {label.strip() for label in by.split(",") if label.strip()}
    assert names, expression
    of_all = [_labels([s for s in page.samples if s.name == name]) for name in names]
    missing |= {label for label in labels - ADDED if not any(label in of for of in of_all)}
    return missing


def _labels(series: list[Any]) -> set[str]:
    return set().union(*(sample.labels for sample in series)) if series else set()


def test_our_dashboard_finds_what_it_shows(drafting: World) -> None:
    dashboard = json.loads((ROOT / "examples/serving/grafana.json").read_text())
    page = scrape(drafting)
    found = expressions(dashboard)
    assert len(found) > 40
    assert {e: m for e, legend in found if (m := labels_missing(page, e, legend))} == {}
    sources = [v["name"] for v in dashboard["templating"]["list"] if v["type"] == "datasource"]
    assert sources == ["datasource"]
    for panel in dashboard["panels"]:
        assert panel["type"] == "row" or panel["datasource"]["uid"] == "${datasource}"
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_a_name_that_nobody_exports_is_missed(drafting: World) -> None:
    page = scrape(drafting)
    assert labels_missing(page, "sum(rate(vllm:generated_tokens_total[1m]))")
    assert labels_missing(page, 'sum by (shape) (vllm:num_requests_running{engine="0"})')
    assert labels_missing(page, 'vllm:num_requests_running{motor="0"}')
    assert labels_missing(page, "vllm:num_requests_running", "{{position}}")


# What the expressions of vLLM's dashboards read (examples/observability of vLLM 0.33:
# prometheus_grafana/grafana.json and dashboards/grafana/*.json), without what they show of LoRA,
# images and connectors; and the labels by which they choose and group.
VLLM_SERIES = [
    "vllm:e2e_request_latency_seconds_bucket{model_name,engine,le}",
    "vllm:e2e_request_latency_seconds_count{model_name}",
    "vllm:e2e_request_latency_seconds_sum{model_name}",
    "vllm:prompt_tokens_total{model_name}",
    "vllm:generation_tokens_total{model_name,engine}",
    "vllm:inter_token_latency_seconds_bucket{model_name,le}",
    "vllm:inter_token_latency_seconds_count{model_name}",
    "vllm:inter_token_latency_seconds_sum{model_name}",
    "vllm:request_time_per_output_token_seconds_bucket{model_name,le}",
    "vllm:request_time_per_output_token_seconds_count{model_name}",
    "vllm:num_requests_running{model_name,engine}",
    "vllm:num_requests_waiting{model_name}",
    "vllm:num_requests_waiting_by_reason{model_name,engine,reason}",
    "vllm:time_to_first_token_seconds_bucket{model_name,le}",
    "vllm:time_to_first_token_seconds_count{model_name}",
    "vllm:time_to_first_token_seconds_sum{model_name}",
    "vllm:kv_cache_usage_perc{model_name,engine}",
    "vllm:request_prompt_tokens_bucket{model_name,le}",
    "vllm:request_generation_tokens_bucket{model_name,le}",
    "vllm:request_success_total{model_name,finished_reason}",
    "vllm:request_queue_time_seconds_sum{model_name}",
    "vllm:request_prefill_time_seconds_sum{model_name}",
    "vllm:request_decode_time_seconds_sum{model_name}",
    "vllm:request_max_num_generation_tokens_sum{model_name}",
    "vllm:engine_sleep_state{model_name,sleep_state}",
    "vllm:num_preemptions_total{model_name,engine}",
    "vllm:prefix_cache_hits_total{model_name,engine}",
    "vllm:prefix_cache_queries_total{model_name,engine}",
    "vllm:prompt_tokens_cached_total{model_name,engine}",
    "vllm:spec_decode_num_accepted_tokens_total{model_name,engine}",
    "vllm:spec_decode_num_draft_tokens_total{model_name,engine}",
    "vllm:spec_decode_num_drafts_total{model_name,engine}",
    "vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name,engine,position}",
]


def test_vllms_dashboards_find_what_they_show(drafting: World) -> None:
    page = scrape(drafting)
    for series in VLLM_SERIES:
        name, _, labels = series.removesuffix("}").partition("{")
        samples = [sample for sample in page.samples if sample.name == name]
        assert samples, name
        assert all(set(labels.split(",")) <= set(sample.labels) for sample in samples), series
