"""The servers that are compared: how each is started, and when it is ready."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from ..http_server import HttpServer
from ..peers import vllm as vllm_peer

START_SECONDS = 600.0
MODEL = "m"
_MAX_MODEL_LEN = 2048


@dataclasses.dataclass
class Command:
    """How a server is started, the port aside."""

    arguments: list[str]
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


def specdec(model: Path, slots: int, num_threads: int) -> Command:
    return Command(
        [
            *(sys.executable, "-m", "specdec_native", "serve", str(model)),
            *("--served-model-name", MODEL),
            *("--max-model-len", str(_MAX_MODEL_LEN), "--max-num-seqs", str(slots)),
            *("--num-threads", str(num_threads), "--no-enable-prefix-caching"),
            *("--disable-log-stats", "--disable-uvicorn-access-log"),
        ]
    )


def vllm(model: Path, slots: int, num_threads: int) -> Command:
    home = _home("vllm")
    return Command(
        [
            *(str(home / "bin/vllm"), "serve", str(model), "--served-model-name", MODEL),
            *("--max-model-len", str(_MAX_MODEL_LEN)),
            *("--max-num-seqs", str(slots), "--dtype", "bfloat16", "--no-enable-prefix-caching"),
            *("--disable-log-stats", "--disable-uvicorn-access-log"),
        ],
        vllm_peer.PEER.environment(home, num_threads),
    )


def llama_cpp(model: Path, slots: int, num_threads: int) -> Command:
    home = _home("llama.cpp")
    file = model.with_suffix(".gguf")
    if not file.is_file():
        # The converter recognises tokenizers by how they encode a test text; this one is truncated.
        script = (
            f"import sys; sys.path.insert(0, {str(home)!r}); import convert_hf_to_gguf as c; "
            "from conversion.base import TextModel; "
            "TextModel.get_vocab_base_pre = lambda *_: 'smollm'; c.main()"
        )
        arguments = [str(model), "--outtype", "bf16", "--outfile", str(file)]
        subprocess.run([str(home / "venv/bin/python"), "-c", script, *arguments], check=True)
    threads = str(num_threads)
    return Command(
        [
            *(str(home / "build-auto/bin/llama-server"), "-m", str(file)),
            *("-t", threads, "-tb", threads, "-np", str(slots)),
            *("-c", str(slots * _MAX_MODEL_LEN), "--no-webui", "--cache-ram", "0"),
        ]
    )


SERVERS: dict[str, Callable[[Path, int, int], Command]] = {
    "specdec_native": specdec,
    "vllm": vllm,
    "llama.cpp": llama_cpp,
}


def _home(name: str) -> Path:
    base = Path(os.environ.get("SPECDEC_HOME", Path.home() / ".cache/specdec_native"))
    return base / "peers" / name


def start(name: str, model: Path, slots: int, num_threads: int, log: Path) -> HttpServer:
    """A running server. Raises RuntimeError where it does not start."""
    command = SERVERS[name](model, slots, num_threads)
    return HttpServer(
        name,
        command.arguments,
        log,
        start_seconds=START_SECONDS,
        environment=command.environment,
    )
