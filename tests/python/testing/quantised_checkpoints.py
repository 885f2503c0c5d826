"""Quantised checkpoints as other tools write them, with what they stand for beside them."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

import packed_floats as floats
from make_checkpoints import Variant, build
from packed_floats import Bitsandbytes4, compressed_floats, modelopt_config, modelopt_file
from packed_integers import Awq, CompressedIntegers, Gptq, Packer, Tensors, bitsandbytes_int8

# Rows of 128 inputs and more: the usual groups fit.
SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "head_dim": 32,
}
SOURCES = {
    "llama": Variant("Llama", SIZES),
    "qwen3": Variant("Qwen3", SIZES | {"tie_word_embeddings": True}),
    # Numbers of rows are multiples of 8 and of no more; rows are of 128, 160 and 224 inputs.
    "uneven": Variant(
        "Llama",
        SIZES
        | {"head_dim": 40, "num_key_value_heads": 1, "intermediate_size": 224, "vocab_size": 168},
    ),
    # All experts are in use: rounding cannot change which ones are.
    "mixtral": Variant("Mixtral", SIZES | {"num_local_experts": 2, "num_experts_per_tok": 2}),
    "qwen3_moe": Variant(
        "Qwen3Moe",
        SIZES | {"num_experts": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 128},
    ),
    "gpt_oss": Variant(
        "GptOss", SIZES | {"num_local_experts": 2, "num_experts_per_tok": 2, "sliding_window": 24}
    ),
}


def make_source(name: str, directory: Path) -> Path:
    """The model that formats are made of, in float32."""
    build(SOURCES[name]).save_pretrained(directory)
    return directory


@dataclass(frozen=True)
class Format:
    """config: the quantization_config of config.json, None for files of its own."""

    config: dict[str, Any] | None
    pack: Packer
    source: str = "llama"
    head: bool = False  # quantised, too
    skipped: tuple[str, ...] = ()  # parts of names of modules
    files: dict[str, dict[str, Any]] = field(default_factory=dict)


def _gptq(
    head: bool = False,
    source: str = "llama",
    skipped: tuple[str, ...] = (),
    changes: dict[str, Any] | None = None,
    **settings: Any,
) -> Format:
    packer = Gptq(**settings)
    config = packer.config(**(changes or {}), **({"lm_head": True} if head else {}))
    return Format(config, packer, source, head, skipped)


def _integers(
    source: str = "llama",
    head: bool = False,
    form: str = "",
    changes: dict[str, Any] | None = None,
    **settings: Any,
) -> Format:
    packer = CompressedIntegers(**settings)
    config = packer.config(form, **(changes or {}), **({"ignore": []} if head else {}))
    return Format(config, packer, source, head)


def auto_round(packing: str, group: int, **changes: Any) -> dict[str, Any]:
    """As auto-round writes it; the tensors are those of GPTQ or AWQ."""
    fields: dict[str, Any] = {
        "quant_method": "auto-round",
        "packing_format": packing,
        "bits": 4,
        "group_size": group,
        "sym": True,
        "data_type": "int",
        "autoround_version": "0.9.0",
        "iters": 200,
        "low_gpu_mem_usage": True,
        "enable_quanted_input": True,
        "extra_config": {"model.layers.0.mlp.gate": {"bits": 16, "data_type": "fp"}},
    }
    return fields | changes


def _old_gptq(name: str, packer: Gptq) -> Format:
    """Of the first years: keys of gptq in a file of their own, and fewer of them."""
    kept = ("bits", "group_size", "damp_percent", "desc_act", "sym", "true_sequential")
    settings = {key: packer.config()[key] for key in kept}
    return Format(None, packer, files={name: settings | {"model_name_or_path": None}})


def _bitsandbytes(**settings: Any) -> Format:
    packer = Bitsandbytes4(**settings)
    return Format(packer.config(), packer)


DYNAMIC_ACTIVATIONS = {
    "num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True,
    "group_size": None, "actorder": None, "block_structure": None, "observer": None,
    "observer_kwargs": {},
}  # fmt: skip
_ROW: dict[str, Any] = {"bits": 8, "group": -1, "packed": False}
_EIGHT_BITS = {
    "_load_in_4bit": False, "_load_in_8bit": True, "load_in_4bit": False, "load_in_8bit": True,
}  # fmt: skip

FORMATS: dict[str, Format] = {
    "gptq": _gptq(),
    "gptq_32": _gptq(group=32, symmetric=False),
    "gptq_row": _gptq(group=-1),
    "gptq_v2": _gptq(group=64, symmetric=False, first=False, has_groups=False),
    "gptq_2": _gptq(bits=2, group=64),
    "gptq_3": _gptq(bits=3),
    "gptq_3_asym": _gptq(bits=3, group=32, symmetric=False, scale_dtype=torch.bfloat16),
    "gptq_8": _gptq(bits=8, group=64, head=True),
    "gptq_8_asym": _gptq(bits=8, group=32, symmetric=False, first=False),
    # Zeros decide, not what the flag says.
    "gptq_false_sym": _gptq(group=64, symmetric=False, changes={"sym": True}),
    "gptq_order": _gptq(act_order=True, symmetric=False, bias=True, head=True, group=32),
    "gptq_order_8": _gptq(act_order=True, bits=8, group=64),
    "gptq_orders": _gptq(act_order=True, alike=False, group=64),
    "gptq_mixtral_order": _gptq(source="mixtral", act_order=True, group=64),
    "gptq_dynamic": _gptq(
        skipped=("layers.1.mlp.down_proj", "layers.0.self_attn.q_proj"),
        changes={
            "dynamic": {"-:.*layers\\.1\\.mlp\\.down_proj": {}, "-:.*layers\\.0\\..*q_proj": {}}
        },
    ),
    "gptq_mixtral": _gptq(source="mixtral", group=64),
    "gptq_old": _old_gptq("quantize_config.json", Gptq()),
    "auto_round": Format(auto_round("auto_round:auto_gptq", 64), Gptq(group=64, has_groups=False)),
    "auto_round_asym": Format(
        auto_round("auto_round:auto_gptq", 32, sym=False),
        Gptq(group=32, symmetric=False, has_groups=False),
    ),
    "auto_round_awq": Format(auto_round("auto_round:auto_awq", 64, sym=False), Awq(64)),
    "awq": Format(Awq().config(), Awq()),
    "awq_uneven": Format(Awq(32).config(), Awq(32), "uneven"),
    "awq_tied": Format(
        Awq(32).config(modules_to_not_convert=["o_proj", "layers.0.self_attn"]),
        Awq(32),
        "qwen3",
        skipped=("o_proj", "layers.0.self_attn"),
    ),
    "awq_moe": Format(Awq(64).config(modules_to_not_convert=["mlp.gate"]), Awq(64), "qwen3_moe"),
    "ct": _integers(),
    "ct_float16": _integers(
        group=32, scale_dtype=torch.float16, changes={"ignore": ["re:.*lm_head"]}
    ),
    "ct_float32": _integers(group=64, scale_dtype=torch.float32, symmetric=False),
    "ct_asym": _integers(symmetric=False, source="qwen3"),
    "ct_row": _integers(group=-1, head=True),
    "ct_8": _integers(bits=8, group=64),
    "ct_8_row": _integers(bits=8, group=-1, symmetric=False, scale_dtype=torch.float32),
    "ct_weight_order": _integers(actorder="weight", group=32),
    "ct_group_order": _integers(actorder="group", group=32),
    "ct_group_order_asym": _integers(actorder="group", symmetric=False),
    "ct_moe": _integers(source="mixtral", group=32),
    "w8a8": _integers(changes={"inputs": DYNAMIC_ACTIVATIONS}, **_ROW),
    "w8a8_float32": _integers(
        changes={"inputs": DYNAMIC_ACTIVATIONS}, scale_dtype=torch.float32, **_ROW
    ),
    "w8a16_asym": _integers(symmetric=False, scale_dtype=torch.float32, **_ROW),
    "naive": _integers(form="naive-quantized", **_ROW),
    "naive_fp8": Format(compressed_floats("naive-quantized", 8, None), floats.naive_fp8),
    "ct_nvfp4": Format(compressed_floats("nvfp4-pack-quantized", 4, 16), floats.compressed_nvfp4),
    "ct_mxfp4": Format(compressed_floats("mxfp4-pack-quantized", 4, 32), floats.mxfp4),
    "mxfp4_stack": Format(
        {
            "quant_method": "mxfp4",
            "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"],
        },
        floats.mxfp4,
        "gpt_oss",
    ),
    "ct_mxfp8": Format(compressed_floats("mxfp8-quantized", 8, 32), floats.mxfp8),
    "modelopt_fp8": Format(modelopt_config("FP8"), floats.modelopt_fp8),
    "modelopt_fp8_rows": Format(
        modelopt_config("FP8_PER_CHANNEL_PER_TOKEN"), floats.modelopt_fp8_rows
    ),
    "modelopt_nvfp4": Format(modelopt_config("NVFP4"), floats.modelopt_nvfp4, "qwen3"),
    "modelopt_fp8_file": Format(
        None, floats.modelopt_fp8, files={"hf_quant_config.json": modelopt_file("FP8")}
    ),
    "modelopt_nvfp4_file": Format(
        None, floats.modelopt_nvfp4, files={"hf_quant_config.json": modelopt_file("NVFP4")}
    ),
    "nf4": _bitsandbytes(dtype=torch.bfloat16),
    "nf4_nested": _bitsandbytes(nested=True, dtype=torch.float16),
    "nf4_float_storage": _bitsandbytes(storage=torch.bfloat16),
    "fp4": _bitsandbytes(kind="fp4"),
    "fp4_nested": _bitsandbytes(kind="fp4", nested=True),
    "bnb_8": Format(Bitsandbytes4().config(**_EIGHT_BITS), bitsandbytes_int8),
}


def is_quantised(name: str, tensor: torch.Tensor, form: Format) -> bool:
    is_wanted = "layers." in name or (form.head and name == "lm_head.weight")
    is_matrix = tensor.dim() == 2 and "gate.weight" not in name  # those are routers
    if form.source == "gpt_oss":
        return tensor.dim() == 3
    return is_wanted and is_matrix and not any(part in name for part in form.skipped)


def write(directory: Path, config: dict[str, Any], tensors: Tensors) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@dataclass(frozen=True)
class Made:
    """quantised: as another tool writes it; dense: the same numbers in float32; native: the same
    codes in the layout that the engine reads for itself, where that holds all of them."""

    quantised: Path
    dense: Path
    native: Path | None


def _pack_stack(name: str, tensor: torch.Tensor, form: Format, dense: Tensors) -> Tensors:
    """gpt-oss: floating-point matrices are [inputs, outputs], codes are by output."""
    experts, inputs, outputs = tensor.shape
    packed = form.pack(name, tensor.mT.reshape(-1, inputs).float().numpy())
    matrices = torch.from_numpy(packed.dense).reshape(experts, outputs, inputs)
    dense[name] = matrices.mT.contiguous()
    groups = inputs // 32
    return {
        f"{name}_blocks": packed.tensors["weight_packed"].reshape(experts, outputs, groups, 16),
        f"{name}_scales": packed.tensors["weight_scale"].reshape(experts, outputs, groups),
    }


def make_quantised(source: Path, form: Format, directory: Path) -> Made:
    """The model in `source` in that format, in folders of `directory`."""
    kept: Tensors = {}
    stored: Tensors = {}
    dense: Tensors = {}
    native: Tensors | None = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if not is_quantised(name, tensor, form):
            kept[name] = tensor
            continue
        if tensor.dim() == 3:
            stored |= _pack_stack(name, tensor, form, dense)
            native = None
            continue
        module = name.removesuffix(".weight")
        packed = form.pack(module, tensor.float().numpy())
        stored |= {f"{module}.{suffix}": part for suffix, part in packed.tensors.items()}
        dense[name] = torch.from_numpy(packed.dense)
        if packed.native is None:
            native = None
        elif native is not None:
            native |= {f"{module}.{suffix}": part for suffix, part in packed.native.items()}
    config = json.loads((source / "config.json").read_text())
    with_config = {} if form.config is None else {"quantization_config": form.config}
    quantised = write(directory / "quantised", config | with_config, kept | stored)
    for name, content in form.files.items():
        (quantised / name).write_text(json.dumps(content))
    twin = None
    if native is not None:
        layout = {"quant_method": "specdec_native", "format": "integers", "group_size": 32}
        twin = write(directory / "native", config | {"quantization_config": layout}, kept | native)
    return Made(quantised, write(directory / "dense", config, kept | dense), twin)


class Maker:
    """Every format once, in folders of `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._made: dict[str, Made] = {}

    def __call__(self, name: str) -> Made:
        if name not in self._made:
            form = FORMATS[name]
            source = self._root / "sources" / form.source
            if not source.exists():
                make_source(form.source, source)
            self._made[name] = make_quantised(source, form, self._root / name)
        return self._made[name]

    def copy(self, name: str, directory: Path) -> Path:
        """Of the quantised one, for changes."""
        shutil.copytree(self(name).quantised, directory)
        return directory


def edit_config(directory: Path, **changes: Any) -> None:
    """Changes keys of quantization_config."""
    path = directory / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"] |= changes
    path.write_text(json.dumps(config))


def edit_tensors(directory: Path, change: Callable[[Tensors], None]) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})
