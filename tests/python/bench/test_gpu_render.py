"""What bench/gpu/report says of its measurements."""

from typing import Any

from gpu.render import render
from gpu.steps import Data


def pass_of(batch: int, drafts: int, seconds: float, of_read: float) -> Data:
    sizes = {"context": 1024.0, "batch": float(batch), "drafts": float(drafts)}
    figures = {"gb_per_s": 4000.0, "of_read": of_read, "over_0": seconds / 0.004}
    return sizes | figures | {"seconds": seconds, "sampled_us": 9.0}


def example_report() -> dict[str, Any]:
    def entry(title: str, data: Data) -> Data:
        return {"title": title, "status": "done", "seconds": 1.0, "data": data}

    def run(rate: float) -> Data:
        record = {"batch": 1, "context": 1024, "tokens_per_s": rate, "step_seconds": 1 / rate}
        return {"model": "llama-3.1-8b", "records": [record]}

    passes = [pass_of(1, 0, 0.004, 0.85), pass_of(1, 7, 0.0044, 0.8)]
    return {
        "gpu": "NVIDIA H200",
        "commit": "abc",
        "date": "today",
        "smoke": False,
        "steps": {
            "steps-8b": entry("Passes of 8B", {"records": passes}),
            "engine-8b": entry("Engine", run(200.0)),
            "engine-8b-off": entry("Engine", run(190.0)),
            "transformers-8b": entry("transformers", run(100.0)),
        },
    }


def test_report_says_what_determinism_costs_and_what_is_absent() -> None:
    rates = {"many_rows": 2e5, "wide_rows": 4e5, "cublasLt 0": 5e5, "cublasLt 1": 6e5}
    records = [
        {"kernel": f"qkv: {way}", "shape": "8B act", "rows": 512, "gflop_per_s": rate}
        for way, rate in rates.items()
    ]
    report = example_report()
    report["steps"]["kernels-many-rows"] = {
        "title": "Many rows",
        "status": "done",
        "seconds": 1.0,
        "data": {"records": records},
    }
    line = next(line for line in render(report).splitlines() if line.startswith("| qkv"))
    assert line == "| qkv | 8B act | 512 | 200 | 400 | absent | absent | 600 | 1.5 |"


def test_report_holds_measurements_to_what_is_asked_of_them() -> None:
    lines = {line.split(" | ")[0]: line for line in render(example_report()).splitlines()}
    assert "0.85" in lines["| 8B decodes at 80% of read bandwidth"]
    assert "| yes |" in lines["| 8B decodes at 80% of read bandwidth"]
    assert "| no |" in lines["| 8B verifies 8 rows in 1.05 of the time of 1"]
    assert "| no |" in lines["| 8B with speculation off is within 1% of none"]
    assert "| yes |" in lines["| 8B is ahead of transformers at batch 1"]
    assert "| not measured |" in lines["| 1B decodes at 68% of read bandwidth"]
    assert "| not measured |" in lines["| 8B is ahead of vLLM at batch 1"]


def test_report_holds_a_draft_head_to_its_bytes_and_to_its_target() -> None:
    def record(kernel: str, each: int, **figures: float) -> Data:
        shape = {"kernel": kernel, "shape": "int8 head x1", "batch": 1, "each": each}
        return shape | {"seconds": 1e-4, "context": 1024} | figures

    def rates(**drafts: int) -> Data:
        return {"batch": 1, "context": 1024, "tokens_per_s": 200.0} | drafts

    report = example_report()
    for name, data in {
        "heads-8b": {
            "records": [
                record("draft_pass", 1, over_read=1.2),
                record("catch_up", 8, of_target=0.05),
                record("target_pass", 1, over_plain=1.02),
            ]
        },
        "engine-8b-chains": {"model": "8B", "records": [rates(drafts=4)]},
        "vllm-8b-heads": {"model": "8B", "records": [rates()]},
    }.items():
        entry = {"title": name, "status": "done", "seconds": 1.0, "data": data}
        report["steps"][name] = entry
    text = render(report)
    lines = {line.split(" | ")[0]: line for line in text.splitlines()}
    assert "| 1.2 | yes |" in lines["| 8B: a draft pass takes 1.3 of reading its bytes"]
    assert "| 0.05 | no |" in lines["| 8B: catching up 8 tokens takes 2% of a pass"]
    assert "| 1.02 | no |" in lines["| 8B: a sleeping head costs 1% of a pass"]
    assert "| 1 | no |" in lines["| 8B with an EAGLE-3 head is ahead of vLLM at batch 1"]
    assert "not measured" in lines["| 1B: a draft pass takes 1.3 of reading its bytes"]
    assert "| engine-8b-chains | 8B | 4 | 1 | 1024 | 200 |" in text
