"""GET /metrics: counts after known requests, vLLM's names and buckets; the summary line."""

import concurrent.futures
import contextlib
import json
import logging
import math
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from metrics_page import MAX_TOKENS, ONE_LETTER, PROMPT, SPECULATIVE, body, scrape, serving_drafts
from server_world import MODEL, World, serving
from specdec_cli.serve_settings import settings_of
from specdec_native import LLM, Engine
from specdec_native.requests.outputs import EngineStats, SpeculativeDecodingMetrics
from specdec_serve.http.metrics.buckets import Buckets, token_counts
from specdec_serve.http.metrics.summary import Summary
from specdec_vllm import metrics as vllm_names
from tiny_text_model import OPTIONS
from waiting import wait_until

NUM_REQUESTS = 5


@pytest.fixture
def world(model: Path) -> Iterator[World]:
    """A server whose engine has not run anything yet."""
    with Engine(model, **OPTIONS) as engine, serving(engine) as world:
        yield world


@pytest.fixture(scope="module")
def drafting(model: Path) -> Iterator[World]:
    with serving_drafts(model) as world:
        yield world


# -- what is counted


@pytest.mark.parametrize("ask", ["ask", "events"])
def test_counts_are_those_of_the_requests(world: World, ask: str) -> None:
    """As vLLM's tests have them, for answers sent whole and streamed ones."""
    for _ in range(NUM_REQUESTS):
        getattr(world, ask)("/v1/completions", **body())
    page = scrape(world)
    prompt, generated = NUM_REQUESTS * len(PROMPT), NUM_REQUESTS * MAX_TOKENS
    for name in (
        *("e2e_request_latency_seconds", "request_queue_time_seconds"),
        *("request_prefill_time_seconds", "request_decode_time_seconds"),
        *("request_inference_time_seconds", "time_to_first_token_seconds"),
        *("request_time_per_output_token_seconds", "request_num_preemptions"),
        *("request_prompt_tokens", "request_generation_tokens", "request_params_n"),
        *("request_params_max_tokens", "request_max_num_generation_tokens"),
        "request_prefill_kv_computed_tokens",
    ):
        assert page.value(f"vllm:{name}_count") == NUM_REQUESTS, name
    for name, total in {
        "request_prompt_tokens": prompt,
        "request_generation_tokens": generated,
        "request_max_num_generation_tokens": generated,
        "request_params_max_tokens": generated,
        "request_params_n": NUM_REQUESTS,
        "request_num_preemptions": 0,
    }.items():
        assert page.value(f"vllm:{name}_sum") == total, name
    assert page.value("vllm:prompt_tokens_total") == prompt
    assert page.value("vllm:prompt_tokens_by_source_total") == prompt
    assert page.value("vllm:prefix_cache_queries_total") == prompt
    assert page.value("vllm:generation_tokens_total") == generated
    assert page.value("vllm:request_success_total", finished_reason="length") == NUM_REQUESTS
    assert page.value("vllm:request_success_total") == NUM_REQUESTS
    # Without speculation every token after the first has a step of its own.
    between = NUM_REQUESTS * (MAX_TOKENS - 1)
    assert page.value("vllm:inter_token_latency_seconds_count") == between
    # A step computes what its tokens come from: a prompt, then the token before.
    assert page.value("vllm:iteration_tokens_total_count") == generated
    computed = page.value("vllm:request_prefill_kv_computed_tokens_sum")
    assert page.value("vllm:iteration_tokens_total_sum") == computed + between
    assert computed + page.value("vllm:prompt_tokens_cached_total") == pytest.approx(prompt)


def test_times_of_a_request_add_up(world: World) -> None:
    """Every part lies within the whole, and parts that follow each other add up."""
    before = time.monotonic()
    world.events("/v1/completions", **body())
    world.ask("/v1/completions", **body(n=3, temperature=1.0))
    elapsed = time.monotonic() - before
    page = scrape(world)

    def seconds(name: str) -> float:
        return page.value(f"vllm:{name}_seconds_sum")

    inference = seconds("request_prefill_time") + seconds("request_decode_time")
    assert seconds("request_inference_time") == pytest.approx(inference)
    assert 0 < inference <= seconds("e2e_request_latency") <= 4 * elapsed
    assert 0 < seconds("time_to_first_token") <= seconds("e2e_request_latency")
    per_token = seconds("request_time_per_output_token") * (MAX_TOKENS - 1)
    assert per_token == pytest.approx(seconds("request_decode_time"))
    assert seconds("inter_token_latency") <= seconds("request_decode_time") + elapsed


def test_each_completion_of_a_request_counts(world: World) -> None:
    world.ask("/v1/completions", **body(prompt=["abc", "abcd"], n=3, temperature=1.0))
    page = scrape(world)
    assert page.value("vllm:request_success_total") == 6
    assert page.value("vllm:request_prompt_tokens_sum") == 3 * (3 + 4)
    assert page.value("vllm:request_params_n_count") == 2
    assert page.value("vllm:request_params_n_sum") == 6
    assert page.value("vllm:request_max_num_generation_tokens_sum") == 2 * MAX_TOKENS
    assert page.value("vllm:request_prefill_kv_computed_tokens_sum") == 3 + 4


def test_a_stop_is_told_from_a_limit(world: World) -> None:
    text = world.ask("/v1/completions", **body())["choices"][0]["text"]
    world.ask("/v1/completions", **body(stop=text[4:6]))
    page = scrape(world)
    assert page.value("vllm:request_success_total", finished_reason="stop") == 1
    assert page.value("vllm:request_success_total", finished_reason="length") == 1


@pytest.mark.parametrize("stream", [True, False])
def test_clients_that_leave_are_counted_as_aborted(model: Path, stream: bool) -> None:
    overrides = {"max_position_embeddings": 100_000}
    with Engine(model, dtype="float32", hf_overrides=overrides) as engine, serving(engine) as world:
        endless = body(max_tokens=90_000, stream=stream)
        client = contextlib.ExitStack()
        if stream:
            response = client.enter_context(
                world.client.stream("POST", "/v1/completions", json=endless)
            )
            lines = response.iter_lines()  # a client that drops them leaves
            next(lines)
        else:
            # A client that sends its request and leaves without reading.
            request = json.dumps(endless).encode()
            connection = client.enter_context(socket_to(world))
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                + b"Content-Length: %d\r\n\r\n" % len(request)
                + request
            )
        # A scrape is answered while the request runs.
        wait_until(lambda: scrape(world).value("vllm:num_requests_running") == 1)
        assert scrape(world).value("vllm:kv_cache_usage_perc") > 0
        client.close()
        aborted = {"finished_reason": "abort"}
        wait_until(lambda: scrape(world).value("vllm:request_success_total", **aborted) == 1)
        wait_until(lambda: scrape(world).value("vllm:num_requests_running") == 0)
        page = scrape(world)
        assert page.value("vllm:kv_cache_usage_perc") == 0
        assert page.value("vllm:request_success_total") == 1
        assert page.value("vllm:request_generation_tokens_sum") > 0
        assert page.value("specdec_native:slo_requests_total") == 0


def socket_to(world: World) -> socket.socket:
    return socket.create_connection(("127.0.0.1", world.port))


def test_answers_are_counted_by_route_and_status(world: World) -> None:
    world.ask("/v1/completions", **body())
    world.events("/v1/completions", **body())
    world.error("/v1/completions", 400, prompt="a", n=-1)
    world.error("/v1/completions", 404, prompt="a", model="other")
    world.client.get("/v1/models")
    world.client.get("/health")
    world.client.get("/nowhere/at/all")
    page = scrape(world)

    def count(handler: str, method: str, status: str) -> float:
        labels = {"handler": handler, "method": method, "status": status}
        return page.value("http_requests_total", **labels)

    assert count("/v1/completions", "POST", "2xx") == 2
    assert count("/v1/completions", "POST", "4xx") == 2
    assert count("/v1/models", "GET", "2xx") == 1
    assert count("none", "GET", "4xx") == 1
    assert page.value("http_requests_total") == 6  # /health and /metrics do not count
    assert page.value("vllm:request_success_total") == 2


def test_answers_of_middleware_are_counted(engine: Engine) -> None:
    with serving(engine, api_keys=("secret",), request_id_headers=True) as world:
        world.error("/v1/completions", 401, **body())
        world.client.headers["authorization"] = "Bearer secret"
        world.ask("/v1/completions", **body())
        page = scrape(world)
    assert page.value("http_requests_total", handler="none", status="4xx") == 1
    assert page.value("http_requests_total", handler="/v1/completions", status="2xx") == 1


@pytest.mark.parametrize("limit", ["requests", "tokens"])
def test_refusals_are_counted_by_the_limit(engine: Engine, limit: str) -> None:
    refused = "vllm:admission_rejections_total"
    reason = {"requests": "max_num_queued_reqs", "tokens": "max_num_queued_tokens"}[limit]
    options = {f"max_queued_{limit}": 0}
    with serving(engine, **options) as world:
        assert scrape(world).value(refused) == 0
        world.error("/v1/completions", 503, **body())
        page = scrape(world)
    assert page.value(refused) == page.value(refused, reason=reason) == 1
    assert page.value("http_requests_total", status="5xx") == 1


@pytest.mark.parametrize(
    ("limits", "good"),
    [({}, 1), ({"slo_ttft": 60.0, "slo_tpot": 60.0}, 1), ({"slo_ttft": 0.0}, 0)],
)
def test_goodput_counts_requests_within_the_limits(
    engine: Engine, limits: dict[str, float], good: int
) -> None:
    with serving(engine, **limits) as world:
        world.events("/v1/completions", **body())
        page = scrape(world)
    assert page.value("specdec_native:slo_requests_total") == 1
    assert page.value("specdec_native:slo_good_requests_total") == good
    limit = page.value("specdec_native:slo_seconds", limit="ttft")
    assert limit == limits.get("slo_ttft", math.inf)


def test_a_scrape_that_waits_for_a_step_holds_nobody_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, is_waiting, may_go_on = world.engine.stats, threading.Event(), threading.Event()

    def wait_and_read() -> EngineStats:
        is_waiting.set()
        assert may_go_on.wait(20)
        return read()

    monkeypatch.setattr(world.engine, "stats", wait_and_read)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        page = pool.submit(scrape, world)
        assert is_waiting.wait(20)
        world.ask("/v1/completions", **body())
        assert not page.done()
        may_go_on.set()
        assert page.result(20).value("vllm:generation_tokens_total") == MAX_TOKENS


def test_a_scrape_of_a_closed_engine_is_an_error(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Engine(model, **OPTIONS) as engine, serving(engine, log_stats=False) as world:
        engine.close()
        response = world.client.get("/metrics")
    assert response.status_code == 500
    assert response.json()["error"]["code"] == 500 and "closed" in caplog.text


# -- the page


def test_the_page_is_well_formed(drafting: World) -> None:
    """What promtool checks: help, types, names, and that buckets only grow."""
    page = scrape(drafting)
    lines = page.text.splitlines()
    series = [line.rpartition(" ")[0] for line in lines if not line.startswith("#")]
    assert len(series) == len(set(series))
    for family in page.families.values():
        assert family.type in {"gauge", "counter", "histogram"}, family.name
        assert family.documentation
        assert re.fullmatch(r"[a-z_:][a-z0-9_:]*", family.name)
        label_names = {frozenset(s.labels) - {"le"} for s in family.samples}
        assert len(label_names) == 1, family.name
        if family.type == "counter":
            assert all(s.name.endswith("_total") and s.value >= 0 for s in family.samples)
        if family.type == "histogram":
            counts = [s.value for s in family.samples if s.name.endswith("_bucket")]
            assert counts == sorted(counts)
            assert counts[-1] == page.value(f"{family.name}_count")
    ours = [s for s in page.samples if s.name.startswith(("vllm:", "specdec_native:"))]
    for sample in ours:
        if not sample.name.startswith(("vllm:cache_config", "vllm:admission_rej")):
            assert (sample.labels["model_name"], sample.labels["engine"]) == (MODEL, "0")
    assert page.value("vllm:cache_config_info", block_size="16", engine="0") == 1


# vllm/v1/metrics/buckets.py of vLLM 0.33.
SECONDS = ".3 .5 .8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680"
FIRST = ".001 .005 .01 .02 .04 .06 .08 .1 .25 .5 .75 1 2.5 5 7.5 10 20 40 80 160 640 2560"
TOKEN = ".01 .025 .05 .075 .1 .15 .2 .3 .4 .5 .75 1 2.5 5 7.5 10 20 40 80"
BUCKETS = {
    "e2e_request_latency_seconds": SECONDS,
    "request_queue_time_seconds": SECONDS,
    "request_prefill_time_seconds": SECONDS,
    "request_decode_time_seconds": SECONDS,
    "request_inference_time_seconds": SECONDS,
    "time_to_first_token_seconds": FIRST,
    "inter_token_latency_seconds": TOKEN,
    "request_time_per_output_token_seconds": TOKEN,
    "request_prompt_tokens": "1 2 5 10 20 50",  # max_model_len is 96
    "request_generation_tokens": "1 2 5 10 20 50",
    "request_max_num_generation_tokens": "1 2 5 10 20 50",
    "request_prefill_kv_computed_tokens": "1 2 5 10 20 50",
    "request_params_max_tokens": "1 2 5 10 20 50",
    "request_params_n": "1 2 5 10 20",
    "request_num_preemptions": "1 2 3 4 5 10 20",
    "iteration_tokens_total": "1 8 16 32 64 128 256 512 1024 2048 4096 8192 16384",
}


def test_buckets_are_vllms(drafting: World) -> None:
    page = scrape(drafting)
    histograms = {f.name for f in page.families.values() if f.type == "histogram"}
    vllms = {name.removeprefix("vllm:") for name in histograms if name.startswith("vllm:")}
    assert vllms == set(BUCKETS)
    for name in vllms:
        samples = page.families[f"vllm:{name}"].samples
        shown = [s.labels["le"] for s in samples if s.name.endswith("_bucket")]
        assert shown == [*(str(float(bound)) for bound in BUCKETS[name].split()), "+Inf"], name


def test_token_counts_go_up_to_the_longest_request() -> None:
    assert token_counts(1) == (1,)
    assert token_counts(131072)[-3:] == (20_000, 50_000, 100_000)
    assert token_counts(100) == (1, 2, 5, 10, 20, 50, 100)


def test_an_observation_belongs_to_the_first_bound_that_is_not_less() -> None:
    buckets = Buckets((1.0, 2.0))
    for value, times in ((0.5, 1), (1.0, 2), (1.5, 1), (2.0, 1), (7.0, 3)):
        buckets.observe(value, times)
    assert buckets.counts == [3, 2, 3]
    assert buckets.total == 0.5 + 2 + 1.5 + 2 + 21


def test_offline_metrics_have_the_same_names(drafting: World, model: Path) -> None:
    page = scrape(drafting)
    llm = LLM(model, **OPTIONS, speculative_config=SPECULATIVE)
    kinds: dict[type[vllm_names.Metric], str] = {
        vllm_names.Counter: "counter",
        vllm_names.Vector: "counter",
        vllm_names.Gauge: "gauge",
        vllm_names.Histogram: "histogram",
    }
    for metric in llm.get_metrics():
        assert metric.name in page.families
        assert page.families[metric.name].type == kinds[type(metric)]
        first = page.families[metric.name].samples[0]
        assert set(metric.labels) <= set(first.labels)


# -- speculation


def test_the_benchmark_reads_acceptance(drafting: World) -> None:
    """As `vllm bench serve` does: lines are split at spaces, and only *_total count."""
    page = scrape(drafting)
    found: dict[str, int] = {}
    by_position: dict[int, int] = {}
    for line in page.text.splitlines():
        if not line.startswith("vllm:spec_decode"):
            continue
        series, value = line.split()
        name = series.split("{")[0]
        if not name.endswith("_total"):
            continue
        if "per_pos" in name:
            position = re.search(r'position="(\d+)"', line)
            assert position
            by_position[int(position[1])] = int(float(value))
        else:
            found[name.removeprefix("vllm:spec_decode_num_").removesuffix("_total")] = int(
                float(value)
            )
    drafts = drafting.engine.stats().speculative_decoding
    assert drafts is not None and drafts.num_accepted_draft_tokens > 0
    assert found == {
        "drafts": drafts.num_spec_steps,
        "draft_tokens": drafts.num_draft_tokens,
        "accepted_tokens": drafts.num_accepted_draft_tokens,
    }
    assert by_position == dict(enumerate(drafts.accepted_per_position))
    assert sum(by_position.values()) == found["accepted_tokens"]


def test_a_step_with_drafts_is_one_output(model: Path) -> None:
    """The times between outputs are as many as the steps after the first token."""
    for ask in ("ask", "events"):
        with (
            Engine(model, **OPTIONS, speculative_config=SPECULATIVE) as engine,
            serving(engine) as world,
        ):
            getattr(world, ask)(
                "/v1/completions", **body(max_tokens=30, allowed_token_ids=ONE_LETTER)
            )
            page = scrape(world)
            drafts = engine.stats().speculative_decoding
        assert drafts is not None
        saved = drafts.num_emitted_tokens - drafts.num_spec_steps
        assert saved > 0
        assert page.value("vllm:inter_token_latency_seconds_count") == 30 - 1 - saved
        assert page.value("vllm:request_generation_tokens_sum") == 30


def test_what_drafters_did_is_shown(drafting: World) -> None:
    page = scrape(drafting)
    stats = drafting.engine.stats()
    assert [drafter.name for drafter in stats.drafters] == ["ngram"]
    drafted = page.value("specdec_native:drafter_draft_tokens_total", drafter="ngram")
    accepted = page.value("specdec_native:drafter_accepted_tokens_total", drafter="ngram")
    assert drafted == stats.drafters[0].num_draft_tokens >= accepted > 0
    assert stats.speculative_decoding is not None
    lengths = "specdec_native:draft_length"
    assert page.value(f"{lengths}_count") == stats.speculative_decoding.num_spec_steps
    assert page.value(f"{lengths}_sum") == drafted  # a chain is as long as it has tokens
    assert page.value(f"{lengths}_bucket", le="3.0") == page.value(f"{lengths}_count")
    assert page.value("specdec_native:steps_total") == stats.num_steps
    for part in ("schedule", "draft", "forward", "sample", "commit"):
        assert page.value("specdec_native:step_seconds_total", part=part) > 0


# -- the log


def drafts(steps: int, drafted: int, accepted: list[int]) -> SpeculativeDecodingMetrics:
    kept = sum(accepted)
    return SpeculativeDecodingMetrics(
        mean_acceptance_length=1.0,
        draft_acceptance_rate=0.0,
        acceptance_histogram=[],
        num_spec_steps=steps,
        num_accepted_draft_tokens=kept,
        num_draft_tokens=drafted,
        num_spec_tokens=2,
        num_emitted_tokens=steps + kept,
        proposed_per_position=[],
        accepted_per_position=accepted,
    )


def test_the_summary_is_of_what_happened_since_the_last() -> None:
    early = EngineStats(num_prompt_tokens=100, num_generation_tokens=7, num_kv_blocks=8)
    early.num_free_kv_blocks = 8
    early.speculative_decoding = drafts(10, 20, [5, 2])
    late = EngineStats(num_prompt_tokens=150, num_cached_tokens=50, num_generation_tokens=507)
    late.num_running, late.num_waiting, late.num_kv_blocks, late.num_free_kv_blocks = 3, 2, 8, 6
    late.speculative_decoding = drafts(110, 220, [85, 42])
    summary = Summary(early, 100.0)
    first, second = summary.lines(late, 110.0)
    assert first == (
        "Engine 000: prompts 5.0 tokens/s, generation 50.0 tokens/s, 3 running, 2 waiting, "
        "KV cache 25.0% used, prefix cache hits 50.0%"
    )
    assert second == (
        "Engine 000: drafts: mean acceptance length 2.20, accepted 12.0 of 20.0 tokens/s (60.0%), "
        "by position 0.800, 0.400"
    )
    idle = EngineStats(num_prompt_tokens=150, num_cached_tokens=50, num_generation_tokens=507)
    idle.speculative_decoding = late.speculative_decoding
    assert summary.lines(idle, 120.0) == []


@pytest.mark.parametrize("log_stats", [True, False])
def test_a_server_logs_while_there_is_work(
    model: Path,
    log_stats: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("specdec_serve.http.metrics.summary.INTERVAL_SECONDS", 0.02)
    caplog.set_level(logging.DEBUG, "specdec_native.server")
    with Engine(model, **OPTIONS) as engine, serving(engine, log_stats=log_stats) as world:
        world.ask("/v1/completions", **body(request_id="mine\n"))

        def has_summary() -> bool:
            return any("Engine 000" in message for message in caplog.messages)

        if log_stats:
            wait_until(has_summary)
        else:
            time.sleep(0.2)
            assert not has_summary()
    lines = [message for message in caplog.messages if "ended (length)" in message]
    assert len(lines) == 1
    assert lines[0].startswith("completion 'cmpl-mine\\n' ended")
    assert PROMPT not in caplog.text


def test_the_flag_turns_the_summary_off() -> None:
    assert settings_of({"model": "m"}).server.log_stats
    settings = settings_of({"model": "m", "disable_log_stats": True, "slo_ttft": 0.5})
    assert not settings.server.log_stats and settings.without_effect == []
    assert settings.server.slo_ttft == 0.5
