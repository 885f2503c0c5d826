"""Checkpoints in 8-bit floats, as other tools write them, with what they stand for beside them."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

LARGEST = 448.0


def _group(strategy: str, **settings: Any) -> dict[str, Any]:
    weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": strategy, **settings}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }


@dataclass(frozen=True)
class Kind:
    """block: rows and inputs that share a scale, 0 for all of them."""

    config: dict[str, Any]
    block: tuple[int, int]
    scale_name: str = "weight_scale"
    scale_dtype: torch.dtype = torch.float32
    scalar: bool = False  # one scale, of no dimensions
    skipped: tuple[str, ...] = field(default_factory=tuple)
    vocabulary: bool = False  # embedding and head are quantised, too
    input_scale: bool = False


KINDS = {
    "blocks": Kind(
        {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [32, 32],
        },
        (32, 32),
        "weight_scale_inv",
    ),
    "large_blocks": Kind(
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
        (128, 128),
        "weight_scale_inv",
        scale_dtype=torch.bfloat16,
    ),
    "static": Kind(
        {"quant_method": "fp8", "activation_scheme": "static"},
        (0, 0),
        scalar=True,
        input_scale=True,
    ),
    "fbgemm": Kind(
        {"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["model.layers.0", "lm_head"]},
        (1, 0),
        skipped=("layers.0.",),
    ),
    "channels": Kind(_group("channel"), (1, 0), scale_dtype=torch.bfloat16),
    "tensors": Kind(_group("tensor"), (0, 0), scale_dtype=torch.bfloat16, input_scale=True),
    "compressed_blocks": Kind(_group("block", block_structure=[64, 32]), (64, 32)),
    "vocabulary": Kind(_group("block", block_structure=[64, 32]), (64, 32), vocabulary=True),
    "partly": Kind(
        {"quant_method": "fp8", "activation_scheme": "dynamic"},
        (0, 0),
        skipped=("k_proj", "layers.1.mlp.up_proj"),
    ),
}


def _blocks(
    shape: tuple[int, ...], block: tuple[int, int]
) -> Iterator[tuple[int, int, slice, slice]]:
    """Row and column of each block, and what it covers."""
    rows, cols = block[0] or shape[0], block[1] or shape[1]
    for i, row in enumerate(range(0, shape[0], rows)):
        for j, col in enumerate(range(0, shape[1], cols)):
            yield i, j, slice(row, row + rows), slice(col, col + cols)


def _quantise(weight: torch.Tensor, kind: Kind) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes, scales, and what they stand for in float32."""
    codes = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
    cells = list(_blocks(tuple(weight.shape), kind.block))
    scales = torch.empty(cells[-1][0] + 1, cells[-1][1] + 1, dtype=torch.float32)
    values = torch.empty(weight.shape)
    for i, j, rows, cols in cells:
        part = weight[rows, cols].float()
        scales[i, j] = (part.abs().max() / LARGEST).to(kind.scale_dtype).float()
        codes[rows, cols] = (part / scales[i, j]).clamp(-LARGEST, LARGEST).to(codes.dtype)
        values[rows, cols] = codes[rows, cols].float() * scales[i, j]
    return codes, scales.to(kind.scale_dtype), values


def make_fp8(source: Path, kind: Kind, directory: Path) -> tuple[Path, Path]:
    """The model in `source` with its layers' matrices in 8-bit floats, and the same numbers in
    float32."""
    paths = (directory / "fp8", directory / "float32")
    tensors = load_file(source / "model.safetensors")
    stored: dict[str, torch.Tensor] = {}
    plain: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        stored[name] = plain[name] = tensor
        is_wanted = kind.vocabulary or "layers." in name
        is_matrix = tensor.dim() == 2 and "gate.weight" not in name
        if not (is_wanted and is_matrix) or any(part in name for part in kind.skipped):
            continue
        codes, scales, values = _quantise(tensor, kind)
        base = name.removesuffix("weight")
        stored[name] = codes
        stored[base + kind.scale_name] = scales.reshape(()) if kind.scalar else scales
        if kind.input_scale:
            stored[base + "input_scale"] = torch.tensor(0.5)
        plain[name] = values
    for path, contents in zip(paths, (stored, plain), strict=True):
        path.mkdir(parents=True)
        save_file(contents, path / "model.safetensors", metadata={"format": "pt"})
        shutil.copy(source / "config.json", path)
    config = json.loads((source / "config.json").read_text())
    (paths[0] / "config.json").write_text(json.dumps(config | {"quantization_config": kind.config}))
    return paths
