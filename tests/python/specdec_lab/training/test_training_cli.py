"""`specdec-native train-head`, from a model's name to a report; and what it refuses."""

import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import command_line
import tiny_text_model
import training_runs
from specdec_lab.training import train_head
from specdec_lab.training.errors import TrainingError
from specdec_lab.training.outdir import OutDirectory
from specdec_lab.training.training_options import DataOptions, TrainingOptions
from specdec_lab.training.training_report import number_text
from specdec_native import Engine, SamplingParams
from specdec_native.checkpoints.errors import CheckpointError


@dataclasses.dataclass(frozen=True)
class World:
    """A target, and what one command has made for it."""

    target: Path
    prompts: Path
    out: Path
    shown: str

    @property
    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out / "report.json").read_text())
        return found


@pytest.fixture(scope="module")
def world(toy_target: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("train_head")
    target = training_runs.make_target(toy_target, folder / "target")
    prompts = training_runs.write_prompts(folder / "prompts.jsonl")
    given = {
        **training_runs.TRAINING,
        **training_runs.DATA,
        **training_runs.ENGINE,
        "epochs": 4,
        "head_dtype": "float32",
        "data": prompts,
        "out": folder / "out",
    }
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    result = command_line.run("train-head", target, *flags)
    assert result.returncode == 0, result.stderr
    return World(target, prompts, folder / "out", result.stdout + result.stderr)


def test_what_the_command_leaves_behind(world: World) -> None:
    assert sorted(path.name for path in world.out.iterdir() if path.name[0] != ".") == [
        *("chart.png", "checkpoints", "data", "head", "log.jsonl"),
        *("report.json", "report.md", "run.json"),
    ]
    assert (world.out / "chart.png").read_bytes().startswith(b"\x89PNG")
    report = world.report
    assert report["command"].startswith("specdec-native train-head ")
    assert report["options"]["epochs"] == 4 and report["options"]["max_answer_tokens"] == 24
    assert report["data"]["answer_tokens"] >= 2000
    assert 0.9 < report["data"]["coverage_of_answers"] <= 1
    assert len(report["curve"]) == 3 and report["training"]["seconds"] > 0
    losses = training_runs.losses(world.out)
    assert len(losses) == report["training"]["steps"] and losses[-1] < losses[0]
    text = (world.out / "report.md").read_text()
    for fact in ("| engine |", "| trainer |", report["command"], "| answer tokens |"):
        assert fact in text
    assert "training step" in world.shown and "tokens a step" in world.shown
    assert re.findall(r"stage (\d) of 4: ", world.shown) == ["1", "2", "3", "4"]
    assert report["training"]["learning_rate"] == report["options"]["learning_rate"] == 0.003
    assert "| learning rate | 3e-3 |" in text and "| learning_rate | 3e-3 |" in text


def test_the_engine_accepts_what_the_trainer_foretells(world: World) -> None:
    report = world.report
    foretold, measured = report["acceptance"], report["engine"]
    assert measured["num_answers"] == measured["num_same_answers"] > 5
    assert foretold["proposed"][0] > 100 and foretold["accepted"][0] > 10
    assert measured["tokens_per_step"] == pytest.approx(foretold["tokens_per_step"], rel=0.01)
    for one, other in zip(measured["rates"], foretold["rates"], strict=True):
        assert one == pytest.approx(other, abs=0.01)


def test_the_head_drafts_for_its_target(world: World) -> None:
    config = {"model": str(world.out / "head"), "num_speculative_tokens": 2}
    params = SamplingParams(temperature=0, max_tokens=12)
    with Engine(world.target, dtype="float32", speculative_config=config) as engine:
        drafted = engine.generate(["AB;", "QRS"], params)
    with Engine(world.target, dtype="float32") as engine:
        plain = engine.generate(["AB;", "QRS"], params)
    assert tiny_text_model.texts(drafted) == tiny_text_model.texts(plain)


def test_a_second_head_uses_the_same_data(world: World, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in (world.out / "data").iterdir()}
    report = train_head(
        world.target,
        tmp_path / "other",
        training_runs.options(max_depth=2, loss="lk", draft_vocab_size=40, epochs=0.3),
        training_runs.data(None, world.out / "data", answer_tokens=0),
        layout="speculators",
        engine_options=training_runs.ENGINE,
    )
    assert report is not None and report.data["draft_vocabulary"] == 40
    assert {path: path.read_bytes() for path in (world.out / "data").iterdir()} == before
    config = json.loads((tmp_path / "other/head/config.json").read_text())
    assert config["speculators_model_type"] == "eagle3"
    assert report.engine is not None and len(report.engine.acceptance.accepted) == 2


def test_states_can_be_recomputed(world: World, tmp_path: Path) -> None:
    """Without states on the disk the same examples give the same head."""
    options = training_runs.options(epochs=0.3)
    engine = training_runs.ENGINE
    for name, features in (("kept", "stored"), ("computed", "recomputed")):
        data = training_runs.data(world.prompts, answer_tokens=800, features=features)
        out = tmp_path / name
        train_head(
            world.target, out, options, data, head_dtype="float32", measure=False,
            engine_options=engine,
        )  # fmt: skip
    assert not any("states" in path.name for path in (tmp_path / "computed/data").iterdir())
    one, other = (training_runs.losses(tmp_path / name) for name in ("kept", "computed"))
    assert one == pytest.approx(other, rel=1e-3)  # stored states are rounded


def test_help_names_every_option() -> None:
    result = command_line.run("train-head", "--help-all")
    words = re.findall(r"[-\w]+", result.stdout)
    for options in (TrainingOptions, DataOptions):
        for field in dataclasses.fields(options):
            assert f"--{field.name.replace('_', '-')}" in words
    for panel in ("Data", "Training", "Engine"):
        assert f"\n{panel}:\n" in result.stdout


def test_an_error_is_one_line(tmp_path: Path) -> None:
    result = command_line.run("train-head", tmp_path, "--out", tmp_path / "o", "--loss", "l2")
    assert result.returncode == 1
    assert result.stderr == "error: loss: must be one of ce, kl, lk, l1, got 'l2'\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((3e-5, "3e-5"), (1.5e-3, "1.5e-3"), (-2e-7, "-2e-7"), (0.0, "0"), (1.0, "1")),
        *((0.05, "0.05"), (0.8, "0.8"), (12.3456, "12.346"), (1234.5, "1,234.5")),
    ],
)
def test_numbers_of_reports(value: float, text: str) -> None:
    assert number_text(value) == text


# -- what is refused

Change = Callable[[World, Path], dict[str, Any]]


def _file_as_out(world: World, folder: Path) -> dict[str, Any]:
    (folder / "file").write_text("")
    return {"out": folder / "file"}


def _strange_out(world: World, folder: Path) -> dict[str, Any]:
    (folder / "thesis.txt").write_text("")
    return {"out": folder}


def _other_model(world: World, folder: Path) -> dict[str, Any]:
    other = folder / "other"
    shutil.copytree(world.target, other)
    return {"model": other, "out": world.out}


def _changed_target(world: World, folder: Path) -> dict[str, Any]:
    other = folder / "changed"
    shutil.copytree(world.target, other)
    weights = bytearray((other / "model.safetensors").read_bytes())
    weights[-3] ^= 1
    (other / "model.safetensors").write_bytes(weights)
    return {"model": other}


def _no_template(world: World, folder: Path) -> dict[str, Any]:
    other = folder / "base"
    shutil.copytree(world.target, other)
    (other / "tokenizer_config.json").write_text("{}")
    return {"model": other, "data": DataOptions(answer_tokens=100)}


def _data_file(text: str | None) -> Change:
    def change(world: World, folder: Path) -> dict[str, Any]:
        path = folder / "d.jsonl"
        if text is not None:
            path.write_text(text)
        return {"data": training_runs.data(path)}

    return change


def _options(**changes: Any) -> Change:
    return lambda world, folder: {"options": training_runs.options(**changes)}


def _few(world: World, folder: Path) -> dict[str, Any]:
    return {"data": training_runs.data(world.prompts, answer_tokens=0, conversations=7)}


REFUSED: dict[str, tuple[Change, str]] = {
    "out is a file": (_file_as_out, "file: is a file; give --out a directory"),
    "out holds other things": (_strange_out, "is not empty and holds no training"),
    "another model": (_other_model, "holds a training for the model .*target"),
    "a store of another target": (_changed_target, "the store is of another target"),
    "no chat template": (_no_template, "no chat template .*; give prompts by --data"),
    "no data file": (_data_file(None), "d.jsonl: there is no such file"),
    "an empty data file": (_data_file(""), "d.jsonl: has no conversations"),
    "a bad data file": (_data_file('{"prompt": "x"}\n{'), "d.jsonl: line 2: is not valid JSON"),
    "few examples": (_few, "of 7 examples, at least 20 of which are needed"),
    "nothing held out": (
        _options(held_out=0.0),
        "0 with answers of 3 tokens and more are held out",
    ),
    "draft vocabulary": (
        _options(draft_vocab_size=161),
        "draft_vocab_size: the target has 160 tokens, got 161; give --draft-vocab-size 0",
    ),
    # Before anything is trained, though they are needed at the end.
    "a layout that a method has not": (
        lambda world, folder: {
            "options": training_runs.options(method="medusa"),
            "layout": "speculators",
        },
        "layout: must be one of common for heads of the method medusa, got 'speculators'",
    ),
    "a dtype of heads": (
        lambda world, folder: {"head_dtype": "int8"},
        "head_dtype: must be one of bfloat16, float16, float32, got 'int8'",
    ),
    "an option that a method has not": (
        _options(method="mlp_speculator", num_layers=2),
        "num_layers: heads of the method mlp_speculator have no such choice",
    ),
    "a rank that a method has not": (
        _options(method="dflash", markov_rank=8),
        "markov_rank: heads of the method dflash have no such choice; leave --markov-rank out",
    ),
    "a target whose family has no such layer": (
        _options(method="mtp"),
        "method: 'mtp' is for targets of the model types .*, and this one is llama",
    ),
    "a device": (_options(device="gpu"), "device: must be .*, got 'gpu'"),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_bad_input_is_refused(world: World, tmp_path: Path, name: str) -> None:
    change, message = REFUSED[name]
    folder = tmp_path / "folder"
    folder.mkdir()
    given: dict[str, Any] = {
        "model": world.target,
        "out": tmp_path / "out",
        "options": training_runs.options(epochs=0.1),
        "data": training_runs.data(None, world.out / "data", answer_tokens=0),
        **change(world, folder),
    }
    model, out = given.pop("model"), given.pop("out")
    with pytest.raises(TrainingError, match=message):
        train_head(model, out, **given, measure=False, engine_options=training_runs.ENGINE)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("epochs", "4", "epochs: must be a number, got '4'"),
        ("max_depth", 2.0, "max_depth: must be a whole number, got 2.0"),
        ("train_lm_head", 1, "train_lm_head: must be True or False, got 1"),
        ("seed", True, "seed: must be a whole number, got True"),
        ("device", None, "device: must be text, got None"),
    ],
)
def test_options_of_a_wrong_type(name: str, value: Any, message: str) -> None:
    with pytest.raises(TrainingError, match=re.escape(message)):
        TrainingOptions(**{name: value})
    assert TrainingOptions(epochs=4) == TrainingOptions(epochs=4.0)


def test_answers_of_others_and_fewer_than_the_default(world: World, tmp_path: Path) -> None:
    """A file gives what it gives where no number was asked for; kept answers can be learned."""
    lines = [json.loads(line)["prompt"] for line in world.prompts.read_text().splitlines()[:60]]
    turns = [
        [{"role": "user", "content": text}, {"role": "assistant", "content": text[::-1]}]
        for text in lines
    ]
    file = tmp_path / "talks.jsonl"
    file.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in turns))
    report = train_head(
        world.target,
        tmp_path / "out",
        training_runs.options(epochs=0.1, method="medusa", max_depth=2),
        DataOptions(data=str(file), keep_answers=True),
        measure=False,
        engine_options=training_runs.ENGINE,
    )
    assert report is not None and report.data["examples"] == 60
    assert report.acceptance.num_steps > 0


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere"):
        train_head(tmp_path / "nowhere", tmp_path / "out")


def test_two_trainings_do_not_share_a_directory(world: World) -> None:
    with (world.out / ".lock").open("w") as lock:
        import fcntl

        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(TrainingError, match="another process trains in this directory now"):
            train_head(world.target, world.out, measure=False)


def test_a_directory_is_free_until_something_was_made(tmp_path: Path) -> None:
    out = OutDirectory(tmp_path / "out")
    with out.claimed("misspelt"):
        pass
    with out.claimed("right"):
        out.checkpoints.mkdir()
    with out.claimed("right"):
        pass
    with (
        pytest.raises(TrainingError, match="holds a training for the model right"),
        out.claimed("other"),
    ):
        pass
