"""OpenVINO GenAI: its continuous batching pipeline, which its LLMPipeline runs on too."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from ..programs import run_program
from ..protocol import Backend, Generation, Setup, artifact_name
from .base import AUTO, DRAFT_TOKENS, ONEDNN_ISAS, Peer, pip_install

_MAX_BATCH = 1024
_LOOKUP_TOKENS = 8
_LOOKUP_NGRAM = 3
_BLOCK_SIZE = 32
_EXPORTS = {
    "bf16": ("--weight-format", "fp16"),  # stored so, computed in bfloat16
    "int8": ("--weight-format", "int8"),
    "int4": ("--weight-format", "int4", "--sym", "--group-size", "64", "--ratio", "1.0"),
}
_BF16_ISAS = (AUTO, "avx512_bf16", "amx")

PEER = Peer(
    name="openvino-genai",
    module="openvino",
    package="openvino_genai",
    speculations={
        "plain": _MAX_BATCH,
        "prompt-lookup": _MAX_BATCH,
        "draft": _MAX_BATCH,
        "draft-int4": _MAX_BATCH,
    },
    precisions=tuple(_EXPORTS),
    install=(
        *pip_install(
            "torch==2.13.0 openvino-genai openvino openvino-tokenizers "
            "'optimum-intel[openvino]' nncf"
        ),
        "{home}/bin/pip uninstall -y torchvision",
    ),
    # Its attention, which is not oneDNN's, goes by the machine alone.
    isas={AUTO: {}} | {isa: {"ONEDNN_MAX_CPU_ISA": name} for isa, name in ONEDNN_ISAS.items()},
)


class _OpenVino:
    def __init__(self) -> None:
        self._pipeline: Any = None
        self._config: dict[str, Any] = {}
        self._speculates = False

    def load(self, setup: Setup) -> str:
        import openvino_genai

        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        scheduler.max_num_seqs = setup.max_batch
        blocks = -(-(setup.max_model_len + _LOOKUP_TOKENS) // _BLOCK_SIZE)
        scheduler.num_kv_blocks = setup.max_batch * (blocks + 1)
        device: dict[str, Any] = {
            "INFERENCE_NUM_THREADS": setup.num_threads,
            # It asks the processor, not oneDNN, whether it has bfloat16 and VNNI.
            "INFERENCE_PRECISION_HINT": "bf16" if setup.isa in _BF16_ISAS else "f32",
            **({"DYNAMIC_QUANTIZATION_GROUP_SIZE": 0} if setup.isa == "avx2" else {}),
        }
        properties = dict(device)
        self._speculates = setup.speculation != "plain"
        if setup.speculation == "prompt-lookup":
            properties["prompt_lookup"] = True
            self._config = {
                "num_assistant_tokens": _LOOKUP_TOKENS,
                "max_ngram_size": _LOOKUP_NGRAM,
            }
        elif self._speculates:
            precision = "int4" if setup.speculation == "draft-int4" else setup.precision
            draft = _exported(setup, setup.draft_model, precision)
            properties["draft_model"] = openvino_genai.draft_model(str(draft), "CPU", **device)
            self._config = {"num_assistant_tokens": DRAFT_TOKENS}
        model = _exported(setup, setup.model, setup.precision)
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            str(model), scheduler, "CPU", properties
        )
        return str(openvino_genai.get_version())

    def reset(self, batch: int) -> None:
        del batch  # nothing outlives a call

    def generate(self, prompts: list[list[int]], max_tokens: int) -> Generation:
        import numpy
        import openvino
        import openvino_genai

        config = openvino_genai.GenerationConfig(
            max_new_tokens=max_tokens, ignore_eos=True, do_sample=False, **self._config
        )
        tensors = [openvino.Tensor(numpy.array([prompt], numpy.int64)) for prompt in prompts]
        start = time.perf_counter()
        results = self._pipeline.generate(tensors, [config] * len(tensors))
        seconds = time.perf_counter() - start
        return Generation(
            token_ids=[list(result.m_generation_ids[0]) for result in results],
            seconds=seconds,
            first_token_seconds=[r.perf_metrics.get_ttft().mean / 1e3 for r in results],
            num_accepted=self._num_accepted(results, max_tokens),
        )

    def _num_accepted(self, results: list[Any], max_tokens: int) -> int | None:
        if not self._speculates:
            return None
        metrics = results[0].extended_perf_metrics  # of all prompts together
        if metrics is not None:
            return int(metrics.get_num_accepted_tokens())
        if len(results) > 1:
            return None
        num_steps = len(results[0].perf_metrics.raw_metrics.m_batch_sizes)
        return max_tokens - num_steps

    def close(self) -> None:
        self._pipeline = None


def _exported(setup: Setup, model: str, precision: str) -> Path:
    """The checkpoint in OpenVINO's format, written on first use."""
    folder = Path(setup.artifacts) / artifact_name(model, precision)
    if folder.is_dir():
        return folder
    part = folder.with_name(folder.name + ".part")
    command = [str(Path(sys.executable).with_name("optimum-cli")), "export", "openvino"]
    command += [
        "--model",
        model,
        "--task",
        "text-generation-with-past",
        *_EXPORTS[precision],
        str(part),
    ]
    run_program(command)
    part.rename(folder)
    return folder


def make_backend() -> Backend:
    """The backend that the worker serves."""
    return _OpenVino()
