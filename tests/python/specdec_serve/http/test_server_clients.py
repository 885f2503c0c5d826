"""Tools that nobody here wrote, against a server: those of tests/clients that are installed."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from server_process import serve

SCRIPTS = Path(__file__).parents[3] / "clients"
# What each needs on the PATH, or as a package; one of them is enough.
COMMANDS = {
    "guidellm_client": ["guidellm"],
    "aiperf_client": ["aiperf"],
    "vllm_bench_client": ["vllm"],
    "schemathesis_client": ["schemathesis"],
    "flood_client": ["wrk", "hey", "autocannon"],
}
PACKAGES = {
    "litellm_client": "litellm",
    "langchain_client": "langchain_openai",
}


@pytest.fixture(scope="module")
def url(model: Path) -> Iterator[str]:
    with serve(model, "--served-model-name", "tiny") as server:
        yield server.url


def run(script: str, url: str, tokenizer: Path) -> None:
    file = SCRIPTS / f"{script}.py"
    number = file.read_text().partition("\n\n")[0].count("TOKENIZER_DIR")
    arguments = [url, "tiny", *[str(tokenizer)] * number]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, str(file), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}{done.stderr[-4000:]}"


@pytest.mark.fuzz
@pytest.mark.parametrize("script", [*COMMANDS, *PACKAGES])
def test_a_tool_that_is_installed(url: str, model: Path, script: str) -> None:
    commands = COMMANDS.get(script)
    if commands is not None and not any(map(shutil.which, commands)):
        pytest.skip(f"{' or '.join(commands)} is not installed")
    if commands is None and importlib.util.find_spec(PACKAGES[script]) is None:
        pytest.skip(f"{PACKAGES[script]} is not installed")
    run(script, url, model)
