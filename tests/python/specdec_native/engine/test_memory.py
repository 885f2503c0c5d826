"""An engine's resources: one copy of the weights, the configured cache, and no core while idle."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 32768,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
MB = 1 << 20

# The engine's additional peak memory, and its CPU time while idle, in a process that imported it.
CHILD = """
import json, os, sys, time
from specdec_native import Engine, SamplingParams, TokensPrompt

def status(field):
    line = next(line for line in open("/proc/self/status") if line.startswith(field))
    return int(line.split()[1]) << 10

def cpu_ticks():
    total = 0
    for task in os.listdir("/proc/self/task"):
        fields = open(f"/proc/self/task/{task}/stat").read().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total

def library():
    # Bytes of the core's code in memory, which grow as it is used.
    total, is_ours = 0, False
    for line in open("/proc/self/smaps"):
        words = line.split()
        if not words[0].endswith(":"):
            is_ours = "/_core." in line
        elif is_ours and words[0] == "Rss:":
            total += 1024 * int(words[1])
    return total


before = status("VmRSS") - library()
engine = Engine(sys.argv[1], skip_tokenizer_init=True, num_threads=4, **json.loads(sys.argv[2]))
loaded = status("VmHWM") - library()
prompt = TokensPrompt(prompt_token_ids=list(range(600)))
engine.generate([prompt], SamplingParams(max_tokens=8, ignore_eos=True))
ran = status("VmHWM") - library()
ticks = cpu_ticks()
time.sleep(0.5)
info = engine.model_info()
print(json.dumps({
    "loaded": loaded - before,
    "ran": ran - before,
    "wanted": info.weight_bytes + info.kv_cache_bytes,
    "weights": info.weight_bytes,
    "idle_cpu_seconds": (cpu_ticks() - ticks) / os.sysconf("SC_CLK_TCK"),
    "modules": sorted({name.partition(".")[0] for name in sys.modules}),
}))
"""


def tensor_shapes() -> dict[str, list[int]]:
    hidden, inner = 1024, 4096
    shapes = {"model.embed_tokens.weight": [32768, hidden], "model.norm.weight": [hidden]}
    for layer in range(8):
        prefix = f"model.layers.{layer}."
        for name in "qkvo":
            shapes[f"{prefix}self_attn.{name}_proj.weight"] = [hidden, hidden]
        for name in ("gate", "up"):
            shapes[f"{prefix}mlp.{name}_proj.weight"] = [inner, hidden]
        shapes[f"{prefix}mlp.down_proj.weight"] = [hidden, inner]
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{prefix}{name}.weight"] = [hidden]
    return shapes


@pytest.fixture(scope="module")
def large_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A third of a gigabyte of bfloat16 numbers near 0.01."""
    directory = tmp_path_factory.mktemp("large")
    (directory / "config.json").write_text(json.dumps(CONFIG))
    header, end = {}, 0
    for name, shape in tensor_shapes().items():
        begin, end = end, end + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    random = np.random.default_rng(0).integers(0, 0x100, 1 << 20, dtype=np.uint16)
    block = (random | np.uint16(0x3C00)).tobytes()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for begin in range(0, end, len(block)):
            file.write(block[: end - begin])
    return directory


@pytest.fixture(scope="module", params=["auto", "int8"])
def measured(large_checkpoint: Path, request: pytest.FixtureRequest) -> dict[str, Any]:
    options = {"kv_cache_memory_bytes": 64 * MB, "quantization": request.param}
    command = [sys.executable, "-c", CHILD, str(large_checkpoint), json.dumps(options)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    result: dict[str, Any] = json.loads(run.stdout)
    return result


def test_loading_keeps_one_copy_of_the_weights(measured: dict[str, Any]) -> None:
    assert measured["weights"] > 150 * MB
    assert measured["loaded"] <= 1.15 * measured["weights"]  # nothing is in the cache yet


def test_running_needs_little_more(measured: dict[str, Any]) -> None:
    assert measured["ran"] <= 1.15 * measured["wanted"]


def test_an_idle_engine_uses_no_cpu_time(measured: dict[str, Any]) -> None:
    assert measured["idle_cpu_seconds"] <= 0.05


def test_a_plain_checkpoint_needs_neither_torch_nor_numpy(measured: dict[str, Any]) -> None:
    assert not {"torch", "numpy", "transformers"} & set(measured["modules"])
