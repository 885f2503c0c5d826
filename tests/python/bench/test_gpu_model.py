"""bench/gpu/step_model.py: what it predicts, and whether its kernels are those of the backend."""

import json
import re
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import cuda_gates
import pytest

from gpu import predictions, render
from gpu.attention_model import Attention, share_out, split_of
from gpu.checkpoints import SHAPES
from gpu.head_model import HeadPass, head_bytes, head_nodes
from gpu.product_model import (
    FEW_ROWS_REGISTERS,
    H200,
    Experts,
    Gpu,
    Node,
    early_starts,
    expert_nodes,
    few_rows,
    padded_count,
)
from gpu.step_model import greedy_nodes, layer_products, nodes
from gpu.step_time import (
    ASSUMED,
    Costs,
    costs_of,
    floor_seconds,
    pass_seconds,
    step_seconds,
    timeline,
)

ROOT = Path(__file__).parents[3]
BENCHES = ROOT / "build/release/bench"
_8B, _1B = SHAPES["llama-3.1-8b"], SHAPES["llama-3.2-1b"]
_30B = SHAPES["qwen3-30b-a3b"]
MS = 1e-3
SMALL = Gpu(registers=1 << 15)  # no room for two kernels


# Every weight of the matrices is read once: 32 layers of 218,103,808 and a head of 525,336,576, or
# 16 of 60,817,408 and 262,668,288, at 2 bytes and 4.3 TB/s.
@pytest.mark.parametrize(
    ("config", "weights", "milliseconds"),
    [
        (_8B, 32 * 218_103_808 + 525_336_576, 3.49),
        (_1B, 16 * 60_817_408 + 262_668_288, 0.575),
    ],
)
def test_floors_are_those_of_the_arithmetic(
    config: dict[str, Any], weights: int, milliseconds: float
) -> None:
    floor = floor_seconds(config)
    assert floor == pytest.approx(2 * weights / 4.3e12)
    assert floor == pytest.approx(milliseconds * MS, rel=0.002)


def test_keys_and_values_are_part_of_the_floor() -> None:
    # 16,384 positions of 8 heads of 128 in 32 layers, keys and values of 2 bytes: 2.1 GB.
    floor = floor_seconds(_8B, key_bytes=predictions.key_bytes(_8B, 16384))
    assert floor == pytest.approx(3.99 * MS, rel=0.002)


# KiB of each of 128 blocks, of Llama-3.1-8B: 3 tiles of qkv, one pair of o, 7 pairs of gate and up,
# one of down. A tile of 4,096 inputs has 128, of 14,336 it has 448. 8 rows of 4,096 inputs have 64,
# of 14,336 they have 224. Registers have 64 when the kernel waits; 48 with 16 rows that are stored.
@pytest.mark.parametrize(
    ("rows", "rows_kib", "registers_kib", "share"),
    [
        (8, [3 * 64, 64, 7 * 64, 224], [64, 64, 64, 64], 0.28),
        (16, [3 * 128, 128, 7 * 128, 448], [64, 48, 64, 48], 0.56),
    ],
)
def test_rows_are_read_again_for_each_pair_of_tiles(
    rows: int, rows_kib: list[int], registers_kib: list[int], share: float
) -> None:
    layer = [node for node in nodes(_8B, rows, 1024, H200)[1:6] if node.role != "attention"]
    assert [(node.role, node.blocks) for node in layer] == [
        (role, 128) for role in ("qkv", "o", "gate_up", "down")
    ]
    weights_kib = [3 * 128, 2 * 128, 14 * 128, 2 * 448]
    kib = zip(weights_kib, registers_kib, rows_kib, strict=True)
    assert [node.l2_bytes / 128 / 1024 for node in layer] == [
        weights - registers + again for weights, registers, again in kib
    ]
    assert sum(rows_kib) / sum(weights_kib) == pytest.approx(share, abs=0.005)


def test_one_row_that_blocks_keep_is_not_read_again() -> None:
    layer = [node for node in nodes(_8B, 1, 1024, H200)[1:6] if node.rows == "shared"]
    assert [node.role for node in layer] == ["qkv", "gate_up"]
    for node in layer:
        assert node.l2_bytes == node.bytes - node.blocks * (64 << 10)


# What was asked for early lies in L2 when the kernel has waited, and goes on from there.
def test_no_product_takes_less_than_l2_needs_for_it() -> None:
    for rows in (1, 8, 16, 64):
        for config in (_1B, _30B):
            times = timeline(nodes(config, rows, 1024, H200), H200)
            for before, timed in pairwise(times):
                assert timed.end - before.end >= timed.node.l2_bytes / ASSUMED.l2_rate


# A tile of 128 outputs and 64 rows: for each input 2 * 128 * 64 FLOPs and 128 + 64 elements.
def test_many_rows_are_bound_by_what_l2_gives() -> None:
    product = nodes(_8B, 512, 1024, H200)[-1]
    intensity = product.flops / product.l2_bytes
    assert intensity == pytest.approx(2 * 128 * 64 / (2 * (128 + 64)), rel=0.01)
    seconds = [
        pass_seconds(nodes(_8B, 512, 1024, H200), H200, replace(ASSUMED, l2_rate=rate))
        for rate in (11e12, 5.5e12, 2.75e12)
    ]
    assert seconds[2] > 1.8 * seconds[1] > seconds[0]


# ---- laws


def seconds_of(
    rows: int = 1, context: int = 1024, gpu: Gpu = H200, costs: Costs = ASSUMED
) -> float:
    return pass_seconds(nodes(_1B, rows, context, gpu), gpu, costs)


@pytest.mark.parametrize(
    "series",
    [
        lambda: [seconds_of(rows=rows) for rows in (1, 2, 4, 8, 16, 32, 64)],
        lambda: [seconds_of(context=context) for context in (64, 1024, 4096, 16384, 65536)],
        lambda: [seconds_of(costs=replace(ASSUMED, read_rate=rate)) for rate in (5e12, 4e12, 3e12)],
        lambda: [
            seconds_of(8, costs=replace(ASSUMED, l2_rate=rate)) for rate in (9e12, 5e12, 3e12)
        ],
        lambda: [seconds_of(gpu=SMALL, costs=replace(ASSUMED, gap=us * 1e-6)) for us in (0, 2, 10)],
        lambda: [seconds_of(costs=replace(ASSUMED, wait=us * 1e-6)) for us in (0, 1, 3, 10)],
        lambda: [seconds_of(gpu=Gpu(registers=count)) for count in (1 << 17, 1 << 16, 1 << 15)],
        lambda: [seconds_of(gpu=Gpu(shared_bytes=kib << 10)) for kib in (456, 228, 50)],
    ],
)
def test_more_of_what_costs_never_takes_less(series: Callable[[], list[float]]) -> None:
    seconds = series()
    assert seconds == sorted(seconds)
    assert seconds[0] < seconds[-1]


def test_no_pass_is_below_its_floor() -> None:
    for config in (_8B, _1B, SHAPES["llama-one-layer"]):
        for rows in (1, 8, 64):
            for context in (64, 16384):
                keys = predictions.key_bytes(config, context)
                floor = floor_seconds(config, key_bytes=keys)
                assert pass_seconds(nodes(config, rows, context, H200), H200) > floor


def test_a_boundary_costs_its_gap_where_two_kernels_do_not_fit() -> None:
    first = few_rows(layer_products(_8B)["o"], 1, H200)
    wide = replace(first, registers=2 * first.registers)
    hidden, open_gap = timeline([first] * 3, H200), timeline([wide] * 3, H200)
    assert [timed.hidden for timed in hidden] == [False, True, True]
    assert not any(timed.hidden for timed in open_gap)
    for before, after in pairwise(open_gap):
        assert after.begin - before.end == pytest.approx(ASSUMED.gap)
    # What was asked for while the other ran is there already.
    saved = (open_gap[-1].end - hidden[-1].end) / 2
    assert saved > ASSUMED.gap


def test_attention_starts_when_the_product_before_it_has_waited() -> None:
    times = timeline(nodes(_8B, 1, 1024, H200), H200)
    second_layer = [timed for timed in times if timed.node.role in {"qkv", "attention"}][2:4]
    before = times[times.index(second_layer[0]) - 1]
    assert second_layer[1].hidden
    assert second_layer[1].begin >= before.end


def test_attention_behind_attention_starts_late() -> None:
    attention = nodes(_8B, 1, 1024, H200)[2]
    assert attention.role == "attention"
    assert early_starts([attention] * 3) == [False, False, False]
    assert not any(timed.hidden for timed in timeline([attention] * 3, H200))


# 8 lists: each split is an item at 1,025 positions, and at 16,385 an item has a block's share, 17
# tiles, rounded up to whole splits; the last run lies behind the one position of the last split.
@pytest.mark.parametrize(
    ("context", "tiles"), [(200, (4,)), (1024, (4, 4, 4, 4, 1)), (16384, (20,) * 12 + (17, 0))]
)
def test_items_of_attention_are_runs_of_splits(context: int, tiles: tuple[int, ...]) -> None:
    attention = Attention(32, 8, 128, requests=1, rows_each=1, context=context)
    sharing = share_out(attention, columns=1, blocks=132)
    assert sharing.item_tiles == tiles
    assert sharing.splits == (split_of(context) + 1 if len(tiles) > 1 else 0)


@pytest.mark.parametrize("requests", [1, 3, 8, 40])
def test_items_of_attention_cover_each_position_once(requests: int) -> None:
    for end in (1, 64, 65, 257, 4000, 16384, 16385, 20000, 70000):
        attention = Attention(32, 8, 128, requests, rows_each=1, context=end - 1)
        sharing = share_out(attention, 1, 132)
        assert sum(sharing.item_tiles) == -(-end // 64)
        _, tiles = sharing.busiest(132)
        assert tiles >= max(sharing.item_tiles)
        assert tiles >= sharing.lists * sum(sharing.item_tiles) / 132


# ---- experts and heads


# 3.05e9 parameters in all; of a layer, attention and the 8 experts that one row reads.
def test_the_floor_of_experts_counts_those_that_rows_choose() -> None:
    attention = 2048 * (32 + 2 * 4) * 128 + 32 * 128 * 2048
    expert = 3 * 2048 * 768
    layer = attention + 128 * 2048 + 8 * expert
    assert floor_seconds(_30B) == pytest.approx(2 * (48 * layer + 151_936 * 2048) / 4.3e12)
    experts = Experts(count=128, chosen=8, hidden=2048, inner=768)
    assert experts.read(1) == pytest.approx(8)
    # Two rows: 8 and those of 8 more that are none of them, 8 * 120 / 128.
    assert experts.read(2) == pytest.approx(15.5)
    assert experts.read(10_000) == pytest.approx(128)


def test_experts_read_more_with_more_rows() -> None:
    experts = Experts(count=128, chosen=8, hidden=2048, inner=768)
    read = [sum(node.bytes for node in expert_nodes(experts, rows, H200)) for rows in (1, 2, 8, 16)]
    assert read == sorted(read)
    seconds = [pass_seconds(nodes(_30B, rows, 1024, H200), H200) for rows in (1, 2, 8, 16)]
    assert seconds == sorted(seconds)
    for rows, each in zip((1, 2, 8, 16), seconds, strict=True):
        assert each > floor_seconds(_30B, rows=rows)


def head_of(level: int, rows_each: int = 1, **changes: Any) -> HeadPass:
    return HeadPass(SHAPES["llama-3.1-8b-eagle3"], 1024, 1, rows_each, level, **changes)


# Of a head of the 8B: qkv over twice its width, o, gate and up, down, and 32,000 rows of output;
# where features come from the target, 3 * 4,096 of them, too.
def test_bytes_of_a_head_are_those_of_its_matrices() -> None:
    layer = 2 * 4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336
    drafted = 2 * (layer + 32_000 * 4096)
    assert head_bytes(head_of(1)) == drafted
    assert head_bytes(head_of(0)) == drafted + 2 * 3 * 4096 * 4096
    assert head_bytes(head_of(1, weight_format="int8")) == drafted / 2


def test_a_head_takes_longer_than_reading_it() -> None:
    for level in (0, 1):
        for greedy in (False, True):
            head = head_of(level, greedy=greedy)
            seconds = pass_seconds(head_nodes(head, H200), H200)
            assert head_bytes(head) / 4.3e12 < seconds < head_bytes(head) / 4.3e12 + 60e-6


def is_stated(seconds: float, cell: str) -> bool:
    digits = len(cell.split(".")[1])
    return 1e3 * seconds == pytest.approx(float(cell), abs=0.51 * 10**-digits)


# Of docs/gpu.md: floor and step in milliseconds on an H200 and an H100, to the digits given.
def test_the_documentation_says_what_the_model_predicts() -> None:
    text = (ROOT / "docs/gpu.md").read_text()
    rows = re.findall(
        r"^\| Llama-3\.\d-(\dB), (\d+) rows?(, 16k)? \| ([\d.]+) \| ([\d.]+) \|"
        r".*?\| ([\d.]+) \| ([\d.]+) \|",
        text,
        re.MULTILINE,
    )
    assert len(rows) == 6
    h100 = replace(ASSUMED, read_rate=3.05e12)
    for name, count, long, *cells in rows:
        config = _8B if name == "8B" else _1B
        pass_of = (config, int(count), 16384 if long else 1024, H200)
        found = [
            figure
            for costs in (ASSUMED, h100)
            for figure in (floor_seconds(config, costs), step_seconds(*pass_of, costs))
        ]
        assert all(map(is_stated, found, cells)), (name, count, long, found)
    assert "No GPU has run these predictions." in text


# Of its second table: floor and prediction.
def test_the_documentation_says_what_the_model_predicts_of_experts_and_heads() -> None:
    text = (ROOT / "docs/gpu.md").read_text()
    rows = re.findall(
        r"^\| Qwen3-30B-A3B, (\d) rows? \| ([\d.]+) \| ([\d.]+) \|", text, re.MULTILINE
    )
    assert [count for count, _, _ in rows] == ["1", "8"]
    found = [
        (floor_seconds(_30B, rows=int(count)), step_seconds(_30B, int(count), 1024, H200))
        for count, _, _ in rows
    ]
    heads = re.findall(
        r"^\| EAGLE-3 head of the 8B, (.*?) \| ([\d.]+) \| ([\d.]+) \|", text, re.MULTILINE
    )
    passes = {"a draft": head_of(1, greedy=True), "5 tokens": head_of(0, 5, greedy=True)}
    assert [name for name, _, _ in heads] == list(passes)
    for head in passes.values():
        seconds = pass_seconds(head_nodes(head, H200), H200)
        found.append((head_bytes(head) / ASSUMED.read_rate, seconds))
    stated = [(floor, now) for _, floor, now in [*rows, *heads]]
    for seconds_of_row, row in zip(found, stated, strict=True):
        assert all(map(is_stated, seconds_of_row, row)), seconds_of_row


@pytest.mark.parametrize(
    ("count", "padded"), [(1, 1), (2, 2), (3, 4), (5, 8), (16, 16), (17, 32), (33, 64)]
)
def test_rows_are_padded_as_recorded_batches_are(count: int, padded: int) -> None:
    assert padded_count(count) == padded


def test_registers_are_those_that_the_gates_allow() -> None:
    rules = cuda_gates.read_rules(cuda_gates.RULES.read_text().splitlines())
    limits = {rule.registers for rule in rules if rule.kernel == "few_rows_kernel"}
    assert limits == {FEW_ROWS_REGISTERS}


# ---- beside what is launched

_TINY: dict[str, Any] = SHAPES["tiny"]
_ONE = _TINY | {"num_hidden_layers": 1, "vocab_size": 272}
# Shapes at whose sizes choices change: tiles for each of 4 multiprocessors (even, odd, more than
# 8), rows that fit into 16 KB or do not, heads of another size, another group.
CONFIGS = {
    "two-layers": _TINY,
    "odd-tiles": _ONE | {"hidden_size": 208, "intermediate_size": 104},
    "long-rows": _ONE | {"hidden_size": 2080, "intermediate_size": 48},
    "large-heads": _ONE
    | {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 128, "hidden_size": 576},
    "largest-heads": _ONE | {"num_attention_heads": 3, "head_dim": 256, "hidden_size": 192},
    "mixtral": _ONE
    | {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    # Of a width that is no multiple of 32: their rows are made into records.
    "qwen3-moe": _30B
    | {name: _ONE[name] for name in ("hidden_size", "vocab_size", "num_hidden_layers")}
    | {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64}
    | {"num_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": 40},
}


def run_bench(name: str, arguments: list[str], folder: Path) -> list[dict[str, Any]]:
    if not (BENCHES / name).is_file():
        pytest.skip("benchmarks are not built: scripts/test.sh bench builds them")
    command = [str(BENCHES / name), "--device=emulated", "--smoke", "--load_format=dummy"]
    command += [*arguments, f"--json={folder / 'out.json'}"]
    subprocess.run(command, check=True, capture_output=True)
    records: list[dict[str, Any]] = json.loads((folder / "out.json").read_text())["records"]
    return records


def launches_of(record: dict[str, Any]) -> dict[Any, int]:
    assert record["other_nodes"] == 0  # a copy between two kernels, for example
    return {
        (predictions.launch_key(node), (node["starts_early"], node["lets_next_early"])): node[
            "count"
        ]
        for node in record["nodes"]
    }


def launches_in(modelled: list[Node]) -> dict[Any, int]:
    return dict(
        Counter(
            (
                (node.name, node.grid, node.threads, node.shared_bytes),
                (starts, node.lets_next_early),
            )
            for node, starts in zip(modelled, early_starts(modelled), strict=True)
        )
    )


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_kernels_are_those_that_the_backend_launches(
    name: str, greedy: bool, tmp_path: Path
) -> None:
    config = CONFIGS[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    # Of each batch up to 16 times the rows: more than 64, too, for which attention has a kernel.
    sizes = [f"--model={tmp_path}", "--contexts=40,300", "--drafts=0,1,2,7,15"]
    sizes += ["--batches=1,3", "--greedy"] if greedy else ["--batches=1,5"]
    records = run_bench("cuda_step_bench", sizes, tmp_path)
    assert len(records) == 2 * 2 * 5
    for record in records:
        gpu = Gpu(multiprocessors=record["threads"])
        batch, context = int(record["batch"]), int(record["context"])
        rows = batch * (int(record["drafts"]) + 1)
        modelled = (greedy_nodes if greedy else nodes)(config, rows, context, gpu, batch)
        sizes_of = (record["batch"], record["drafts"], record["context"])
        assert launches_of(record) == launches_in(modelled), sizes_of


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("name", ["tiny", "long-rows"])
def test_kernels_of_a_head_are_those_that_the_backend_launches(
    name: str, greedy: bool, tmp_path: Path
) -> None:
    # With long rows, those that the head fuses do not fit into 16 KB.
    changes = {"hidden_size": 2080, "intermediate_size": 48} if name == "long-rows" else {}
    head = SHAPES["tiny-eagle3"] | changes
    for folder, config in {"target": _TINY | changes, "head": head}.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text(json.dumps(config))
    models = [f"--model={tmp_path / 'target'}", f"--head={tmp_path / 'head'}", "--context=40"]
    records = run_bench("cuda_head_bench", models + ["--greedy"] * greedy, tmp_path)
    passes = [record for record in records if record["kernel"] != "target_pass"]
    assert len(passes) == 2 * (4 + 3)
    for record in passes:
        model = predictions.Model(Gpu(multiprocessors=record["threads"]), ASSUMED)
        modelled = head_nodes(predictions.head_pass_of(head, record), model.gpu)
        assert launches_of(record) == launches_in(modelled), (record["kernel"], record["shape"])
        prediction = model.of_head_pass(head, record)
        assert prediction is not None
        assert prediction.differs == ""


# ---- in the report


def test_registers_are_the_devices_and_differences_have_names() -> None:
    sequence = nodes(_1B, 1, 1024, H200)

    def entry(node: Node) -> dict[str, Any]:
        launch = {"name": node.name, "grid": list(node.grid), "threads": node.threads}
        return launch | {"shared_bytes": node.shared_bytes, "registers": 40 + len(node.name)}

    launched = [entry(node) for node in dict.fromkeys(sequence)]
    found, differs = predictions.with_resources(sequence, launched)
    assert differs == ""
    assert [node.registers for node in found] == [40 + len(node.name) for node in sequence]

    launched[-1]["grid"] = [7, 1, 1]
    _, differs = predictions.with_resources(sequence, launched)
    assert differs == "head, few_rows (7, 1, 1)"


def report_with(records: list[dict[str, Any]]) -> dict[str, Any]:
    node = {"kernel": "graph_node", "overlap": 1, "seconds": 1.5e-6, "threads": 78}
    gap = {"kernel": "graph_reads", "overlap": 0, "gap_us": 3.5, "threads": 78}
    read = {"kernel": "read", "gb_per_s": 2000.0, "threads": 78}
    l2_reads = [
        {"kernel": "l2_read", "gb_per_s": rate, "threads": 78} for rate in (5000.0, 6000.0, 900.0)
    ]
    steps = {"ceilings": {"data": {"records": [read, *l2_reads, node, gap]}}}
    return {"smoke": False, "steps": steps | {"steps-1b": {"data": {"records": records}}}}


def test_constants_that_were_measured_take_the_place_of_what_was_assumed() -> None:
    model = predictions.model_of(report_with([]))
    assert model.gpu.multiprocessors == 78
    assert model.costs == replace(ASSUMED, read_rate=2e12, l2_rate=6e12, gap=3.5e-6, wait=1.5e-6)
    assert costs_of([]) == ASSUMED


def test_passes_are_shown_beside_their_prediction() -> None:
    record = {"context": 1024, "batch": 1, "drafts": 0, "gb_per_s": 1.0, "of_read": 0.5}
    record |= {"over_0": 1.0, "sampled_us": 9.0}
    report = report_with([record])
    model = predictions.model_of(report)
    expected = pass_seconds(nodes(_1B, 1, 1024, model.gpu), model.gpu, model.costs)
    record["seconds"] = 1.25 * expected
    line = render.passes(report, ["steps-1b"], "Passes", "llama-3.2-1b")[4]
    cells = [cell.strip() for cell in line.split("|")]
    assert cells[4:8] == [f"{1250 * expected:.4g}", f"{1000 * expected:.4g}", "1.25", ""]


@pytest.mark.parametrize(
    ("kernel", "shape", "rows", "is_modelled"),
    [
        ("qkv", "Llama-3.1-8B act", 8, True),
        ("down", "Llama-3.2-1B int8", 1, True),
        ("head", "Llama-3.2-1B int4_grouped", 64, True),
        ("attention", "Llama-3.1-8B context 16384 x16", 128, True),
        ("qkv: cublasLt", "Llama-3.1-8B act", 8, False),
        ("sample: greedy", "vocab 128256", 16, False),
    ],
)
def test_kernels_by_themselves_have_predictions(
    kernel: str, shape: str, rows: int, is_modelled: bool
) -> None:
    record = {"kernel": kernel, "shape": shape, "rows": rows}
    prediction = predictions.Model(H200, ASSUMED).of_kernel(record)
    assert (prediction is not None) == is_modelled
    if prediction is not None:
        sequence = predictions.kernel_nodes(record, H200)
        assert sequence is not None
        floor = sum(node.bytes for node in sequence) / ASSUMED.read_rate
        assert floor < prediction.seconds < 2 * floor + 100e-6
