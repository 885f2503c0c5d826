"""Faults of draft heads' files, as exporters, converters and disks make them, for sound heads; and
what `specdec-native doctor` says of each in the head of SmolLM2-135M-Instruct.

    python -m bench.e2e.planted_faults --results FILE.jsonl --table bench/results/doctor.md

adds the faults and sound heads (`--sound DIR`) that the results lack, and writes the table. One
takes half a minute to two on two idle cores.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specdec_lab.doctor.examine import examine
from specdec_native.checkpoints import hub

Config = dict[str, Any]
Tensors = dict[str, Tensor]
IDS = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True)
class Fault:
    """A fault, and a part of the line that names it.

    `plant` changes config.json and tensors in place. `mends`: whether some change of the files
    brings the sound head's acceptance back.
    """

    plant: Callable[[Config, Tensors], None]
    named: str
    mends: bool = True


def plant(fault: Fault, head: Path, directory: Path) -> Path:
    """A copy of a head, which may have torch files, with the fault."""
    source = hub.resolve_model(head)
    config = json.loads((source / "config.json").read_text())
    files = sorted(source.glob("*.safetensors"))
    tensors = {name: t.clone() for file in files for name, t in load_file(file).items()}
    fault.plant(config, tensors)
    directory.mkdir(parents=True)
    for file in source.iterdir():
        if file not in files:
            shutil.copy(file, directory)
    (directory / "config.json").write_text(json.dumps(config, indent=2))
    save_file(
        {n: t.clone().contiguous() for n, t in tensors.items()}, directory / "model.safetensors"
    )
    return directory


# -- what is read of the target


def taps_moved(by: int) -> Callable[[Config, Tensors], None]:
    """The default layers' inputs, of a target of 30 layers, misnamed."""

    def change(config: Config, _: Tensors) -> None:
        config[IDS] = [layer + by for layer in (2, 15, 27)]

    return change


def output_ids_moved(config: Config, _: Tensors) -> None:
    """Ids of layers' inputs where those of outputs belong."""
    config["target_layer_ids"] = [layer + 1 for layer in config["target_layer_ids"]]


def fusion_of(tensors: Tensors) -> str:
    return next(n for n in tensors if n.endswith(("fc.weight", "eh_proj.weight")))


def pieces_rolled(count: int) -> Callable[[Config, Tensors], None]:
    """The `count` pieces of the fusion's columns, the last one first."""

    def change(_: Config, tensors: Tensors) -> None:
        for name in (fusion_of(tensors), "input_norm.weight"):
            if name in tensors:
                pieces = list(tensors[name].chunk(count, -1))
                tensors[name] = torch.cat([pieces[-1], *pieces[:-1]], -1)

    return change


def state_before_norm(config: Config, _: Tensors) -> None:
    config[IDS] = [3]  # of a target of 3 layers


# -- layers


def per_head(order: Callable[[Tensor], Tensor]) -> Callable[[Config, Tensors], None]:
    """Rows of q and k in another order within each head."""

    def change(config: Config, tensors: Tensors) -> None:
        config = config.get("transformer_layer_config", config)
        size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        for name, tensor in tensors.items():
            if name.endswith(("q_proj.weight", "k_proj.weight", "q_norm.weight", "k_norm.weight")):
                heads = tensor.reshape(-1, size, *tensor.shape[1:])
                tensors[name] = order(heads).reshape(tensor.shape)

    return change


def as_neighbours(heads: Tensor) -> Tensor:
    """Halves (0, 1, ..., n/2, ...) as Meta's pairs (0, n/2, 1, n/2 + 1, ...)."""
    first, second = heads.chunk(2, 1)
    return torch.stack([first, second], 2).flatten(1, 2)


def gates_exchanged(_: Config, tensors: Tensors) -> None:
    for name in [name for name in tensors if name.endswith("mlp.gate_proj.weight")]:
        up = name.replace("gate", "up")
        tensors[name], tensors[up] = tensors[up], tensors[name]


def norms_moved(by: float) -> Callable[[Config, Tensors], None]:
    def change(_: Config, tensors: Tensors) -> None:
        for name, tensor in tensors.items():
            is_norm = "norm" in name or ".ln." in f".{name}"
            if tensor.dim() == 1 and is_norm and name.endswith("weight"):
                tensors[name] = (tensor.float() + by).to(tensor.dtype)

    return change


def norms_exchanged(_: Config, tensors: Tensors) -> None:
    a, b = (
        next(n for n in tensors if n.endswith(f"{end}.weight"))
        for end in ("input_layernorm", "hidden_norm")
    )
    tensors[a], tensors[b] = tensors[b], tensors[a]


def set_key(key: str, value: Any) -> Callable[[Config, Tensors], None]:
    def change(config: Config, _: Tensors) -> None:
        config[key] = value

    return change


def rope_base(base: float) -> Callable[[Config, Tensors], None]:
    def change(config: Config, _: Tensors) -> None:
        config.pop("rope_parameters", None)
        config["rope_theta"] = base

    return change


# -- tensors


def tensor_made(ending: str, make: Callable[[Tensor], Tensor]) -> Callable[[Config, Tensors], None]:
    def change(_: Config, tensors: Tensors) -> None:
        name = next(name for name in tensors if name.endswith(ending))
        tensors[name] = make(tensors[name]).to(tensors[name].dtype)

    return change


def with_nan(tensor: Tensor) -> Tensor:
    broken = tensor.clone()
    broken[3, 5:9] = float("nan")
    return broken


def noise_like(tensor: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(tensor.shape, generator=generator) * 0.02


def never_trained(_: Config, tensors: Tensors) -> None:
    for name, tensor in tensors.items():
        if tensor.dim() == 2 and "lm_head" not in name and "embed" not in name:
            tensors[name] = noise_like(tensor).to(tensor.dtype)


# -- tokens


def ids_for_offsets(_: Config, tensors: Tensors) -> None:
    tensors["d2t"] = tensors["d2t"] + torch.arange(len(tensors["d2t"]))


def map_of_another_head(_: Config, tensors: Tensors) -> None:
    """As many tokens, others, and t2d to match."""
    size, vocab = len(tensors["d2t"]), len(tensors["t2d"])
    ids = torch.arange(size) * (vocab // size) + 1
    tensors["d2t"] = ids - torch.arange(size)
    tensors["t2d"] = torch.isin(torch.arange(vocab), ids)


def rows_of_frequency(_: Config, tensors: Tensors) -> None:
    """The map in another order than the rows of the LM head."""
    size = len(tensors["d2t"])
    ids = tensors["d2t"] + torch.arange(size)
    order = torch.randperm(size, generator=torch.Generator().manual_seed(1))
    tensors["d2t"] = ids[order] - torch.arange(size)


def embedding_of_another_model(config: Config, tensors: Tensors) -> None:
    config = config.get("transformer_layer_config", config)
    generator = torch.Generator().manual_seed(4)
    shape = (config["vocab_size"], config["hidden_size"])
    tensors["embed_tokens.weight"] = torch.randn(shape, generator=generator) * 0.1


def medusa_begins_early(config: Config, tensors: Tensors) -> None:
    """A head for the target's own next token before the others."""
    count = config["num_heads"]
    for name in sorted(tensors, reverse=True):
        kind, index, rest = name.split(".", 2)
        tensors[f"{kind}.{int(index) + 1}.{rest}"] = tensors[name]
    config["num_heads"] = count + 1


def medusa_transposed(_: Config, tensors: Tensors) -> None:
    for name, tensor in tensors.items():
        if name.startswith("blocks."):
            tensors[name] = tensor.T


# In heads of a target of 30 layers, whose LM head is rows of the target's.
OF_EAGLE3: Mapping[str, Fault] = {
    "taps: ids of outputs where inputs belong": Fault(
        taps_moved(-1), "taps: ids name layers' outputs"
    ),
    "taps: three layers too deep": Fault(taps_moved(3), "EAGLE-3's default layers"),
    "fc: columns of the last tap first": Fault(pieces_rolled(3), "fc: taps in the order"),
    "norm_before_residual the other way": Fault(
        set_key("norm_before_residual", True), "norm_before_residual: false"
    ),
    "norms stored less one": Fault(norms_moved(-1), "norms stored less one"),
    "q and k in Meta's order": Fault(per_head(as_neighbours), "rows are neighbours"),
    "gate and up exchanged": Fault(gates_exchanged, "gate_proj and up_proj exchanged"),
    "rope_theta of 10": Fault(rope_base(10.0), "the target's rope"),
    "d2t with ids": Fault(ids_for_offsets, "d2t: ids"),
    "d2t of another head": Fault(map_of_another_head, "rows that are alike"),
    "d2t in another order than the rows": Fault(rows_of_frequency, "d2t: "),
    "embedding of another model": Fault(embedding_of_another_model, "the target's embedding"),
    "NaN in o_proj": Fault(tensor_made("o_proj.weight", with_nan), "NaN", mends=False),
    "v_proj all zero": Fault(
        tensor_made("v_proj.weight", torch.zeros_like), "all its values are zero", mends=False
    ),
    "down_proj filled anew": Fault(
        tensor_made("down_proj.weight", noise_like), "independent random numbers", mends=False
    ),
    "never trained": Fault(never_trained, "was never trained", mends=False),
    "another model's head (hidden size)": Fault(
        set_key("target_hidden_size", 640), "trained for another model", mends=False
    ),
}
TARGET, HEAD = "SmolLM2-135M-Instruct", "SmolLM2-135M-Instruct-eagle3"


def examined(head: Path, method: str, **options: Any) -> Config:
    """What the command says of a head of TARGET, as JSON."""
    config = {"method": method, "model": str(head)}
    return dict(examine(TARGET, hub.resolve_model(TARGET), config, **options).as_json())


def row_of(name: str, report: Config) -> str:
    """A line of the table."""
    faults = [finding for finding in report["findings"] if finding["is_fault"]]
    said = "; ".join(f"{f['subject']}: {f['text']}" for f in faults) or "sound"
    share = report["trials"][0]["share"]
    stands = "refused" if share is None else f"{share:.1%}"
    return f"| {name} | {stands} | {said.replace('|', ',')} | {report['seconds']:.0f} |"


def table_of(rows: list[Config]) -> str:
    """The page with all rows."""
    planted = [row for row in rows if row["named"] is not None]
    sound = [row for row in rows if row["named"] is None]
    named = sum(row["named"] for row in planted)
    alarms = sum(not row["report"]["sound"] for row in sound)
    head = "| {} | drafted as it stands | what the command says | seconds |\n|---|---|---|---|"
    lines = [
        "# Faults planted in draft heads, and what `doctor` says of them",
        "",
        "`python -m bench.e2e.planted_faults` plants each fault in the EAGLE-3 head of",
        f"{TARGET}, and examines it with answers of {rows[0]['report']['max_tokens']} tokens, for "
        f"{rows[0]['rounds']} fault(s) of reading.",
        f"{named} of {len(planted)} faults are named"
        + (f"; {alarms} of {len(sound)} sound heads are called faulty" if sound else "")
        + ". Seconds are on a busy machine.",
    ]
    for kind, found in (("fault", planted), ("sound head", sound)):
        if found:
            lines += ["", head.format(kind), *(row_of(r["name"], r["report"]) for r in found)]
    return "\n".join([*lines, ""])


def main() -> None:
    """Examines what the results lack, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--results", type=Path, required=True, help="rows, kept between runs")
    parser.add_argument("--table", type=Path, help="the page to write")
    parser.add_argument("--sound", type=Path, action="append", default=[], help="a sound head")
    parser.add_argument("--fault", action="append", help="only faults with this in their name")
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=3, help="faults looked for in each head")
    arguments = parser.parse_args()
    options = {} if arguments.threads is None else {"num_threads": arguments.threads}
    text = arguments.results.read_text() if arguments.results.exists() else ""
    done = {row["name"] for row in map(json.loads, text.splitlines())}

    def add(name: str, head: Path, method: str, fault: Fault | None) -> None:
        report = examined(
            head,
            method,
            max_tokens=arguments.max_tokens,
            rounds=arguments.rounds,
            engine_options=options,
        )
        lines = [f"{f['subject']}: {f['text']}" for f in report["findings"] if f["is_fault"]]
        named = None if fault is None else any(fault.named in line for line in lines)
        print(row_of(name, report), "" if named is not False else "NOT NAMED", flush=True)
        with arguments.results.open("a") as file:
            file.write(
                json.dumps(
                    {"name": name, "named": named, "rounds": arguments.rounds, "report": report}
                )
                + "\n"
            )

    for name, fault in OF_EAGLE3.items():
        is_wanted = not arguments.fault or any(part in name for part in arguments.fault)
        if name not in done and is_wanted:
            with tempfile.TemporaryDirectory() as folder:
                broken = plant(fault, hub.resolve_model(HEAD), Path(folder) / "head")
                add(name, broken, "eagle3", fault)
    for head in arguments.sound:
        if head.name not in done:
            is_span = "markov_rank" in (head / "config.json").read_text()
            add(head.name, head, "dspark" if is_span else "eagle3", None)
    if arguments.table is not None:
        rows = [json.loads(line) for line in arguments.results.read_text().splitlines()]
        order = [*OF_EAGLE3]
        rows.sort(key=lambda row: order.index(row["name"]) if row["name"] in order else len(order))
        arguments.table.write_text(table_of(rows))


if __name__ == "__main__":
    main()
