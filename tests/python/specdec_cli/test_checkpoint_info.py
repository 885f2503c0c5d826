"""`specdec-native info MODEL`: its figures against loaded engines and the shapes of tensors."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rich.console
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file, save_file

from command_line import run
from conftest import HeadMaker
from make_fp8 import KINDS, make_fp8
from make_gguf import LLAMA_METADATA, llama_tensors, write_gguf
from make_wrappers import WRAPPERS, make_wrapper
from quantised_checkpoints import FORMATS, Maker
from specdec_cli.checkpoint_info import checkpoint_facts, checkpoint_table
from specdec_native import Engine, _core
from specdec_native.checkpoints import hub

Checkpoint = Callable[[str], Path]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPECDEC_HOME", "HF_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))


@pytest.fixture(scope="module")
def maker(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    return Maker(tmp_path_factory.mktemp("formats"))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As llama.cpp mixes types: v, down and the embedding in Q6_K."""
    tensors = llama_tensors()
    kinds = {name: Type.Q4_K for name, values in tensors.items() if values.ndim == 2}
    for name in ("blk.0.attn_v", "blk.0.ffn_down", "token_embd"):
        kinds[f"{name}.weight"] = Type.Q6_K
    path = tmp_path_factory.mktemp("mixed") / "mixed.gguf"
    return write_gguf(path, "llama", LLAMA_METADATA, tensors, kinds)


def check_against_engine(name: Path, most_filling: float = 0) -> dict[str, Any]:
    """Figures are the engine's. It fills up rows of matrices to multiples of 16, which adds at most
    that share."""
    facts = checkpoint_facts(str(name))
    with Engine(hub.resolve_model(name), skip_tokenizer_init=True, max_model_len=64) as engine:
        info = engine.model_info()
    assert facts["parameters"] == info.num_parameters
    filled = facts["weight_bytes"] * (1 + most_filling) + 1024  # and tables of codes
    assert facts["weight_bytes"] <= info.weight_bytes <= filled
    config = json.loads((name / "config.json").read_text()) if name.is_dir() else {}
    kinds = config.get("text_config", config).get("layer_types") or []
    num_recurrent = kinds.count("linear_attention")
    per_token = 2 * (info.num_layers - num_recurrent) * info.num_kv_heads * info.head_dim
    element = 4 if info.dtype == "float32" else 2
    assert facts["kv_bytes_per_token"] == per_token * element
    assert facts["dtype"] == info.dtype and facts["family"].startswith(info.architecture)
    assert facts["most_tokens_per_second"] == facts["read_bandwidth"] / facts["step_bytes"]
    return facts


@pytest.mark.parametrize(
    "variant", ["llama_bfloat16", "llama_float16", "llama_sharded", "gemma3", "opt", "gpt_neox"]
)
def test_figures_are_those_of_the_loaded_model(checkpoint: Checkpoint, variant: str) -> None:
    facts = check_against_engine(checkpoint(variant), most_filling=0.01)
    stored = {"llama_bfloat16": "bfloat16", "llama_float16": "float16"}.get(variant, "float32")
    assert facts["format"] == f"safetensors: {stored}"
    matrices = [w for w in facts["weights"] if w["part"] != "norms, biases"]
    assert all(w["exact"] == (variant != "llama_float16") for w in matrices)


def test_8_bit_floats_and_what_they_become(checkpoint: Checkpoint, tmp_path: Path) -> None:
    path, _ = make_fp8(checkpoint("llama_bfloat16"), KINDS["partly"], tmp_path)
    facts = check_against_engine(path)
    # Seven matrices in each of three layers; the k of each and the up of one are not quantised.
    assert facts["format"] == "safetensors: 17 x fp8, a scale a matrix; 6 x bfloat16"
    fp8 = [w for w in facts["weights"] if w["stored"].startswith("fp8")]
    assert {(w["held"], w["exact"]) for w in fp8} == {("bfloat16", False)}


@pytest.mark.parametrize("name", FORMATS)
def test_quantised_checkpoints_are_held_as_the_engine_holds_them(maker: Maker, name: str) -> None:
    # Rows that are no multiple of the packed blocks', and two routers' rows.
    is_uneven = FORMATS[name].source in ("uneven", "mixtral", "qwen3_moe", "gpt_oss")
    facts = check_against_engine(maker(name).quantised, most_filling=0.06 if is_uneven else 0)
    codes = [w for w in facts["weights"] if w["stored"] != "float32"]
    assert codes and all(w["exact"] == (w["note"] == "") for w in codes)


@pytest.mark.parametrize("name", WRAPPERS)
def test_the_text_part_of_a_wrapper(tmp_path: Path, name: str) -> None:
    path = make_wrapper(name, tmp_path / name)
    # The gates of a Gated DeltaNet have fewer outputs than a tile.
    facts = check_against_engine(path, most_filling=0.03 if name == "qwen3_5" else 0.0)
    named = json.loads((path / "config.json").read_text())["architectures"][0]
    assert facts["family"].endswith(f", the text part of {named}")
    unread = [w for w in facts["weights"] if w["part"] == "left out"]
    assert unread and not any(w["held"] for w in unread)


@pytest.mark.parametrize("target", ["qwen3_5", "glm4_moe"])
def test_a_layer_that_drafts_is_told_apart_from_the_model(
    checkpoint: Checkpoint, head: HeadMaker, target: str
) -> None:
    with_layer, without = head("mtp", target), checkpoint(target)
    facts, plain = checkpoint_facts(str(with_layer)), checkpoint_facts(str(without))
    layer = [w for w in facts["weights"] if w["part"] == "MTP layer"]
    tensors = load_file(with_layer / "model.safetensors")
    added = tensors.keys() - load_file(without / "model.safetensors").keys()
    assert layer and sum(w["parameters"] for w in layer) == sum(tensors[n].numel() for n in added)
    for key in ("parameters", "weight_bytes", "step_bytes", "format"):
        assert facts[key] == plain[key]
    assert [w for w in facts["weights"] if w not in layer] == plain["weights"]
    assert facts["drafters"] == 'with "method": "auto": suffix, ngram, mtp'
    assert plain["drafters"] == 'with "method": "auto": suffix, ngram'
    shown = io.StringIO()
    rich.console.Console(file=shown, width=200).print(checkpoint_table(facts))
    assert 'read where "method": "mtp" drafts with it' in shown.getvalue()


def test_a_step_reads_the_chosen_experts_and_no_embedding(checkpoint: Checkpoint) -> None:
    path = checkpoint("mixtral")  # 2 of 4 experts
    facts = check_against_engine(path, most_filling=0.01)
    expected = 0.0
    for name, tensor in load_file(path / "model.safetensors").items():
        share = 0.5 if "experts" in name else 0.0 if "embed" in name else 1.0
        expected += share * 4 * math.prod(tensor.shape)
    assert facts["step_bytes"] == expected


def test_a_gguf_file_is_described_and_not_converted(mixed: Path, tmp_path: Path) -> None:
    facts = checkpoint_facts(str(mixed))
    assert not (tmp_path / "home").exists()
    assert facts["format"] == "GGUF: 5 x Q4_K; 3 x Q6_K"
    # q, k and v are one matrix in memory: 8 bits, since v is, and minimums, since q and k have any.
    held = {(w["part"], w["stored"], w["held"]): w["count"] for w in facts["weights"]}
    assert held == {
        ("attention", "Q4_K", "int8_grouped_min"): 2,
        ("attention", "Q6_K", "int8_grouped_min"): 1,
        ("attention", "Q4_K", "int4_grouped_min"): 1,
        ("MLP", "Q4_K", "int4_grouped_min"): 2,
        ("MLP", "Q6_K", "int8_grouped16"): 1,
        ("embedding", "Q6_K", "int8_grouped16"): 1,
        ("norms, biases", "F32", "float32"): 3,
    }
    anew = [w["part"] for w in facts["weights"] if w["note"].startswith("rounded anew")]
    assert anew == ["attention"]  # a scale for every 16 inputs became one for 32
    size = sum(w["stored_bytes"] for w in facts["weights"])
    blocks = {"Q4_K": 144, "Q6_K": 210}  # bytes of 256 weights
    quantised = [w for w in facts["weights"] if w["stored"] in blocks]
    assert size == 3 * 256 * 4 + sum(
        w["parameters"] // 256 * blocks[w["stored"]] for w in quantised
    )
    assert {k: v for k, v in check_against_engine(mixed).items() if k in ("format", "weights")} == {
        k: facts[k] for k in ("format", "weights")
    }


def refused(path: Path) -> tuple[dict[str, Any], str]:
    """The facts and the error of a checkpoint that is refused, for people and as JSON."""
    plain, as_json = run("info", path), run("info", path, "--json")
    for result in (plain, as_json):
        assert result.returncode == 1 and "Traceback" not in result.stderr
    facts = json.loads(as_json.stdout)
    assert plain.stderr == as_json.stderr
    assert plain.stderr.splitlines()[-1] == f"error: {' '.join(facts['refused'].split())}"
    assert plain.stdout and facts["refused"] not in plain.stdout
    return facts, facts["refused"]


def test_the_reason_of_a_refusal_is_the_loaders(checkpoint: Checkpoint, tmp_path: Path) -> None:
    source = checkpoint("llama")
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "exl3", "bits": 4.0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = load_file(source / "model.safetensors")
    name = "model.layers.0.mlp.down_proj"
    tensors[f"{name}.trellis"] = torch.zeros(4, 4, 64, dtype=torch.int16)
    del tensors[f"{name}.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    facts, reason = refused(tmp_path)
    with pytest.raises(_core.CheckpointError) as error:
        Engine(tmp_path)
    assert str(error.value) == reason and "exl3" in reason
    assert "4 x I16" in facts["format"] and "weight_bytes" not in facts
    del config["quantization_config"]  # as where another tool has rewritten the file
    (tmp_path / "config.json").write_text(json.dumps(config))
    _, reason = refused(tmp_path)
    assert "I16" in reason and "GGUF" in reason


def test_a_gguf_file_is_refused_in_the_readers_words(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "mamba.gguf", "mamba", LLAMA_METADATA, llama_tensors())
    _, reason = refused(path)
    with pytest.raises(_core.CheckpointError) as error:
        hub.resolve_model(path)
    assert str(error.value) == reason


def test_weights_that_are_not_here(checkpoint: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(hub.ModelNotFoundError, match="specdec-native fetch"):
        checkpoint_facts("SmolLM2-135M-Instruct")
    for missing in (str(tmp_path / "missing"), "model.gguf"):
        with pytest.raises(hub.ModelNotFoundError, match="no such file"):
            checkpoint_facts(missing)
    config = (checkpoint("llama") / "config.json").read_text()
    (tmp_path / "config.json").write_text(config)
    facts = checkpoint_facts(str(tmp_path))
    assert facts["family"] == "LlamaForCausalLM" and "not on this machine" in facts["format"]
