"""bench/gpu/launches.py and step_time.py: the clock, and the launches that it goes by."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import cuda_gates
import pytest

from gpu import launches, predictions, render
from gpu.checkpoints import SHAPES
from gpu.launches import ASSUMED, Costs, Gpu, Kernel, Record, attention_items, kernels_of
from gpu.step_time import costs_of, record_seconds, timeline, weight_bytes

ROOT = Path(__file__).parents[3]
BUILD = ROOT / "build/release"
GPU = Gpu()
US = 1e-6
# Constants whose sums can be done by hand: a megabyte a microsecond.
ROUND = Costs(read_rate=1e12, share=1.0, l2_rate=2e12, flop_rate=1e15, gap=3 * US, wait=2 * US)


# ---- the clock


def kernel(**changes: Any) -> Kernel:
    """4 us of reading, one of these requested early, then 0.5 us of work."""
    base = Kernel(blocks=132, registers=128, shared_bytes=16 << 10, bytes=4e6, after=0.5 * US)
    return replace(base, **changes)


def ends(kernels: list[Kernel]) -> list[float]:
    return [round(timed.end / US, 6) for timed in timeline(kernels, GPU, ROUND)]


def test_a_kernel_takes_its_bytes_or_its_work_and_what_is_before_and_after() -> None:
    assert ends([kernel()]) == [4.5]
    assert ends([kernel(before=1 * US)]) == [5.5]
    assert ends([kernel(work=7 * US)]) == [7.5]
    assert ends([kernel(bytes=1e6, early_bytes=1e6, asks=2 * US)]) == [3.5]


# Late, 3 us after the first; early, it waits 2 us behind the end, and reads the rest. Of 1 MB that
# it asked for meanwhile 1 us is saved.
@pytest.mark.parametrize(
    ("second", "end"),
    [
        (kernel(), 4.5 + 3 + 4 + 0.5),
        (kernel(starts_early=True), 4.5 + 2 + 4 + 0.5),
        (kernel(starts_early=True, early_bytes=1e6), 4.5 + 2 + 3 + 0.5),
        (kernel(starts_early=True, early_bytes=4e6), 4.5 + 4 - 0.5 + 0.5),
        (kernel(starts_early=True, early_bytes=4e6, work=5 * US), 4.5 + 2 + 5 + 0.5),
        (kernel(starts_early=True, registers=255), 4.5 + 3 + 4 + 0.5),
        (kernel(starts_early=True, shared_bytes=220 << 10), 4.5 + 3 + 4 + 0.5),
    ],
)
def test_a_boundary_costs_a_gap_a_wait_or_nothing(second: Kernel, end: float) -> None:
    assert ends([kernel(), second]) == [4.5, end]


def test_a_kernel_behind_one_that_lets_it_start_late_asks_when_that_has_waited() -> None:
    small = Kernel(work=1 * US, starts_early=True)
    last = kernel(starts_early=True, early_bytes=4e6)
    late = timeline([kernel(), small, last], GPU, ROUND)
    assert late[2].begin == pytest.approx(6.5 * US)  # which waited for the first one's end
    early = timeline([kernel(), replace(small, lets_next_early=True), last], GPU, ROUND)
    assert early[2].begin == pytest.approx(4.5 * US)  # a multiprocessor has room for two
    assert early[2].end < late[2].end


@pytest.mark.parametrize(
    "changed",
    [
        lambda x: replace(ROUND, read_rate=1e12 / x),
        lambda x: replace(ROUND, gap=x * US),
        lambda x: replace(ROUND, wait=x * US),
    ],
)
def test_more_of_what_costs_never_takes_less(changed: Callable[[float], Costs]) -> None:
    kernels = [kernel(starts_early=index % 3 > 0, early_bytes=2e6) for index in range(12)]
    seconds = [timeline(kernels, GPU, changed(x))[-1].end for x in (1, 2, 4)]
    assert seconds == sorted(set(seconds))


# ---- what launches have to do


def product(name: str = "few_rows", **work: Any) -> Record:
    """The matrix o of Llama-3.1-8B: 4,096 x 4,096, whose tiles of 16 outputs have 128 KB."""
    base = {"rows": 8, "tiles": 256, "k_blocks": 128, "block_bytes": 1024, "column_tiles": 8}
    base |= {"tiles_at_once": 2, "shares_rows": 0, "exchanges_rows": 0, "stores": 1, "meets": 0}
    launch = {"name": name, "grid": [128, 1, 1], "threads": 256, "shared_bytes": 16384}
    return launch | {"starts_early": True, "lets_next_early": True, "work": base | work}


# KiB of each of 128 blocks: 3 tiles of qkv, one pair of o, 7 pairs of gate and up, one of down. A
# tile of 4,096 inputs has 128, of 14,336 it has 448. 8 rows of 4,096 inputs have 64. Registers have
# 64 when the kernel waits; 48 with 16 rows that are stored.
@pytest.mark.parametrize(
    ("work", "kib"),
    [
        ({"tiles": 3 * 128, "tiles_at_once": 1, "stores": 0}, 3 * 128 - 64 + 3 * 64),
        ({}, 2 * 128 - 64 + 64),
        ({"tiles": 14 * 128, "stores": 0}, 14 * 128 - 64 + 7 * 64),
        ({"k_blocks": 448}, 2 * 448 - 64 + 224),
        ({"rows": 16}, 2 * 128 - 48 + 128),
        ({"tiles": 14 * 128, "stores": 0, "rows": 16}, 14 * 128 - 64 + 7 * 128),
        ({"rows": 1, "shares_rows": 1}, 2 * 128 - 64),
    ],
)
def test_rows_are_read_again_for_each_pair_of_tiles(work: Record, kib: int) -> None:
    launch = product(**work)
    assert launches.few_rows_l2_bytes(launch, launch["work"]) == 128 * 1024 * kib


# A tile of 128 outputs and 64 rows: for each input 2 * 128 * 64 FLOPs and 128 + 64 elements.
def test_many_rows_are_bound_by_what_l2_gives() -> None:
    launch = product("many_rows", rows=512) | {"grid": [8, 32, 1]}
    record = {"launches": [launch], "order": [0], "threads": 132}
    flops, elements = 2 * 4096 * 4096 * 512, 4096 * (8 * 4096 + 32 * 512)
    assert flops / elements == pytest.approx(2 * 128 * 64 / (128 + 64))
    for rate in (5e12, 1e12):
        work = kernels_of(record, replace(ASSUMED, l2_rate=rate, flop_rate=1e18))[0].work
        assert work == pytest.approx(2 * elements / rate)
    assert kernels_of(record, replace(ASSUMED, l2_rate=1e18))[0].work == pytest.approx(
        flops / ASSUMED.flop_rate
    )


# Two rows: 8 experts and those of 8 more that are none of them, 8 * 120 / 128.
@pytest.mark.parametrize(("rows", "read"), [(1, 8), (2, 15.5), (10_000, 128)])
def test_experts_that_rows_choose_are_read(rows: int, read: float) -> None:
    assert launches.experts_read(128, 8, rows) == pytest.approx(read)


# 8 lists: each split is an item at 1,025 positions, and at 16,385 an item has a block's share, 17
# tiles, rounded up to whole short splits. Where splits are longer, runs have 4 or 5 of them in
# turn; the last run lies behind the one position of the last split.
@pytest.mark.parametrize(
    ("lists", "end", "tiles", "splits"),
    [
        (8, 120, [2], 0),
        (8, 201, [2, 2], 2),
        (8, 1025, [2] * 8 + [1], 9),
        (8, 16385, [18, 18] + [20, 16] * 6 + [5, 0], 73),
        (80, 1025, [17], 0),
    ],
)
def test_items_of_attention_are_runs_of_splits(
    lists: int, end: int, tiles: list[int], splits: int
) -> None:
    assert attention_items(lists, end, blocks=132) == (tiles, splits)


def test_registers_are_those_that_the_gates_allow() -> None:
    rules = cuda_gates.read_rules(cuda_gates.RULES.read_text().splitlines())
    limits = {rule.registers for rule in rules if rule.kernel == "few_rows_kernel"}
    assert limits == {launches.PRODUCT_REGISTERS}
    record = {"launches": [product(), product() | {"registers": 40}], "order": [0, 1, 0]}
    assert [found.registers for found in kernels_of(record, ASSUMED)] == [128, 40, 128]


# ---- the launches of benchmarks

_TINY: dict[str, Any] = SHAPES["tiny"]
_ONE = _TINY | {"num_hidden_layers": 1, "vocab_size": 272}
CONFIGS = {
    "two-layers": _TINY,
    "odd-tiles": _ONE | {"hidden_size": 208, "intermediate_size": 104},
    "long-rows": _ONE | {"hidden_size": 2080, "intermediate_size": 48},
    "large-heads": _ONE | {"num_attention_heads": 3, "head_dim": 256, "hidden_size": 192},
}


def need(bench: str) -> None:
    if not (BUILD / "bench" / bench).is_file():
        pytest.skip("benchmarks are not built: scripts/test.sh bench builds them")


# What the clock counts is what the benchmark knows of matrices and cache; it has the norms, too.
@pytest.mark.parametrize("name", CONFIGS)
def test_the_launches_of_a_step_have_what_the_clock_needs(name: str, tmp_path: Path) -> None:
    need("cuda_step_bench")
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name]))
    command = [str(BUILD / "bench/cuda_step_bench"), f"--model={tmp_path}", "--device=emulated"]
    command += ["--smoke", "--load_format=dummy", "--contexts=40,300", "--drafts=0,15"]
    command += ["--batches=1,5", "--greedy", f"--json={tmp_path / 'out.json'}"]
    subprocess.run(command, check=True, capture_output=True)
    for record in json.loads((tmp_path / "out.json").read_text())["records"]:
        assert record["other_nodes"] == 0  # a copy between two kernels, for example
        kernels = kernels_of(record, ASSUMED)
        layers, hidden = CONFIGS[name]["num_hidden_layers"], CONFIGS[name]["hidden_size"]
        attention = [found for found in kernels if found.name.startswith("attention")]
        assert len(attention) == layers
        # The first layer plans for all, where rows are few.
        plans = [found.asks > 3 * US for found in attention]
        assert plans == [True, *[record["rows"] > 64] * (layers - 1)]
        measured = record["seconds"] * record["gb_per_s"] * 1e9
        norms = 4 * (2 * layers + 1) * hidden
        assert sum(found.bytes for found in kernels) + norms == pytest.approx(measured)
        seconds = record_seconds(record, ASSUMED)
        assert seconds is not None
        assert weight_bytes(record) / ASSUMED.read_rate < seconds


def test_a_list_of_launches_is_that_of_a_gpu() -> None:
    need("cuda_step_bench")
    sizes = ("--contexts=1024", "--batches=1", "--drafts=0,15,31")
    one, few, many = predictions.list_launches(BUILD, "cuda_step_bench", "llama-3.1-8b", *sizes)
    assert "gb_per_s" not in one
    names = [found.name for found in kernels_of(one, ASSUMED)]
    rest = ["few_rows"] * 3
    first, other = ["few_rows", "attention 16"], ["few_rows", "attention 16 planned"]
    assert names == ["embed", *first, *rest, *[*other, *rest] * 31, "few_rows"]
    blocks = {found.blocks for found in kernels_of(one, ASSUMED) if found.name == "few_rows"}
    assert max(blocks) <= 132
    assert {found.name for found in kernels_of(few, ASSUMED)} >= {"stream_rows", "attention 32"}
    assert {found.name for found in kernels_of(many, ASSUMED)} >= {"stream_rows", "prepare_rows"}
    for before, timed in pairwise(timeline(kernels_of(few, ASSUMED), GPU, ASSUMED)):
        assert timed.end - before.end >= timed.kernel.work - US


# Elements of matrices: of the 30B, attention, the router and the 8 experts of one row; of the head,
# qkv over twice its width, and for features of the target 3 * 4,096 of them.
def test_every_weight_of_a_pass_is_read_once() -> None:
    need("cuda_head_bench")
    read = {name: weight_bytes(record) / 2 for name, record in predictions.rows(BUILD)}
    assert read["Llama-3.1-8B, 8 rows"] == 32 * 218_103_808 + 525_336_576
    assert read["Llama-3.2-1B, 1 row"] == 16 * 60_817_408 + 262_668_288
    layer = 2 * 2048 * (32 + 4) * 128 + 128 * 2048 + 8 * 3 * 2048 * 768
    assert read["Qwen3-30B-A3B, 1 row"] == pytest.approx(48 * layer + 151_936 * 2048)
    layer = 2 * 4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336
    assert read["EAGLE-3 head of the 8B, a draft"] == layer + 32_000 * 4096
    assert read["EAGLE-3 head of the 8B, 5 tokens"] == layer + 32_000 * 4096 + 3 * 4096 * 4096


def test_the_documentation_has_the_table_that_is_printed() -> None:
    need("cuda_head_bench")
    table = "\n".join(predictions.table(BUILD))
    assert table in (ROOT / "docs/gpu.md").read_text(), table


# ---- in the report


def report_with(records: list[Record]) -> dict[str, Any]:
    ceilings = [
        {"kernel": kernel, "gb_per_s": rate}
        for kernel, rate in (("read", 2000.0), ("l2_read", 9000.0))
    ]
    steps = {"ceilings": {"data": {"records": ceilings}}}
    return {"smoke": False, "steps": steps | {"steps-1b": {"data": {"records": records}}}}


def test_the_rate_that_was_measured_takes_the_place_of_what_was_assumed() -> None:
    assert render.costs_in(report_with([])) == replace(ASSUMED, read_rate=2e12)
    assert costs_of([]) == ASSUMED


def test_passes_are_shown_beside_their_prediction() -> None:
    record: Record = {"context": 1024, "batch": 1, "drafts": 0, "gb_per_s": 1.0, "of_read": 0.5}
    record |= {"over_0": 1.0, "sampled_us": 9.0, "threads": 78}
    record |= {"launches": [product()], "order": [0] * 9}
    report = report_with([record])
    expected = record_seconds(record, render.costs_in(report))
    assert expected is not None
    record["seconds"] = 1.25 * expected
    line = render.passes(report, ["steps-1b"], "Passes")[4]
    cells = [cell.strip() for cell in line.split("|")]
    assert cells[4:7] == [f"{1250 * expected:.4g}", f"{1000 * expected:.4g}", "1.25"]
