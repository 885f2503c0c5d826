"""The command line, run as a program in a pipe."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.main
import typer.testing

import tiny_text_model
from command_line import run
from specdec_cli.help import COMMON
from specdec_cli.info import device_text
from specdec_cli.main import app
from specdec_native import Engine, SamplingParams


@pytest.fixture(scope="module")
def model(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_text_model.add_text(
        checkpoint("llama_linear"), tmp_path_factory.mktemp("cli") / "llama"
    )


def succeed(*arguments: object, stdin: str = "") -> str:
    result = run(*arguments, stdin=stdin)
    assert result.returncode == 0, result.stderr
    return result.stdout


def greedy(model: Path, prompt: str, max_tokens: int) -> str:
    with Engine(model) as engine:
        params = SamplingParams(temperature=0, max_tokens=max_tokens)
        return engine.generate(prompt, params)[0].outputs[0].text


def test_generate_prints_the_greedy_answer(model: Path) -> None:
    expected = greedy(model, "abc", 8) + "\n"
    options = ("--model", model, "--max-tokens", 8)
    assert succeed("generate", "abc", *options) == expected
    assert succeed("generate", *options, stdin="abc") == expected


def test_an_empty_answer_of_a_chat_model_comes_with_a_hint(model: Path) -> None:
    options = ("--model", model, "--max-tokens", 4)
    first = greedy(model, "abc", 4)[0]
    for prompts in (["abc"], ["abc", "abc"]):
        assert "--chat" in run("generate", *prompts, *options, "--stop", first).stderr
    assert "--chat" not in run("generate", "abc", *options).stderr
    answer = run("generate", "abc", *options, "--chat")
    quiet = run("generate", "abc", *options, "--chat", "--stop", answer.stdout[0])
    assert quiet.stdout == "\n" and "--chat" not in quiet.stderr


def test_generate_prints_json(model: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "abc"}\n"xyz"\n')
    options = ("--file", tmp_path / "prompts.jsonl", "--model", model, "--max-tokens", 8)
    result = json.loads(succeed("generate", *options, "--json", "--logprobs", 1))
    assert [output["prompt"] for output in result["outputs"]] == ["abc", "xyz"]
    completion = result["outputs"][0]["outputs"][0]
    assert completion["text"] == greedy(model, "abc", 8)
    assert len(completion["logprobs"]) == len(completion["token_ids"])
    assert result["outputs"][0]["finished"] and result["outputs"][0]["metrics"]["arrival_time"] > 0


def test_generate_reads_one_prompt_a_line_and_samples(model: Path) -> None:
    options = ("-f", "-", "-m", model, "--temperature", 1, "--max-tokens", 6, "-n", 2, "--json")
    outputs = [
        json.loads(succeed("generate", *options, "--seed", seed, stdin="abc\n\nxyz\n"))["outputs"]
        for seed in (1, 1, 2)
    ]
    answers = [[[c["token_ids"] for c in o["outputs"]] for o in each] for each in outputs]
    assert [len(answer) for answer in answers[0]] == [2, 2]
    assert answers[0] == answers[1] != answers[2]


def test_chat_remembers_until_it_is_reset(model: Path) -> None:
    lines = "hi\nhi\n/reset\nhi\n/nonsense\n/exit\nnever read\n"
    result = run("chat", "-m", model, "--max-tokens", 6, stdin=lines)
    assert result.returncode == 0, result.stderr
    first = greedy(model, "user:hi;assistant:", 6)
    second = greedy(model, f"user:hi;assistant:{first};user:hi;assistant:", 6)
    assert result.stdout == f"{first}\n{second}\n{first}\n"
    assert "unknown command /nonsense" in result.stderr


def test_demo_answers_and_measures(model: Path) -> None:
    report = json.loads(succeed("demo", "--model", model, "--max-tokens", 4, "--json"))
    assert [answer["kind"] for answer in report["answers"]] == ["chat", "code", "edit"]
    rows = [row for row in report["rows"] if row["method"] == "plain"]
    assert [(row["workload"], row["batch"]) for row in rows] == [
        ("chat", 1),
        ("code", 1),
        ("edit", 1),
        ("mixed", 8),
    ]
    for row in rows:
        assert 0 < row["num_tokens"] <= 4 * row["batch"]
        assert row["tokens_per_s"] == pytest.approx(row["num_tokens"] / row["seconds"])
        assert row["first_token_ms"] > 0 and row["same_answers"] and row["speedup"] == 1


def test_demo_prints_a_table_in_a_plain_pipe(model: Path) -> None:
    text = succeed("demo", "--model", model, "--max-tokens", 4)
    assert "LlamaForCausalLM" in text and "tokens/s" in text and "mixed" in text
    assert "\x1b" not in text


def test_info_describes_the_build() -> None:
    info = json.loads(succeed("info", "--json"))
    assert any(device["name"] == "cpu" for device in info["devices"])
    assert info["cpu_isas"] and "LlamaForCausalLM" in info["architectures"]
    assert info["version"] in succeed("info")
    gpus = [device for device in info["devices"] if device["name"] != "cpu"]
    assert bool(info["gpu_problem"]) == all(gpu["unusable"] for gpu in gpus)


def test_info_describes_a_checkpoint(model: Path, tmp_path: Path) -> None:
    facts = json.loads(succeed("info", model, "--json"))
    config = json.loads((model / "config.json").read_text())
    assert facts["method"] == "draft_model" and facts["layers"] == config["num_hidden_layers"]
    assert facts["architectures"] == config["architectures"] and "reads" not in facts
    head = {
        **config,
        "num_hidden_layers": 1,
        "draft_vocab_size": 99,
        "architectures": ["LlamaForCausalLMEagle3"],
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 4]},
    }
    (tmp_path / "config.json").write_text(json.dumps(head))
    facts = json.loads(succeed("info", tmp_path, "--json"))
    assert (facts["method"], facts["layers"], facts["draft_vocab_size"]) == ("eagle3", 1, 99)
    assert facts["reads"] == "inputs of the target's layers 2, 5"
    assert "eagle3" in succeed("info", tmp_path)
    medusa = {"model_type": "medusa", "num_heads": 4, "num_hidden_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(medusa))
    facts = json.loads(succeed("info", tmp_path, "--json"))
    assert (facts["method"], facts["layers"], facts["longest_draft"]) == ("medusa", 2, 4)
    for missing in (tmp_path / "missing", "model.gguf"):
        failed = run("info", missing)
        assert failed.returncode == 1 and "there is no such file" in failed.stderr


def test_info_describes_a_gpu() -> None:
    gpu = {
        "name": "cuda:1",
        "model": "NVIDIA H200",
        "memory_bytes": 139 << 30,
        "num_threads": 132,
        "isa": "9.0",
        "unusable": "",
    }
    text = "NVIDIA H200, 139.0 GiB, 132 multiprocessors, compute capability 9.0"
    assert device_text(gpu) == text
    assert device_text(gpu | {"unusable": "it is old"}) == f"{text}; not usable: it is old"


def test_device_options_reach_the_engine(model: Path) -> None:
    options = ("generate", "abc", "--model", model, "--max-tokens", 4)
    extra = ("--gpu-memory-utilization", 0.5, "--enforce-eager", "--no-deterministic")
    assert succeed(*options, "--device", "cpu", *extra) == succeed(*options, "--device", "cpu")
    for bad, message in (
        (("--device", "cuda:99", "--dtype", "half"), "cuda:99 is not available"),
        (("--gpu-memory-utilization", 2), "gpu_memory_utilization"),
    ):
        result = run(*options, *bad)
        assert result.returncode == 1 and message in result.stderr


def test_fetch_lists_the_known_models() -> None:
    names = [entry["name"] for entry in json.loads(succeed("fetch", "--json"))]
    assert "SmolLM2-135M-Instruct" in names
    assert all(name in succeed("fetch") for name in names)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("generate", "x", "--model", "./nowhere"), 1, "nowhere"),
        (("fetch", "no-such-model", "--source", "registry"), 1, "no-such-model"),
        (("generate", "x", "--max-tokens", "0"), 2, "max-tokens"),
        (("generate", "x", "--no-such-option"), 2, "no-such-option"),
        (("no-such-command",), 2, "no-such-command"),
    ],
)
def test_errors_are_readable(arguments: tuple[str, ...], code: int, message: str) -> None:
    result = run(*arguments)
    assert result.returncode == code
    assert message in result.stderr and "Traceback" not in result.stderr
    if code == 1:
        assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
        assert result.stdout == ""


def test_a_bad_parameter_is_one_line(model: Path) -> None:
    result = run("generate", "x", "--model", model, "--temperature", 7)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith("error: temperature")


def _commands() -> dict[str, list[list[str]]]:
    """The commands, and the names of each of their options."""
    found = {}
    groups: dict[str, Any] = {"": typer.main.get_command(app)}
    while groups:
        path, group = groups.popitem()
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                groups[f"{path}{name} "] = command
            else:
                options = [p for p in command.params if not getattr(p, "hidden", False)]
                found[path + name] = [
                    [*p.opts, *p.secondary_opts] for p in options if p.param_type_name == "option"
                ]
    return found


COMMANDS = _commands()


def _help(command: str, flag: str, columns: int) -> str:
    shown = typer.testing.CliRunner().invoke(
        app, [*command.split(), flag], env={"COLUMNS": str(columns)}, prog_name="specdec-native"
    )
    assert shown.exit_code == 0, shown.output
    return shown.stdout


@pytest.mark.parametrize("columns", [60, 80, 200])
@pytest.mark.parametrize("command", COMMANDS)
def test_help_cuts_no_name_of_an_option(command: str, columns: int) -> None:
    texts = [_help(command, "--help", columns)]
    if "--help-all" in texts[0]:
        texts.append(_help(command, "--help-all", columns))
    for text in texts:
        assert max(map(len, text.splitlines())) <= columns and "…" not in text
        assert not re.search(r"\w-$", text, re.MULTILINE)  # `--spec-` on a line, `model` below
    for name in [name for names in COMMANDS[command] for name in names]:
        assert re.search(rf"^  (-.*[ ,])?{name}(,|  | [^-\s]|$)", texts[-1], re.MULTILINE), name


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_short(command: str) -> None:
    text = _help(command, "--help", 80)
    assert len(text.splitlines()) < 80
    assert len(re.findall(r"^  -", text, re.MULTILINE)) <= 28


def test_help_shows_what_people_use() -> None:
    assert {"temperature", "device", "spec_model"} <= COMMON
    text = _help("generate", "--help", 80)
    for name in ("model", "max-tokens", "temperature", "device", "quantization", "spec-model"):
        assert f"--{name}" in text
    for name in ("block-size", "min-p", "scheduling-policy"):
        assert f"--{name}" not in text and f"--{name}" in _help("generate", "--help-all", 80)


def test_without_the_cli_packages_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['typer'] = None; import specdec_native.__main__ as m; m.main()"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 1
    assert "pip install 'specdec-native[cli]'" in result.stderr
    assert "Traceback" not in result.stderr
