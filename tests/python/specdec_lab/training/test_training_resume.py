"""A training that is killed goes on as if nothing had happened, and nothing is lost to bad luck."""

import errno
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import training_runs
from specdec_lab.training.checkpoint import Checkpoints, Saved, TrainingLog, read_log
from specdec_lab.training.errors import TrainingError
from specdec_lab.training.training_options import TrainingOptions
from specdec_lab.training.training_run import train_head

OPTIONS = TrainingOptions(max_depth=5)


def saved(value: float) -> Saved:
    return Saved(OPTIONS, {"draft_ids": torch.arange(4)}, {"weights": torch.full((9,), value)}, 7)


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.load() is None
    for step in (3, 20, 100, 1000):
        checkpoints.save(saved(step), step)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["checkpoint-00000100.pt", "checkpoint-00001000.pt"]
    loaded = checkpoints.load()
    assert loaded is not None and loaded.options == OPTIONS and loaded.log_bytes == 7
    assert torch.equal(loaded.trainer["weights"], torch.full((9,), 1000.0))
    assert torch.equal(loaded.begun["draft_ids"], torch.arange(4))


def test_of_a_damaged_checkpoint_the_one_before_is_taken(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(saved(1), 1)
    checkpoints.save(saved(2), 2)
    latest = tmp_path / "checkpoint-00000002.pt"
    latest.write_bytes(latest.read_bytes()[:-100])
    loaded = checkpoints.load()
    assert loaded is not None and float(loaded.trainer["weights"][0]) == 1
    (tmp_path / "checkpoint-00000001.pt").write_bytes(b"")
    with pytest.raises(TrainingError, match="no checkpoint can be read; delete"):
        checkpoints.load()


@pytest.mark.parametrize(
    "fault",
    [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("failed writing file")],
    ids=["os", "torch"],
)
def test_a_full_disk_leaves_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(saved(1), 1)

    def write_half(contents: Any, path: Path) -> None:
        path.write_bytes(b"half")
        raise fault

    monkeypatch.setattr(torch, "save", write_half)
    with pytest.raises(TrainingError, match=r"00002\.pt: cannot be written \(the disk is full\)"):
        checkpoints.save(saved(2), 2)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-00000001.pt"]
    loaded = checkpoints.load()
    assert loaded is not None and float(loaded.trainer["weights"][0]) == 1


def test_a_log_is_cut_back_to_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = TrainingLog(path, 0)
    log.write({"step": 1})
    num_bytes = log.num_bytes()
    log.write({"step": 2})
    log.close()
    with path.open("a") as file:
        file.write('{"step": ')  # a line that a kill has cut
    assert read_log(path) == [{"step": 1}, {"step": 2}]
    log = TrainingLog(path, num_bytes)
    log.write({"step": 5})
    log.close()
    assert read_log(path) == [{"step": 1}, {"step": 5}]


# -- whole trainings


@pytest.fixture(scope="module")
def world(toy_target: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return training_runs.train_alone(toy_target, tmp_path_factory.mktemp("resume"))


def wait_for_steps(process: Any, log: Path, count: int) -> None:
    """Until the log has that many steps on the disk, or the training has ended."""
    while process.poll() is None:
        if log.exists() and len(read_log(log)) >= count:
            return
        time.sleep(0.002)


def test_a_training_that_is_killed_gives_the_same_head(
    world: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = ["specdec_native", *training_runs.arguments(world["target"], out, world["store"])]
    generator = random.Random(time.time_ns())
    for earliest in (1, 4):
        process = training_runs.start(command)
        wait_for_steps(process, out / "log.jsonl", earliest)
        time.sleep(generator.uniform(0, 0.2))
        process.kill()
        process.communicate()
    output = training_runs.finish(training_runs.start(command))
    assert "going on from step" in output
    assert training_runs.digest(out) == training_runs.digest(world["out"])
    assert training_runs.losses(out) == training_runs.losses(world["out"])


def test_a_training_that_has_ended_is_not_repeated(world: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(world["out"], out)
    shutil.rmtree(out / "head")
    before = {path: path.stat().st_mtime_ns for path in (out / "checkpoints").iterdir()}
    train_head(world["target"], out, training_runs.options(), measure=False)
    assert training_runs.digest(out) == training_runs.digest(world["out"])
    assert {path: path.stat().st_mtime_ns for path in (out / "checkpoints").iterdir()} == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": "kl"}, "loss: .*began with 'ce'.*'kl'; give --loss ce"),
        ({"seed": 3}, "seed: .*give --seed 0"),
        ({"train_lm_head": True}, "train_lm_head: .*give --no-train-lm-head"),
    ],
)
def test_other_options_are_refused(
    world: dict[str, Path], changes: dict[str, Any], message: str
) -> None:
    before = training_runs.digest(world["out"])
    with pytest.raises(TrainingError, match=message):
        train_head(world["target"], world["out"], training_runs.options(**changes), measure=False)
    assert training_runs.digest(world["out"]) == before


def test_a_store_that_has_grown_changes_nothing(world: dict[str, Path], tmp_path: Path) -> None:
    """The examples that a training began with are those it ends with."""
    store, out = tmp_path / "store", tmp_path / "out"
    shutil.copytree(world["store"], store)
    half = training_runs.options(epochs=0.2)
    data = training_runs.data(None, store, answer_tokens=0)
    train_head(world["target"], out, half, data, measure=False)
    first = training_runs.digest(out)
    prompts = world["out"].parent / "prompts.jsonl"
    more = training_runs.data(prompts, store, answer_tokens=3000)
    other = tmp_path / "other"
    engine = training_runs.ENGINE
    report = train_head(world["target"], other, half, more, measure=False, engine_options=engine)
    assert report is not None and report.data["answer_tokens"] >= 3000
    shutil.rmtree(out / "head")
    train_head(world["target"], out, half, data, measure=False)
    assert training_runs.digest(out) == first
    assert training_runs.digest(other) != first
