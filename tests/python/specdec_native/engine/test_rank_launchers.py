"""Ranks that torchrun starts: their answers are those of one device."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rank_models
from free_port import free_port
from rank_models import CONFIG, answers_of, write

# Only rank 0 comes to the second line.
SCRIPT = """
import sys
from pathlib import Path
from rank_models import answers_of
answers = answers_of(
    Path(sys.argv[1]),
    quantization="none",
    distributed_executor_backend="external_launcher",
    tensor_parallel_size=int(sys.argv[2]),
)
print(repr(answers), flush=True)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("launched") / "target", CONFIG)


@pytest.fixture(scope="module")
def script(model: Path) -> Path:
    path = model.parent / "script.py"
    path.write_text(SCRIPT)
    return path


def launch(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    folder = str(Path(rank_models.__file__).parent)
    path = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment},
    )


def torchrun(*arguments: object) -> subprocess.CompletedProcess[str]:
    runner = ["torch.distributed.run", "--standalone", "--nproc-per-node", 2]
    # The port after torchrun's own, a random one, may be taken by whatever else runs.
    port = str(free_port())
    return launch(sys.executable, "-m", *runner, *arguments, SPECDEC_MASTER_PORT=port)


def test_answers_are_those_of_one_device(model: Path, script: Path) -> None:
    result = torchrun(script, model, 2)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == repr(answers_of(model, quantization="none"))


RANK_SCRIPT = """
import sys
import torch.distributed
from specdec_native import LLM
llm = LLM(
    sys.argv[1],
    load_format="dummy",
    skip_tokenizer_init=True,
    distributed_executor_backend="external_launcher",
    tensor_parallel_size=2,
)
print(torch.distributed.get_rank(), torch.distributed.get_world_size(), llm.get_world_size())
"""


def test_scripts_ask_torch_for_their_rank(model: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(RANK_SCRIPT)
    result = torchrun(script, model)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["0", "2", "2"]


def test_a_launcher_that_is_missing_or_has_another_size_is_an_error(
    model: Path, script: Path
) -> None:
    alone = launch(sys.executable, script, model, 2)
    assert alone.returncode == 1 and "start the program with torchrun" in alone.stderr
    too_few = launch(sys.executable, script, model, 4, RANK="0", WORLD_SIZE="2")
    assert "4 x pipeline_parallel_size 1 are 4 ranks, but the launcher started 2" in too_few.stderr
