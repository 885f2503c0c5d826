"""bench/e2e/compare: turns, noise, prompts, workers, absent peers, and one short run."""

import dataclasses
import io
import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from compare import report
from compare.peers import PEERS
from compare.processes import (
    group_cpu_seconds,
    group_members,
    group_peak_bytes,
    machine_cpu_seconds,
)
from compare.programs import last_line, run_program
from compare.protocol import Generation, Setup, artifact_name
from compare.results import Result, make_rows
from compare.runner import rotated
from compare.worker import serve
from compare.workloads import PromptsError, long_prompt, pick, read_prompts
from gguf import GGMLQuantizationType as Type

from conftest import ROOT
from fake_contestants import CHAT, CODE, OURS, PEER, play
from make_gguf import LLAMA_METADATA, llama_tensors, write_gguf


def order_of(result: Result) -> list[tuple[int, str, str]]:
    steps = [(s.repeat, s.workload, s.contestant.peer) for s in result.samples]
    return [step for step, _ in itertools.groupby(steps)]


def test_rotation_starts_where_it_is_told() -> None:
    assert [rotated("abc", by) for by in range(4)] == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
        ["a", "b", "c"],
    ]
    assert rotated([], 3) == []


def test_contestants_take_turns_in_an_order_that_rotates() -> None:
    result, log = play([OURS, PEER], [CHAT, CODE], repeats=2)
    assert order_of(result) == [
        (0, "chat", "specdec"),
        (0, "chat", "peer"),
        (0, "code", "specdec"),  # the peer takes one prompt at a time
        (1, "chat", "peer"),
        (1, "chat", "specdec"),
        (1, "code", "specdec"),
    ]
    assert log[:2] == ["loaded specdec", "loaded peer"]
    assert log[-2:] == ["closed peer", "closed specdec"]


def test_one_at_a_time_loads_and_closes_each_in_turn() -> None:
    result, log = play([OURS, PEER], [CHAT, CODE], repeats=2, apart=True)
    assert order_of(result) == [
        (0, "chat", "specdec"),
        (0, "code", "specdec"),
        (0, "chat", "peer"),
        (1, "chat", "peer"),
        (1, "chat", "specdec"),
        (1, "code", "specdec"),
    ]
    held = [entry for entry in log if entry.startswith(("loaded", "closed"))]
    assert held == [
        *("loaded specdec", "closed specdec", "loaded peer", "closed peer"),
        *("loaded peer", "closed peer", "loaded specdec", "closed specdec"),
    ]


def test_a_prompt_at_a_time_after_a_reset_or_all_at_once() -> None:
    _, log = play([OURS], [CHAT, CODE], repeats=1)
    warm_up = ["specdec 1x4", "specdec 2x4"]
    assert [entry for entry in log if "x" in entry] == [
        *(warm_up[0], "specdec 1x10", "specdec 1x10"),
        *(warm_up[1], "specdec 2x10"),
    ]
    assert log.count("reset 1") == 3
    assert log.count("reset 2") == 2


def test_noisy_calls_are_repeated_and_then_dropped() -> None:
    # The first prompt is quiet at the second attempt, the second prompt never is.
    foreign = iter([0.9, 0.0, 0.8, 0.7, 0.6])
    result, _ = play([OURS], [CHAT], repeats=1, foreign=foreign)
    assert [(s.call, s.foreign_cores) for s in result.samples] == [
        *((0, 0.9), (0, 0.0)),
        *((1, 0.8), (1, 0.7), (1, 0.6)),
    ]
    assert make_rows(result) == []  # no figures of a cell with a call that was never quiet
    assert "never quiet: specdec:plain:bf16 in chat, batch 1" in report.render(result)
    result.max_foreign_cores = 0.65
    (row,) = make_rows(result)
    assert (row.num_samples, row.num_noisy) == (1, 3)


def test_a_contestant_that_cannot_be_loaded_is_told_of() -> None:
    for apart in (False, True):
        result, _ = play([PEER, OURS], [CHAT], repeats=2, apart=apart, broken=[PEER])
        assert result.failed == {"peer:plain:bf16": "no such kernel"}
        assert {s.contestant for s in result.samples} == {OURS}
        assert "failed: peer:plain:bf16: no such kernel" in report.render(result)


def test_prompts_of_known_shapes(tmp_path: Path) -> None:
    lines = [
        {"prompt": "a", "workload": "chat"},
        {"turns": ["b", "later"], "category": "coding"},
        {"instruction": "c", "source": "d", "workload": "edit"},
        {"turns": ["left out"], "category": "translation"},
    ]
    (tmp_path / "any.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert read_prompts(tmp_path) == {"chat": ["a"], "code": ["b"], "edit": ["c\n```\nd\n```\n"]}
    (tmp_path / "chat.jsonl").write_text(json.dumps({"text": "?"}))
    with pytest.raises(PromptsError, match=r"chat.jsonl:1"):
        read_prompts(tmp_path)


def test_picked_prompts_are_spread_and_fit() -> None:
    prompts = [[0] * 9, [1], [2], [3], [4]]
    assert pick(prompts, 2, max_tokens=4) == ((1,), (3,))
    assert pick(prompts, 6, max_tokens=4) == ((1,), (2,), (3,), (4,), (1,), (2,))
    with pytest.raises(PromptsError, match="--max-prompt-tokens"):
        pick(prompts, 1, max_tokens=0)
    assert long_prompt([[1, 2], [3]], 5) == (1, 2, 3, 1, 2)


def test_the_repository_has_prompts_for_every_workload() -> None:
    texts = read_prompts(ROOT / "bench/e2e/prompts")
    assert all(len(set(prompts)) >= 8 for prompts in texts.values())


def test_a_converted_checkpoint_is_not_taken_for_that_of_other_weights(tmp_path: Path) -> None:
    names = set()
    for weights in (b"a", b"bc"):
        (tmp_path / "model.safetensors").write_bytes(weights)
        assert artifact_name(str(tmp_path), "int8") == artifact_name(str(tmp_path), "int8")
        names |= {artifact_name(str(tmp_path), precision) for precision in ("int8", "int4")}
    assert len(names) == 4


def test_a_program_that_fails_says_why() -> None:
    code = "print('first'); print('no module named so'); print(); raise SystemExit(3)"
    with pytest.raises(RuntimeError, match=r"exit status 3: no module named so$"):
        run_program([sys.executable, "-c", code])
    assert last_line("") == "it printed nothing"


class FakeBackend:
    closed = False

    def load(self, setup: Setup) -> str:
        return setup.model

    def reset(self, batch: int) -> None:
        raise RuntimeError(f"cannot take {batch}")

    def generate(self, prompts: list[list[int]], max_tokens: int) -> Generation:
        return Generation([prompt * max_tokens for prompt in prompts], 0.1, [0.05], 3)

    def close(self) -> None:
        self.closed = True


def test_a_worker_answers_line_by_line_and_survives_errors() -> None:
    setup = {field.name: "x" for field in dataclasses.fields(Setup)}
    requests = [
        {"command": "load", "setup": setup},
        {"command": "reset", "batch": 2},
        {"command": "generate", "prompts": [[1], [2]], "max_tokens": 2},
        {"command": "dance"},
        {"command": "close"},
        {"command": "reset", "batch": 3},
    ]
    backend, replies = FakeBackend(), io.StringIO()
    serve(backend, io.StringIO("\n".join(map(json.dumps, requests))), replies)
    answers = [json.loads(line) for line in replies.getvalue().splitlines()]
    assert answers[0] == {"result": "x"}
    assert answers[1] == {"error": "RuntimeError: cannot take 2"}
    assert Generation(**answers[2]["result"]).token_ids == [[1, 1], [2, 2]]
    assert "dance" in answers[3]["error"]
    assert answers[4:] == [{"result": None}]
    assert backend.closed


BURN = """
import time
held = bytearray(64 << 20)
while time.process_time() < 0.5:
    pass
print(flush=True)
input()
"""


def test_a_process_group_is_told_from_the_rest_of_the_machine() -> None:
    before = machine_cpu_seconds()
    burner = subprocess.Popen(
        [sys.executable, "-c", BURN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert burner.stdout is not None
        burner.stdout.readline()
        assert list(group_members(burner.pid)) == [burner.pid]
        assert 0.45 <= group_cpu_seconds(burner.pid) < 5
        assert machine_cpu_seconds() - before >= 0.4
        assert group_peak_bytes(burner.pid) > 64 << 20
        assert group_peak_bytes(burner.pid, leader=False) == 0
    finally:
        burner.kill()
        burner.communicate()
    assert group_cpu_seconds(burner.pid) == 0


def test_absent_peers_come_with_the_commands_that_install_them(tmp_path: Path) -> None:
    for peer in PEERS:
        home = tmp_path / peer.name
        for isa, commands in ((isa, peer.install_commands(home, isa)) for isa in peer.isas):
            assert commands
            assert all("{" not in command for command in commands), isa
        if peer.name in {"llama.cpp", "vllm", "openvino-genai"}:
            assert peer.find(home) is None
            assert str(home) in "".join(peer.install_commands(home))


def test_a_short_run(
    checkpoint: Callable[[str], Path], head: Callable[[str], Path], tmp_path: Path
) -> None:
    """This engine and transformers, for real, on a tiny checkpoint."""
    file = tmp_path / "result.json"
    command = [sys.executable, "-m", "bench.e2e.compare", "--smoke"]
    command += ["--model", str(checkpoint("llama")), "--draft-model", str(checkpoint("llama"))]
    command += ["--peers-dir", str(tmp_path / "peers"), "--artifacts", str(tmp_path / "artifacts")]
    command += ["--head", str(head("eagle3_modelopt")), "--head", str(head("medusa"))]
    command += ["--json", str(file)]
    run = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0, run.stderr

    tables = [part for part in run.stdout.split("\n\n") if part.startswith("bf16, edit, batch")]
    assert len(tables) == 2
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()[1:]}) == 1

    result = json.loads(file.read_text())
    assert result["failed"] == {}
    assert {"specdec", "transformers"} <= result["versions"].keys()
    assert {"llama.cpp", "vllm"} <= result["absent"].keys()
    for name, commands in result["absent"].items():
        assert f"absent: {name}\n    {commands[0]}" in run.stdout
    ours = [row for row in result["rows"] if row["contestant"]["peer"] == "specdec"]
    decoding = {(row["contestant"]["speculation"], row["batch"]) for row in ours}
    names = ["plain", "ngram", "suffix", "draft", "suffix+draft"]
    names += ["eagle3", "medusa", "suffix+eagle3", "suffix+medusa"]
    assert decoding == set(itertools.product(names, (1, 2)))
    assert all(row["same_as_plain"] for row in ours)
    drafted = [row for row in ours if row["contestant"]["speculation"] == "draft"]
    # A draft model as large as its target cannot pay, and so may be asked for little or nothing.
    assert all(row["tokens_per_step"] >= 1 for row in drafted)
    kinds = {verdict["kind"] for verdict in result["verdicts"]}
    assert {"plain", "best speculation", "first token"} == kinds


def test_a_gguf_file_is_compared_as_it_is(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECDEC_HOME", str(tmp_path / "cache"))
    tensors = llama_tensors()
    matrices = [name for name, values in tensors.items() if values.ndim == 2]
    kinds = dict.fromkeys(matrices, Type.Q8_0)
    metadata = LLAMA_METADATA | {".context_length": 512}
    model = write_gguf(tmp_path / "tiny.gguf", "llama", metadata, tensors, kinds)
    command = [sys.executable, "-m", "bench.e2e.compare", "--smoke", "--precision", "stored"]
    command += ["--peers-dir", str(tmp_path / "peers"), "--artifacts", str(tmp_path / "artifacts")]
    command += ["--json", str(tmp_path / "result.json"), "--model"]
    run = subprocess.run(
        [*command, str(model), "--draft-model", str(model)],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert run.returncode == 0, run.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["weight_bytes"]["stored"] == model.stat().st_size
    rows = {row["contestant"]["speculation"]: row for row in result["rows"] if row["batch"] == 1}
    assert rows.keys() == {"plain", "ngram", "suffix", "draft", "suffix+draft"}
    assert {row["contestant"]["precision"] for row in rows.values()} == {"stored"}
    assert "llama.cpp" in result["absent"]

    directory = str(checkpoint("llama"))
    refused = subprocess.run(
        [*command, directory], check=False, capture_output=True, text=True, cwd=ROOT
    )
    assert refused.returncode == 1
    assert f"--model: --precision stored is about GGUF files; {directory} is none" in refused.stderr
