"""Several processes train one head as one alone does."""

from pathlib import Path

import pytest
import torch

import training_runs
from specdec_lab.training.distributed import Ranks, local_device


def test_parts_are_all_there_is() -> None:
    items = list(range(11))
    parts = [Ranks(rank, 4).part(items) for rank in range(4)]
    assert sorted(item for part in parts for item in part) == items
    assert Ranks(3, 4).part([5]) == []


def test_a_process_alone_needs_no_others() -> None:
    alone = Ranks()
    values = torch.tensor([1.5, 2.0])
    assert torch.equal(alone.sum(values), values.double())
    assert alone.from_first("float32") == "float32"
    weight = torch.nn.Parameter(torch.ones(3))
    alone.sum_gradients([weight])
    assert weight.grad is None
    alone.wait()


def test_devices_by_name() -> None:
    assert local_device("cpu") == torch.device("cpu")
    if not torch.cuda.is_available():
        assert local_device("auto") == torch.device("cpu")


def test_nothing_keeps_the_group_of_processes() -> None:
    """Else its threads live until the interpreter ends, and now and then abort the process."""
    script = str(Path(__file__).with_name("joined_process.py"))
    output = training_runs.finish(
        training_runs.start(["torch.distributed.run", "--nproc-per-node=2", "--standalone", script])
    )
    assert output.count("the group of 2 is gone") == 2, output


@pytest.fixture(scope="module")
def alone(toy_target: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return training_runs.train_alone(toy_target, tmp_path_factory.mktemp("distributed"))


@pytest.mark.parametrize("micro_batch_tokens", [0, 128])
def test_two_processes_have_the_losses_of_one(
    alone: dict[str, Path], tmp_path: Path, micro_batch_tokens: int
) -> None:
    launcher = ["torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    command = training_runs.arguments(
        alone["target"],
        tmp_path / "out",
        alone["store"],
        micro_batch_tokens=micro_batch_tokens,
    )
    training_runs.finish(training_runs.start([*launcher, "-m", "specdec_native", *command]))
    one, two = training_runs.losses(alone["out"]), training_runs.losses(tmp_path / "out")
    assert len(one) == len(two) > 5
    # The first loss is that of equal weights. Later ones go apart as the sums of gradients do,
    # which Adam makes larger where gradients are small.
    assert two[0] == pytest.approx(one[0], rel=1e-5)
    assert two == pytest.approx(one, rel=5e-4)
    assert one != two  # or it was not two
    assert (tmp_path / "out/head/model.safetensors").exists()
