"""Counters of single kernels by Nsight Compute: what the memories and the tensor cores do."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable

from . import machine
from .steps import Context, Data, NotRunError, execute

_PERCENT = "avg.pct_of_peak_sustained_elapsed"
METRICS = (
    "gpu__time_duration.sum",
    f"dram__throughput.{_PERCENT}",
    "dram__bytes.sum",
    f"lts__throughput.{_PERCENT}",
    "lts__t_bytes.sum",
    f"l1tex__throughput.{_PERCENT}",
    "l1tex__t_bytes.sum",
    f"sm__pipe_tensor_cycles_active.{_PERCENT}",
    f"sm__inst_executed_pipe_tensor_op_hmma.{_PERCENT}",
    f"sm__inst_executed_pipe_tensor_op_gmma.{_PERCENT}",
)


def profile(kernel: str, rows: int, weight_format: str = "act") -> Callable[[Context], Data]:
    """Counters of two launches of a kernel in the gate and up projection of the 8B."""

    def run(context: Context) -> Data:
        context.need_gpu()
        tool = machine.find_tool("ncu")
        program = context.programs() / "bench/cuda_kernel_bench"
        if tool is None:
            raise NotRunError("ncu is not installed")
        if not program.is_file():
            raise NotRunError("cuda_kernel_bench was not built")
        bench = [str(program), "--device=cuda", f"--rows={rows}"]
        bench += [f"--format={weight_format}", f"--filter=gate_up Llama-3.1-8B {weight_format}"]
        metrics = list(METRICS)
        for _ in range(2):
            command = [tool, "--clock-control", "none", "--csv", "--print-units", "base"]
            command += ["--kernel-name", f"regex:{kernel}", "--launch-skip", "2"]
            command += ["--launch-count", "2", "--kill", "yes", "--metrics", ",".join(metrics)]
            finished = execute(context, context.step, [*command, *bench], show=False)
            records = parse(finished.output)
            if records or finished.cut:
                return {
                    "rows": rows,
                    "format": weight_format,
                    "records": records,
                    "cut": finished.cut,
                }
            # Not every GPU has every metric, and ncu then measures none.
            known = [name for name in metrics if name not in errors(finished.output)]
            if known in ([], metrics):
                break
            metrics = known
        raise NotRunError(f"ncu: {errors(finished.output) or finished.last_line}")

    return run


few_rows = profile("few_rows_kernel", 8)
few_rows_int8 = profile("few_rows_kernel", 4, "int8")
many_rows = profile("many_rows_kernel", 512)


def errors(output: str) -> str:
    """The errors that ncu reports, in one line."""
    return " ".join(re.findall(r"==ERROR== (.*)", output))


def parse(output: str) -> list[Data]:
    """A record for each launch from the CSV of ncu, which has a line for each metric."""
    lines = [line for line in output.splitlines() if line.startswith('"')]
    records: dict[str, Data] = {}
    for row in csv.DictReader(lines):
        value = row.get("Metric Value") or ""
        if not re.fullmatch(r"[\d.,]+(e[+-]?\d+)?", value):
            continue
        record = records.setdefault(row["ID"], {"kernel": row["Kernel Name"]})
        record[row["Metric Name"]] = float(value.replace(",", ""))
    return list(records.values())
