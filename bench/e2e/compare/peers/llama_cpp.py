"""llama.cpp: its server, spoken to over HTTP, one slot a prompt."""

from __future__ import annotations

import concurrent.futures
import subprocess
import time
from pathlib import Path
from typing import Any

from ..http_server import HttpServer
from ..programs import run_program
from ..protocol import STORED, Backend, Generation, Setup, artifact_name
from .base import DRAFT_TOKENS, Peer

_MAX_BATCH = 1024
_START_SECONDS = 120.0
# It has hung with 32 requests; then it is left out, and the others go on.
_ANSWER_SECONDS = 300
_FILE_TYPES = {"bf16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}
_SERVER = "build-{isa}/bin/llama-server"
_QUANTIZE = "build-{isa}/bin/llama-quantize"
_CONVERTER_PYTHON = "venv/bin/python"
_CMAKE_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=ON "
    "-DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF"
)
# Its kernels are chosen when it is built. Without GGML_NATIVE it has AVX2, FMA, F16C and BMI2.
_AVX512 = "-DGGML_NATIVE=OFF -DGGML_AVX512=ON"
_AVX512_BF16 = f"{_AVX512} -DGGML_AVX512_VNNI=ON -DGGML_AVX512_BF16=ON"
_BUILD_OPTIONS = {
    "auto": "-DGGML_NATIVE=ON",
    "avx2": "-DGGML_NATIVE=OFF",
    "avx_vnni": "-DGGML_NATIVE=OFF -DGGML_AVX_VNNI=ON",
    "avx512": _AVX512,
    "avx512_bf16": _AVX512_BF16,
    "amx": f"{_AVX512_BF16} -DGGML_AMX_TILE=ON -DGGML_AMX_INT8=ON -DGGML_AMX_BF16=ON",
}
# g++ 12 takes the intrinsic that configures AMX tiles to read 8 bytes and drops the others.
_MEND_TILES = (
    'sed -i \'s/_tile_loadconfig(&tc);/asm volatile("ldtilecfg %0" :: "m"(tc) : "memory");/\' '
    "{home}/ggml/src/ggml-cpu/amx/mmq.cpp"
)

PEER = Peer(
    name="llama.cpp",
    module="llama_cpp",
    program=_SERVER,
    in_worker=False,
    speculations={
        "plain": _MAX_BATCH,
        "ngram-simple": _MAX_BATCH,
        "ngram-mod": _MAX_BATCH,
        "draft": _MAX_BATCH,
        "draft-int4": _MAX_BATCH,  # of a target that is not stored so
    },
    precisions=(*_FILE_TYPES, STORED),
    install=(
        "pip download --no-deps --no-binary llama-cpp-python -d {home}.sdist "
        "llama-cpp-python==0.3.36",
        "mkdir -p {home} && tar xzf {home}.sdist/llama_cpp_python-0.3.36.tar.gz -C {home} "
        "--strip-components=3 llama_cpp_python-0.3.36/vendor/llama.cpp",
        _MEND_TILES,
        f"cmake -S {{home}} -B {{home}}/build-{{isa}} {_CMAKE_OPTIONS} {{options}}",
        "cmake --build {home}/build-{isa} -j --target llama-server llama-quantize",
        "python3 -m venv {home}/venv",  # of its converter
        "{home}/venv/bin/pip install torch==2.13.0 transformers==5.23.0 sentencepiece",
    ),
    isas={isa: {} for isa in _BUILD_OPTIONS},
    build_options=_BUILD_OPTIONS,
)


class _LlamaCpp:
    def __init__(self) -> None:
        self._command: list[str] = []
        self._max_model_len = 0
        self._remembers = False  # whether earlier answers are drafted from
        self._speculates = False
        self._server: HttpServer | None = None
        self._log = Path()
        self._num_slots = 0

    def load(self, setup: Setup) -> str:
        home = Path(setup.home)
        model = _gguf(setup, setup.model, setup.precision)
        threads = str(setup.num_threads)
        server = home / _SERVER.format(isa=setup.isa)
        self._log = Path(setup.artifacts) / "llama-server.log"
        self._command = [str(server), "-m", str(model), "-t", threads, "-tb", threads]
        self._command += ["--no-webui", "--cache-ram", "0"]
        self._max_model_len = setup.max_model_len
        self._speculates = setup.speculation != "plain"
        self._remembers = setup.speculation == "ngram-mod"
        if setup.speculation.startswith("draft"):
            is_int4 = setup.speculation == "draft-int4" and setup.precision != STORED
            draft = _gguf(setup, setup.draft_model, "int4" if is_int4 else setup.precision)
            self._command += ["--spec-draft-model", str(draft), "--spec-type", "draft-simple"]
            self._command += ["--spec-draft-n-max", str(DRAFT_TOKENS)]
        elif self._speculates:
            self._command += ["--spec-type", setup.speculation]
        self._start(setup.max_batch)
        return _version(server)

    def reset(self, batch: int) -> None:
        if self._remembers or batch != self._num_slots:
            self.close()
            self._start(batch)

    def generate(self, prompts: list[list[int]], max_tokens: int) -> Generation:
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            start = time.perf_counter()
            answers = list(pool.map(lambda prompt: self._complete(prompt, max_tokens), prompts))
            seconds = time.perf_counter() - start
        timings = [answer["timings"] for answer in answers]
        return Generation(
            token_ids=[answer["tokens"] for answer in answers],
            seconds=seconds,
            first_token_seconds=[timing["prompt_ms"] / 1e3 for timing in timings],
            num_accepted=(
                sum(t.get("draft_n_accepted", 0) for t in timings) if self._speculates else None
            ),
        )

    def _complete(self, prompt: list[int], max_tokens: int) -> Any:
        assert self._server is not None
        body = {
            "prompt": prompt,
            "n_predict": max_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "samplers": ["top_k"],
            "top_k": 1,
            "cache_prompt": False,
            "return_tokens": True,
        }
        return self._server.post("/completion", body, _ANSWER_SECONDS)

    def _start(self, num_slots: int) -> None:
        sizes = ["-np", str(num_slots), "-c", str(num_slots * self._max_model_len)]
        self._server = HttpServer(
            "llama-server", [*self._command, *sizes], self._log, start_seconds=_START_SECONDS
        )
        self._num_slots = num_slots

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None


def _gguf(setup: Setup, model: str, precision: str) -> Path:
    """The checkpoint as a GGUF file, written on first use unless it is one."""
    if precision == STORED:
        return Path(model)
    home, folder = Path(setup.home), Path(setup.artifacts)
    file = folder / f"{artifact_name(model, precision)}.gguf"
    if file.is_file():
        return file
    part = file.with_suffix(".part")
    if precision == "bf16":
        script = str(home / "convert_hf_to_gguf.py")
        python = str(home / _CONVERTER_PYTHON)
        command = [python, script, model, "--outtype", "bf16", "--outfile", str(part)]
    else:
        source = _gguf(setup, model, "bf16")
        quantize = str(home / _QUANTIZE.format(isa=setup.isa))
        command = [quantize, str(source), str(part), _FILE_TYPES[precision]]
    run_program(command)
    part.rename(file)
    return file


def _version(server: Path) -> str:
    result = subprocess.run([str(server), "--version"], check=True, capture_output=True, text=True)
    lines = (result.stdout + result.stderr).splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if "version:" in line), "")


def make_backend() -> Backend:
    """The backend that the worker serves."""
    return _LlamaCpp()
