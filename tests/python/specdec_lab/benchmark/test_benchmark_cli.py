"""`specdec-native bench` as a user runs it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tiny_text_model
from command_line import run
from metrics_page import SPECULATIVE
from server_world import World, serving
from specdec_cli import bench_settings
from specdec_native import Engine
from tiny_text_model import OPTIONS

UNREACHABLE = "http://127.0.0.1:1"


@pytest.fixture(scope="module")
def world(model: Path) -> Iterator[World]:
    with (
        Engine(model, **OPTIONS, speculative_config=SPECULATIVE) as engine,
        serving(engine, acceptance_metrics="summary") as world,
    ):
        yield world


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("bench") / "prompts.jsonl"
    lines = [
        {"question_id": 81, "category": "writing", "turns": ["abcabcabc", "and again"]},
        {"question_id": 82, "category": "code", "turns": ["ababab"]},
        {"question_id": 83, "category": "writing", "turns": ["xyxyxyxy"]},
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def bench(*arguments: object) -> dict[str, Any]:
    result = run("bench", *arguments, "--json")
    assert result.returncode == 0, result.stderr
    fields: dict[str, Any] = json.loads(result.stdout)
    return fields


def test_a_server_is_measured(world: World, prompts: Path, tmp_path: Path) -> None:
    files = ("--save-result", tmp_path / "out.json", "--chart", tmp_path / "out.svg")
    result = run(
        *("bench", "serve", "--base-url", world.url, "--dataset-path", prompts),
        *("--num-prompts", 6, "--custom-output-len", 12, "--ignore-eos", "--max-concurrency", 2),
        *("--goodput", "ttft:60000", "tpot:60000", *files, "--save-detailed"),
    )
    assert result.returncode == 0, result.stderr
    for word in ("TTFT", "per output token", "writing", "drafts", "good requests/s", "out.svg"):
        assert word in result.stdout
    assert (tmp_path / "out.svg").read_text().startswith("<?xml")
    fields = json.loads((tmp_path / "out.json").read_text())
    assert fields["num_prompts"] == 6 and fields["max_concurrency"] == 2
    assert fields["goodput"] == {"ttft": 60000.0, "tpot": 60000.0}
    (server,) = fields["servers"]
    assert (server["base_url"], server["model_id"]) == (world.url, "tiny")
    assert (server["completed"], server["failed"], server["errors"]) == (6, 0, {})
    assert server["total_output_tokens"] == 6 * 12
    assert server["total_input_tokens"] == 2 * (9 + 6 + 8)
    assert server["output_throughput"] == pytest.approx(72 / server["duration"])
    assert server["request_goodput"] == pytest.approx(server["request_throughput"])
    assert {name: found["completed"] for name, found in server["categories"].items()} == {
        "writing": 4,
        "code": 2,
    }
    drafts = [found["spec_decode_num_drafts"] for found in server["categories"].values()]
    assert sum(drafts) == server["spec_decode_num_drafts"] > 0
    assert len(server["answers"]) == 6
    for answer in server["answers"]:
        assert answer["output_len"] == 12 and len(answer["itl"]) < 12
        assert answer["ttft"] + sum(answer["itl"]) == pytest.approx(answer["latency"])


def test_random_prompts_have_the_length_asked_for(world: World) -> None:
    fields = bench(
        *("serve", "--base-url", f"{world.url}/v1", "--dataset-name", "random"),
        *("--num-prompts", 3, "--random-input-len", 40, "--random-output-len", 5),
        *("--request-rate", 200, "--burstiness", 0.5, "--ignore-eos", "--num-warmups", 0),
    )
    (server,) = fields["servers"]
    assert server["total_output_tokens"] == 15
    assert server["total_input_tokens"] == pytest.approx(120, abs=12)  # a letter is a token here
    assert (fields["request_rate"], fields["burstiness"]) == (200.0, 0.5)


def test_two_servers_are_compared(world: World, prompts: Path) -> None:
    """The second is the first without drafts, which never change a text."""
    fields = bench(
        *("serve", "--base-url", world.url, "--base-url", world.url),
        *("--extra-body", "{}", "--extra-body", '{"num_speculative_tokens": 0}'),
        *("--dataset-path", prompts, "--num-prompts", 4, "--num-rounds", 2),
        *("--custom-output-len", 8, "--ignore-eos", "--backend", "openai-chat"),
    )
    first, second = fields["servers"]
    assert first["base_url"] == world.url and "num_speculative_tokens" in second["base_url"]
    assert first["completed"] == second["completed"] == 4 and fields["num_rounds"] == 2
    assert first["spec_decode_num_drafts"] > 0 and "spec_decode_num_drafts" not in second
    (comparison,) = fields["comparisons"]
    assert (comparison["num_same"], comparison["num_compared"]) == (4, 4)
    ratios = comparison["ratios"]
    for name in ("output_throughput", "mean_ttft", "mean_e2el"):
        assert ratios[name]["num_rounds"] == 2, name
    for ratio in ratios.values():
        if ratio["num_rounds"] == 2:
            assert ratio["low"] <= ratio["mean"] <= ratio["high"]
        else:  # an answer that came in one piece has no time between its tokens
            assert ratio["num_rounds"] == 1 and ratio["low"] is ratio["high"] is None
    text = run(
        *("bench", "serve", "--base-url", world.url, "--base-url", world.url),
        *("--dataset-path", prompts, "--custom-output-len", 4, "--num-rounds", 1),
    ).stdout
    assert f"{world.url} #2 over {world.url}:" in text and "needs several rounds" in text


def test_failed_requests_are_counted_by_status(world: World, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('"abc"\n"' + "x" * 500 + '"\n"def"\n')
    result = run(
        *("bench", "serve", "--base-url", world.url, "--dataset-path", tmp_path / "p.jsonl"),
        *("--custom-output-len", 4),
    )
    assert result.returncode == 1
    assert "1 failed: HTTP 400:" in result.stdout
    *progress, error = result.stderr.splitlines()
    assert error.startswith("error: 1 of 3 requests failed, such as: HTTP 400:")
    assert progress[-1].endswith("Requests 3 of 3: 1 failed")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--base-url", UNREACHABLE), f"{UNREACHABLE} cannot be reached"),
        (("--base-url", "localhost:8000"), "--base-url localhost:8000 is not a URL"),
        (("--request-rate", 0), "--request-rate must be greater than 0"),
        (("--request-rate", "nan"), "--request-rate must be greater than 0"),
        (("--burstiness", -1), "--burstiness"),
        (("--goodput", "ttft"), "--goodput takes NAME:MILLISECONDS"),
        (("--goodput", "itl:3"), "itl:3"),
        (("--goodput", "ttft:fast"), "--goodput ttft must be a number"),
        (("tpot:30",), "tpot:30 is not an option"),
        (("--temperature", -1), "--temperature"),
        (("--backend", "tgi"), "--backend must be one of"),
        (("--endpoint", "/v1/models"), "--endpoint must end in"),
        (("--dataset-name", "sharegpt"), "--dataset-name must be one of"),
        (("--dataset-name", "custom"), "--dataset-path"),
        (("--dataset-name", "random", "--dataset-path", "x.jsonl"), "--dataset-path"),
        (("--dataset-path", "nowhere.jsonl"), "nowhere.jsonl: cannot be read"),
        (("--extra-body", "{"), "--extra-body is not valid JSON"),
        (("--extra-body", "3"), "--extra-body must be a JSON object"),
        (("--extra-body", "{}", "--extra-body", "{}"), "--extra-body is given 2 times"),
        (("--chart", "out.txt"), "--chart must end in"),
        (("--save-result", "no/such/folder/x.json"), "--save-result"),
        (("--num-threads", 2), "--num-threads is for the engine that --in-process makes"),
        (("--spec-method", "ngram"), "--spec-method is for the engine"),
        (("--in-process", "--base-url", UNREACHABLE), "--in-process asks no server"),
        (("--base-url", "URL", "--model", "other"), "the first request failed: HTTP 404"),
    ],
)
def test_bad_options_are_named(world: World, arguments: tuple[Any, ...], message: str) -> None:
    words = [world.url if word == "URL" else word for word in arguments]
    result = run("bench", "serve", *words)
    assert result.returncode == 1, result.stdout
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert message in result.stderr


def test_limits_may_be_written_in_several_ways() -> None:
    expected = {"ttft": 500.0, "tpot": 30.0}
    assert bench_settings.parse_goodput(["ttft:500", "tpot:30"]) == expected
    assert bench_settings.parse_goodput(["ttft:500 tpot:30"]) == expected
    assert bench_settings.parse_goodput([]) == {}


def test_a_server_that_is_asked_twice_shares_no_prefixes() -> None:
    body = {"top_k": 1}
    assert bench_settings.with_salts(["a", "b", "a"], [body, body, {"cache_salt": "x"}]) == [
        {"cache_salt": "bench-0", **body},
        body,
        {"cache_salt": "x"},
    ]
    assert bench_settings.server_names(["a", "a"], [body, body]) == ["a", "a #2"]
    assert bench_settings.server_names(["a", "a"], [{}, body]) == ["a", 'a {"top_k": 1}']


def test_an_engine_is_measured_in_process(model: Path, prompts: Path) -> None:
    fields = bench(
        *("serve", "--in-process", "--model", model, "--dataset-path", prompts),
        *("--custom-output-len", 12, "--ignore-eos", "--max-concurrency", 1),
        *("--dtype", "float32", "-sc", json.dumps(SPECULATIVE)),
    )
    (server,) = fields["servers"]
    assert server["base_url"] == str(model) and server["completed"] == 3
    assert server["total_output_tokens"] == 36 and server["spec_decode_num_drafts"] > 0


def test_latency_of_a_batch(model: Path, tmp_path: Path) -> None:
    options = ("--model", model, "--input-len", 10, "--output-len", 6, "--batch-size", 3)
    fields = bench(
        "latency",
        *(*options, "--num-iters-warmup", 1, "--num-iters", 4),
        *("--output-json", tmp_path / "latency.json"),
    )
    assert json.loads((tmp_path / "latency.json").read_text()) == fields
    assert len(fields["latencies"]) == 4
    assert fields["avg_latency"] == pytest.approx(sum(fields["latencies"]) / 4)
    assert fields["output_tokens_per_second"] == pytest.approx(18 / fields["avg_latency"])
    assert set(fields["percentiles"]) == {"10", "25", "50", "75", "90", "99"}
    text = run("bench", "latency", *options, "--num-iters-warmup", 0, "--num-iters", 2).stdout
    assert "ms a batch" in text and "p99" in text


@pytest.fixture(scope="module")
def long_model(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_text_model.add_text(
        checkpoint("llama_linear"), tmp_path_factory.mktemp("bench-model") / "llama"
    )


def test_throughput_of_random_prompts_and_files(long_model: Path, prompts: Path) -> None:
    fields = bench(
        *("throughput", "--model", long_model, "--num-prompts", 5),
        *("--input-len", 10, "--output-len", 6, "--spec-method", "ngram"),
    )
    assert fields["num_requests"] == 5 and fields["total_num_tokens"] == 5 * 16
    assert fields["tokens_per_second"] == pytest.approx(80 / fields["elapsed_time"])
    options = ("--dataset-path", prompts, "--output-len", 6, "--chat", "--spec-method", "ngram")
    fields = bench("throughput", "--model", long_model, *options)
    templates = 3 * len("user:;assistant:")
    assert fields["total_num_tokens"] == 9 + 6 + 8 + templates + 3 * 6
    text = run("bench", "throughput", "--model", long_model, *options).stdout
    assert "requests/s" in text and "writing" in text


def test_bad_options_of_an_engine_are_named(model: Path) -> None:
    for arguments, message in (
        (("latency", "--input-len", 500), "max_model_len"),
        (("latency", "--temperature", -1), "--temperature"),
        (("throughput", "--dataset-name", "custom"), "--dataset-path"),
        (("throughput", "--output-json", "no/such/folder/x"), "--output-json"),
    ):
        result = run("bench", *arguments, "--model", model)
        assert result.returncode == 1 and message in result.stderr, result.stderr


def test_help_lists_the_commands() -> None:
    text = run("bench", "--help").stdout
    assert all(name in text for name in ("serve", "latency", "throughput"))
    assert "--goodput" in run("bench", "serve", "--help").stdout
