"""Quantised checkpoints that are not read, or are broken: typed errors that name what is wrong."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from packed_integers import Tensors
from quantised_checkpoints import Maker, edit_config, edit_tensors
from specdec_native import Engine
from specdec_native.errors import CheckpointError

MODULE = "model.layers.0.self_attn.q_proj"
Edit = Callable[[Tensors], None]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    return Maker(tmp_path_factory.mktemp("quantised"))


def message_of(model: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        Engine(model, max_model_len=64, num_threads=1).close()
    return str(caught.value)


# -- config.json

METHODS = [
    "aqlm", "bitnet", "eetq", "exl2", "exl3", "fp_quant", "higgs", "hqq", "quanto", "quark",
    "quip", "sinq", "spqr", "vptq",
]  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_other_methods(made: Maker, method: str, tmp_path: Path) -> None:
    model = made.copy("gptq", tmp_path / "model")
    edit_config(model, quant_method=method)
    message = message_of(model)
    assert "config.json: quantization_config.quant_method" in message
    assert f"'{method}'" in message
    assert "GGUF" in message  # what to do


def group(**changes: Any) -> dict[str, Any]:
    """config_groups with one group, whose weights have the changes."""
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128} | changes
    return {"config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}


# The format, the change of quantization_config, and the key that an error names.
CONFIGS: dict[str, tuple[str, dict[str, Any], str]] = {
    "gptq marlin": ("gptq", {"checkpoint_format": "marlin"}, "checkpoint_format"),
    "gptq bitblas": ("gptq", {"checkpoint_format": "bitblas"}, "checkpoint_format"),
    "gptq planar": ("gptq", {"checkpoint_format": "gptq_p"}, "checkpoint_format"),
    "gptq 5 bits": ("gptq", {"bits": 5}, "bits"),
    "gptq no group": ("gptq", {"group_size": 0}, "group_size"),
    "gptq negative group": ("gptq", {"group_size": -2}, "group_size"),
    "gptq huge group": ("gptq", {"group_size": 2**40}, "group_size"),
    "gptq group a text": ("gptq", {"group_size": "128"}, "group_size"),
    "gptq pack_dtype": ("gptq", {"pack_dtype": "int64"}, "pack_dtype"),
    "awq gemv": ("awq", {"version": "gemv"}, "version"),
    "awq gemv_fast": ("awq", {"version": "gemv_fast"}, "version"),
    "awq exllama": ("awq", {"version": "exllama"}, "version"),
    "awq marlin": ("awq", {"version": "marlin"}, "version"),
    "awq llm-awq": ("awq", {"backend": "llm-awq"}, "backend"),
    "awq 3 bits": ("awq", {"bits": 3}, "bits"),
    "awq no group": ("awq", {"group_size": 0}, "group_size"),
    "ct transform": ("ct", {"transform_config": {"config_groups": {"u": {}}}}, "transform_config"),
    "ct sparse": ("ct", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config"),
    "ct marlin": ("ct", {"format": "marlin-24"}, "format"),
    "ct 5 bits": ("ct", group(num_bits=5), "num_bits"),
    "ct strategy": ("ct", group(strategy="token"), "strategy"),
    "ct no group": ("ct", group(group_size=0), "group_size"),
    "ct unknown key of a group": ("ct", group(stranger=1), "stranger"),
    "ct groups a list": ("ct", {"config_groups": []}, "config_groups"),
    "ct group a list": ("ct", {"config_groups": {"a": []}}, "config_groups.a"),
    "modelopt": ("modelopt_fp8", {"quant_algo": "W8A8_SQ_PER_CHANNEL"}, "quant_algo"),
    "bitsandbytes": ("nf4", {"bnb_4bit_quant_type": "nf5"}, "bnb_4bit_quant_type"),
    **{
        f"unknown key of {name}": (name, {"stranger": {"a": 1}}, "stranger")
        for name in ("gptq", "awq", "ct", "modelopt_nvfp4", "nf4")
    },
}


@pytest.mark.parametrize("case", CONFIGS)
def test_configs(made: Maker, case: str, tmp_path: Path) -> None:
    name, changes, key = CONFIGS[case]
    model = made.copy(name, tmp_path / "model")
    edit_config(model, **changes)
    message = message_of(model)
    assert "config.json: quantization_config" in message
    assert key in message


@pytest.mark.parametrize(
    ("name", "file", "changes", "key"),
    [
        ("gptq_old", "quantize_config.json", {"bits": 7}, "bits"),
        ("gptq_old", "quantize_config.json", {"stranger": 1}, "stranger"),
        ("gptq_old", "quantize_config.json", {"group_size": 0}, "group_size"),
        (
            "modelopt_fp8_file",
            "hf_quant_config.json",
            {"quantization": {"quant_algo": "INT4_AWQ"}},
            "quant_algo",
        ),
        (
            "modelopt_fp8_file",
            "hf_quant_config.json",
            {"quantization": {"quant_algo": "FP8", "stranger": 1}},
            "stranger",
        ),
    ],
)
def test_files_beside_config_json(
    made: Maker, name: str, file: str, changes: dict[str, Any], key: str, tmp_path: Path
) -> None:
    model = made.copy(name, tmp_path / "model")
    path = model / file
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    message = message_of(model)
    assert file in message
    assert key in message


# -- tensors


def without(suffix: str) -> Edit:
    def change(tensors: Tensors) -> None:
        del tensors[f"{MODULE}.{suffix}"]

    return change


def changed(suffix: str, function: Callable[[torch.Tensor], torch.Tensor]) -> Edit:
    def change(tensors: Tensors) -> None:
        name = f"{MODULE}.{suffix}"
        tensors[name] = function(tensors[name].clone()).contiguous()

    return change


def with_value(suffix: str, value: float) -> Edit:
    """In the middle of the tensor."""

    def put(tensor: torch.Tensor) -> torch.Tensor:
        tensor.view(-1)[tensor.numel() // 2] = value
        return tensor

    return changed(suffix, put)


def with_state(**fields: Any) -> Edit:
    """Fields of what bitsandbytes stores as JSON in a tensor."""

    def put(tensor: torch.Tensor) -> torch.Tensor:
        text = json.dumps(json.loads(bytes(tensor.tolist())) | fields).encode()
        return torch.tensor(list(text), dtype=torch.uint8)

    return changed(STATE, put)


STATE = "weight.quant_state.bitsandbytes__nf4"
NAN = float("nan")
# The format, the change, and the tensor of MODULE that an error names.
TENSORS: dict[str, tuple[str, Edit, str]] = {
    "gptq short codes": ("gptq", changed("qweight", lambda x: x[:-1]), "qweight"),
    "gptq flat codes": ("gptq", changed("qweight", lambda x: x.view(-1)), "qweight"),
    "gptq wide codes": ("gptq", changed("qweight", lambda x: x.long()), "qweight"),
    "gptq no scales": ("gptq", without("scales"), "scales"),
    "gptq no zeros": ("gptq", without("qzeros"), "qzeros"),
    "gptq short zeros": ("gptq", changed("qzeros", lambda x: x[:, :-1]), "qzeros"),
    "gptq no groups": ("gptq", changed("scales", lambda x: x[:0]), "scales"),
    "gptq integer scales": ("gptq", changed("scales", lambda x: x.int()), "scales"),
    "gptq NaN": ("gptq", with_value("scales", NAN), "scales"),
    "gptq infinite": ("gptq", with_value("scales", float("inf")), "scales"),
    "gptq group too high": ("gptq_order", with_value("g_idx", 4), "g_idx"),
    "gptq group too low": ("gptq_order", with_value("g_idx", -1), "g_idx"),
    "gptq short groups": ("gptq_order", changed("g_idx", lambda x: x[:-1]), "g_idx"),
    "gptq bias": ("gptq_order", with_value("bias", 0.5), "bias"),
    "awq short codes": ("awq", changed("qweight", lambda x: x[:-1]), "qweight"),
    "awq narrow codes": ("awq", changed("qweight", lambda x: x[:, :-1]), "qweight"),
    "awq no zeros": ("awq", without("qzeros"), "qzeros"),
    "awq NaN": ("awq", with_value("scales", NAN), "scales"),
    "ct short codes": ("ct", changed("weight_packed", lambda x: x[:, :-1]), "weight_packed"),
    "ct no scale": ("ct", without("weight_scale"), "weight_scale"),
    "ct NaN": ("ct", with_value("weight_scale", NAN), "weight_scale"),
    "ct no zeros": ("ct_float32", without("weight_zero_point"), "weight_zero_point"),
    "ct group too high": ("ct_group_order", with_value("weight_g_idx", 4), "weight_g_idx"),
    "w8a8 long scale": ("w8a8", changed("weight_scale", lambda x: x.repeat(2, 1)), "weight_scale"),
    "w8a8 NaN": ("w8a8", with_value("weight_scale", NAN), "weight_scale"),
    "nvfp4 no scale": ("ct_nvfp4", without("weight_scale"), "weight_scale"),
    "nvfp4 no global": ("ct_nvfp4", without("weight_global_scale"), "weight_global_scale"),
    "nvfp4 global zero": ("ct_nvfp4", with_value("weight_global_scale", 0), "weight_global_scale"),
    "nvfp4 NaN": ("ct_nvfp4", with_value("weight_scale", NAN), "weight_scale"),
    "mxfp4 NaN": ("ct_mxfp4", with_value("weight_scale", 255), "weight_scale"),
    "mxfp8 NaN": ("ct_mxfp8", with_value("weight_scale", 255), "weight_scale"),
    "modelopt no second": ("modelopt_nvfp4", without("weight_scale_2"), "weight"),
    "modelopt NaN": ("modelopt_nvfp4", with_value("weight_scale_2", NAN), "weight_scale_2"),
    "nf4 no absmax": ("nf4", without("weight.absmax"), "weight"),
    "nf4 short absmax": ("nf4", changed("weight.absmax", lambda x: x[:-1]), "weight.absmax"),
    "nf4 NaN": ("nf4", with_value("weight.absmax", NAN), "weight.absmax"),
    "nf4 no map": ("nf4", without("weight.quant_map"), "weight.quant_map"),
    "nf4 short map": ("nf4", changed("weight.quant_map", lambda x: x[:15]), "weight.quant_map"),
    "nf4 map NaN": ("nf4", with_value("weight.quant_map", NAN), "weight.quant_map"),
    "nf4 short codes": ("nf4", changed("weight", lambda x: x[:-1]), "weight"),
    "nested state no JSON": ("nf4_nested", changed(STATE, lambda x: x[:-1]), STATE),
    "nested state empty": ("nf4_nested", changed(STATE, lambda x: x[:0]), STATE),
    "nested no state": ("nf4_nested", without(STATE), STATE),
    "nested offset": ("nf4_nested", with_state(nested_offset="x"), STATE),
    "nested no absmax": (
        "nf4_nested",
        without("weight.nested_absmax"),
        "weight.nested_absmax",
    ),
    "nested short map": (
        "nf4_nested",
        changed("weight.nested_quant_map", lambda x: x[:255]),
        "weight.nested_quant_map",
    ),
    "bnb_8 no scale": ("bnb_8", without("SCB"), "weight"),
    "bnb_8 NaN": ("bnb_8", with_value("SCB", NAN), "SCB"),
    "bnb_8 columns": ("bnb_8", with_value("weight_format", 1), "weight_format"),
}


@pytest.mark.parametrize("case", TENSORS)
def test_tensors(made: Maker, case: str, tmp_path: Path) -> None:
    name, change, suffix = TENSORS[case]
    model = made.copy(name, tmp_path / "model")
    edit_tensors(model, change)
    message = message_of(model)
    assert f"{MODULE}.{suffix}" in message


def test_a_shorter_last_group(made: Maker, tmp_path: Path) -> None:
    """128 inputs in groups of 96 have two scales per output, as in groups of 64."""
    model = made.copy("gptq_v2", tmp_path / "model")
    edit_config(model, group_size=96)
    message = message_of(model)
    assert f"{MODULE}.scales" in message
    assert "group_size" in message
