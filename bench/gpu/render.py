"""The report as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .launches import Costs
from .plan import LAUNCH_WORDS, launch_step
from .profiles import METRICS
from .step_time import costs_of, record_seconds

Data = dict[str, Any]

# Assumed acceptance rates, to compute tokens/s from the time of passes.
ACCEPTANCES = (0.6, 0.7, 0.8, 0.9)
# The benchmark's names for the ways to multiply many rows.
MANY_ROWS_WAYS = (
    "many_rows",
    "wide_rows",
    "cutlass 128x128",
    "cutlass 128x256",
    "cublasLt",
)


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A Markdown table."""
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return [*lines, ""]


def number(value: float | None, digits: int = 3) -> str:
    """A number in so many digits, or nothing."""
    return "" if value is None else f"{value:.{digits}g}"


def records_of(report: Data, *steps: str) -> list[Data]:
    """Measurements of these steps, as far as they came."""
    records: list[Data] = []
    for step in steps:
        records += report["steps"].get(step, {}).get("data", {}).get("records", [])
    return records


def overview(report: Data) -> list[str]:
    """Which steps ran and how they went."""
    rows = [
        (entry["title"], entry["status"], entry.get("note", ""), entry["seconds"])
        for entry in report["steps"].values()
    ]
    return table(["step", "status", "note", "s"], rows)


def the_machine(report: Data) -> list[str]:
    """Facts of the machine."""
    facts = dict(report["steps"].get("machine", {}).get("data", {}))
    facts |= report["steps"].get("ceilings", {}).get("data", {}).get("facts", {})
    rows = [(name, "none" if value in (None, []) else value) for name, value in facts.items()]
    return ["## Machine", "", *table(["", ""], rows)] if rows else []


def tests(report: Data) -> list[str]:
    """Tests and sanitizers, a program a line."""
    programs: Data = {}
    for step in ("instructions", "tests", "engine-tests"):
        programs |= report["steps"].get(step, {}).get("data", {}).get("programs", {})
    lines = []
    if programs:
        rows = [
            (
                name,
                result["ran"],
                result["passed"],
                " ".join(result["failed"])
                or ("cut" if result["status"] is None else result["status"]),
            )
            for name, result in programs.items()
        ]
        lines += ["## Tests on the GPU", "", *table(["program", "ran", "passed", "failed"], rows)]
    alone = report["steps"].get("tests-again", {}).get("data", {}).get("alone", {})
    if alone:
        lines += ["Those that did not pass, by themselves:", "", *table(["", ""], alone.items())]
    checks = report["steps"].get("sanitizer", {}).get("data", {})
    if checks:
        rows_ = [
            (name, "cut" if result["status"] is None else result["status"], result["summary"])
            for name, result in checks.items()
        ]
        lines += ["## compute-sanitizer", "", *table(["check", "status", "summary"], rows_)]
    return lines


def ceilings(report: Data) -> list[str]:
    """Memory bandwidth and the cost of mechanisms."""
    records = [(record, "") for record in records_of(report, "ceilings")]
    own = records_of(report, "ceilings-own-carveouts")
    records += [(record, "the driver's") for record in own]
    rows = [
        (
            record["kernel"],
            record["shape"],
            launched_how(record),
            number(record.get("blocks_each")),
            carveouts,
            number(1e6 * record["seconds"], 4),
            number(record.get("gb_per_s"), 4),
            number(record.get("of_read")),
            number(record.get("gap_us")),
        )
        for record, carveouts in records
    ]
    if not rows:
        return []
    heads = ["", "size", "programmatic launch", "blocks a multiprocessor", "carveouts"]
    heads += ["us", "GB/s", "of read", "gap us"]
    return ["## Ceilings", "", *table(heads, rows)]


def launched_how(record: Data) -> str:
    """Whether kernels let the next one start, and where it was tried both ways, when."""
    if "overlap" not in record:
        return ""
    if not record["overlap"]:
        return "no"
    when = {0: ", after the wait", 1: ", before the wait"}
    return "yes" + when.get(record.get("early", -1), "")


def predicted(record: Data, costs: Costs, unit: float) -> tuple[str, str]:
    """The predicted time of a record's launches in `unit`, and measured over predicted."""
    seconds = record_seconds(record, costs)
    if seconds is None:
        return "", ""
    return number(seconds / unit, 4), number(record["seconds"] / seconds)


PREDICTED = ["predicted", "over it"]


def costs_in(report: Data) -> Costs:
    """The constants of the predictions, where its ceilings have measured them."""
    return costs_of(records_of(report, "ceilings"))


def passes(report: Data, steps: Sequence[str], title: str) -> list[str]:
    """Time of a pass by batch, context and drafts, beside the floor and the prediction."""
    records = records_of(report, *steps)
    costs = costs_in(report)
    rows = [
        (
            int(record["context"]),
            int(record["batch"]),
            int(record["drafts"]),
            number(1e3 * record["seconds"], 4),
            *predicted(record, costs, 1e-3),
            number(record["gb_per_s"], 4),
            number(record["of_read"]),
            number(record["over_0"]),
            number(record["sampled_us"]),
        )
        for record in records
    ]
    if not rows:
        return []
    heads = ["context", "batch", "K", "ms", *PREDICTED]
    heads += ["GB/s", "of read", "over K=0", "sampling us"]
    return [f"## {title}", "", *table(heads, rows), *synthetic(records)]


def heads(report: Data, step: str, title: str) -> list[str]:
    """Passes of a draft head beside their bytes, the prediction and a pass of the target."""
    costs = costs_in(report)
    rows = [
        (
            record["kernel"],
            record["shape"],
            int(record["each"]),
            number(1e6 * record["seconds"], 4),
            *predicted(record, costs, 1e-6),
            number(record.get("over_read")),
            number(record.get("of_target")),
            number(record.get("over_plain"), 4),
            number(record.get("sampled_us")),
        )
        for record in records_of(report, step)
    ]
    if not rows:
        return []
    names = ["pass", "", "rows each", "us", *PREDICTED, "over its bytes", "of a target's pass"]
    return [f"## {title}", "", *table([*names, "storing over plain", "sampling us"], rows)]


def launches(report: Data) -> list[str]:
    """The same passes by how kernels are launched."""
    steps = {"as it is": "steps-8b"} | {word: launch_step(word) for word in LAUNCH_WORDS}
    rows = [
        (way, int(record["drafts"]), number(1e3 * record["seconds"], 4), number(record["of_read"]))
        for way, step in steps.items()
        for record in records_of(report, step)
        if record["batch"] == 1
    ]
    if len({row[0] for row in rows}) < 2:
        return []
    return ["## Passes of Llama-3.1-8B by launch", "", *table(["", "K", "ms", "of read"], rows)]


def expected_length(acceptance: float, num_drafts: int) -> float:
    """Tokens a step emits on average at that acceptance of each draft."""
    return sum(acceptance**i for i in range(num_drafts + 1))


def synthetic(records: list[Data]) -> list[str]:
    """Tokens per second of these passes with drafts that cost nothing, at several acceptances."""
    rows = []
    for record in records:
        rates = [
            record["batch"] * expected_length(rate, int(record["drafts"])) / record["seconds"]
            for rate in ACCEPTANCES
        ]
        sizes = (int(record["context"]), int(record["batch"]), int(record["drafts"]))
        rows.append((*sizes, *(number(rate, 4) for rate in rates)))
    heads = ["context", "batch", "K", *(f"tokens/s at {rate}" for rate in ACCEPTANCES)]
    return ["Worked out for drafts that cost nothing:", "", *table(heads, rows)]


def kernels(report: Data) -> list[str]:
    """Every kernel beside its prediction, and its rate over that of reading memory."""
    costs = costs_in(report)
    steps = [f"kernels-{model}" for model in ("8b", "1b", "int8", "int4", "fp8")] + ["sampler"]
    new = records_of(report, "kernels-8b-new", "kernels-int8-new")
    records = [(record, "") for record in records_of(report, *steps)]
    records += [(record, ", streamed") for record in new]
    rows = [
        (
            record["kernel"] + how,
            record["shape"],
            record["rows"],
            number(1e6 * record["seconds"], 4),
            *predicted(record, costs, 1e-6),
            registers(record),
            number(record.get("gb_per_s"), 4),
            number(record.get("of_read")),
            number(record.get("gflop_per_s", 0) / 1e3),
        )
        for record, how in records
    ]
    if not rows:
        return []
    heads = ["kernel", "shape", "rows", "us", *PREDICTED, "registers"]
    heads += ["GB/s", "of read", "TFLOP/s"]
    return ["## Kernels", "", *table(heads, rows)]


def registers(record: Data) -> str:
    """Registers per thread of each launched kernel, where the device reports them."""
    return ", ".join(
        str(launch["registers"]) for launch in record.get("launches", []) if "registers" in launch
    )


def many_rows(report: Data) -> list[str]:
    """TFLOP/s of every way to multiply many rows, and what determinism costs against the best."""
    own = ("wide_rows", "many_rows")
    cases: dict[tuple[str, str, int], dict[str, float]] = {}
    for record in records_of(report, "kernels-many-rows"):
        kernel, way = record["kernel"].split(": ")
        rates = cases.setdefault((kernel, record["shape"], record["rows"]), {})
        way = way.split(" ")[0] if way.startswith("cublasLt") else way  # its best algorithm
        rates[way] = max(rates.get(way, 0), record["gflop_per_s"] / 1e3)
    if not cases:
        return []
    rows = [
        (
            *case,
            *(number(rates[way]) if way in rates else "absent" for way in MANY_ROWS_WAYS),
            number(max(rates.values()) / next(rates[way] for way in own if way in rates)),
        )
        for case, rates in cases.items()
        if "many_rows" in rates
    ]
    heads = ["projection", "shape", "rows", *MANY_ROWS_WAYS, "best over deterministic"]
    return [
        "## Products of many rows",
        "",
        "TFLOP/s; `deterministic=True` runs `many_rows`, or `wide_rows` with that launch word.",
        "",
        *table(heads, rows),
    ]


def counters(report: Data) -> list[str]:
    """What Nsight Compute counted in single kernels."""
    rows = [
        (
            record["kernel"][:40],
            report["steps"][step]["data"].get("format", "act"),
            report["steps"][step]["data"]["rows"],
            *(number(record.get(metric), 4) for metric in METRICS),
        )
        for step in ("ncu-few-rows", "ncu-int8", "ncu-many-rows")
        for record in records_of(report, step)
    ]
    return (
        ["## Counters", "", *table(["kernel", "weights", "rows", *METRICS], rows)] if rows else []
    )


def torch(report: Data) -> list[str]:
    """Torch's times for the same products."""
    rows = [
        (record["kernel"], record["shape"], record["rows"], number(1e6 * record["seconds"], 4))
        for record in records_of(report, "torch")
    ]
    return ["## torch", "", *table(["", "shape", "rows", "us"], rows)] if rows else []


def engines(report: Data) -> list[str]:
    """Whole steps of this engine and of others, by batch."""
    rows = [
        (
            step,
            entry["data"]["model"],
            record.get("drafts", entry["data"].get("drafts", "")),
            record["batch"],
            record["context"],
            number(record["tokens_per_s"], 4),
            number(1e3 * record["step_seconds"], 4) if "step_seconds" in record else "",
            number(record.get("tokens_per_step")),
        )
        for step, entry in report["steps"].items()
        for record in records_of(report, step)
        if "tokens_per_s" in record
    ]
    if not rows:
        return []
    heads = ["engine", "model", "K", "batch", "context", "tokens/s", "ms a step", "per step"]
    return ["## Tokens a second", "", *table(heads, rows)]


def find_pass(report: Data, step: str, drafts: int) -> Data | None:
    """The pass of one request at the shortest context."""
    for record in records_of(report, step):
        if record["batch"] == 1 and record["drafts"] == drafts:
            return record
    return None


def find_rate(
    report: Data, steps: Sequence[str], batch: int, drafts: int | None = None
) -> float | None:
    """Tokens a second of an engine, which one of these steps measured."""
    for record in records_of(report, *steps):
        if record["batch"] == batch and record.get("drafts") == drafts:
            return float(record["tokens_per_s"])
    return None


def find_head_figure(report: Data, step: str, kernel: str, each: int, name: str) -> float | None:
    """A figure of one request with the head's matrices in int8."""
    for record in records_of(report, step):
        wanted = record["kernel"] == kernel and record["each"] == each and name in record
        if wanted and record["batch"] == 1 and record["shape"].startswith("int8"):
            return float(record[name])
    return None


def goals(report: Data) -> list[str]:
    """The goals of the backend, and whether they were met."""
    rows: list[tuple[str, str, str]] = []

    def add(goal: str, value: float | None, met: Callable[[float], bool]) -> None:
        answer = "not measured" if value is None else "yes" if met(value) else "no"
        rows.append((goal, number(value, 4), answer))

    for model, share in (("8b", 0.80), ("1b", 0.68)):
        name, step = model.upper(), f"steps-{model}"
        engine = [f"engine-{model}", f"engine-{model}-batches"]
        decode, verify = find_pass(report, step, 0), find_pass(report, step, 7)
        of_read = decode["of_read"] if decode else None
        add(f"{name} decodes at {share:.0%} of read bandwidth", of_read, share.__le__)
        over = verify["over_0"] if verify else None
        add(f"{name} verifies 8 rows in 1.05 of the time of 1", over, (1.05).__ge__)
        plain = find_rate(report, engine, 1)
        off = find_rate(report, [f"engine-{model}-off"], 1)
        ratio = off / plain if plain and off else None
        add(f"{name} with speculation off is within 1% of none", ratio, (0.99).__le__)
        for other in ("transformers", "vLLM"):
            for batch in (1, 4, 16):
                ours = find_rate(report, engine, batch)
                theirs = find_rate(report, [f"{other.lower()}-{model}"], batch)
                times = ours / theirs if ours and theirs else None
                add(f"{name} is ahead of {other} at batch {batch}", times, (1.0).__lt__)
        for goal, kernel, each, figure, most in (
            ("a draft pass takes 1.3 of reading its bytes", "draft_pass", 1, "over_read", 1.3),
            ("catching up 8 tokens takes 2% of a pass", "catch_up", 8, "of_target", 0.02),
            ("a sleeping head costs 1% of a pass", "target_pass", 1, "over_plain", 1.01),
        ):
            value = find_head_figure(report, f"heads-{model}", kernel, each, figure)
            add(f"{name}: {goal}", value, most.__ge__)
    for batch in (1, 4, 16):
        ours = find_rate(report, ["engine-8b-chains"], batch, 4)
        theirs = find_rate(report, ["vllm-8b-heads"], batch)
        times = ours / theirs if ours and theirs else None
        add(f"8B with an EAGLE-3 head is ahead of vLLM at batch {batch}", times, (1.0).__lt__)
    return ["## Goals", "", *table(["goal", "measured", "met"], rows)]


def render(report: Data) -> str:
    """The whole report."""
    what = "emulated, tiny sizes: figures mean nothing" if report["smoke"] else report["gpu"]
    lines = [f"# CUDA backend on {what}", "", f"{report['date']}, {report['commit']}", ""]
    lines += overview(report)
    lines += [] if report["smoke"] else goals(report)
    lines += tests(report)
    lines += ceilings(report)
    steps_8b = ("steps-8b", "steps-8b-batches", "steps-8b-long")
    lines += passes(report, steps_8b, "Passes of Llama-3.1-8B")
    lines += passes(report, ["steps-8b-batches-new"], "Passes of Llama-3.1-8B, streamed")
    lines += passes(report, ["steps-1b"], "Passes of Llama-3.2-1B")
    lines += passes(report, ["steps-experts"], "Passes of Qwen3-30B-A3B")
    lines += heads(report, "heads-8b", "Passes of an EAGLE-3 head of Llama-3.1-8B")
    lines += heads(report, "heads-1b", "Passes of an EAGLE-3 head of Llama-3.2-1B")
    lines += launches(report)
    lines += engines(report)
    lines += kernels(report)
    lines += many_rows(report)
    lines += counters(report)
    lines += torch(report)
    lines += the_machine(report)
    return "\n".join(lines).rstrip() + "\n"
