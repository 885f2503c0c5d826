"""aiperf against a server: python tests/clients/aiperf_client.py URL MODEL TOKENIZER_DIR

Needs the command aiperf on the PATH. Fails with an AssertionError unless every request has
succeeded with as many tokens as it asked for. No figure of speed is looked at.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

NUM_REQUESTS = 20
OUTPUT_TOKENS = 16


def main(url: str, model: str, tokenizer: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                *("aiperf", "profile", "--model", model, "--url", url, "--tokenizer", tokenizer),
                *("--endpoint-type", "chat", "--streaming", "--concurrency", "4"),
                *("--request-count", str(NUM_REQUESTS), "--num-dataset-entries", "20"),
                *("--isl", "12", "--osl", str(OUTPUT_TOKENS), "--extra-inputs", "ignore_eos:true"),
                *("--no-gpu-telemetry", "--workers-max", "1", "--record-processors", "1"),
                *("--use-server-token-count", "--ui", "none", "--artifact-dir", folder),
            ],
            check=True,
        )
        (report,) = Path(folder).rglob("profile_export_aiperf.json")
        figures = json.loads(report.read_text())
    assert figures["request_count"]["avg"] == NUM_REQUESTS, figures["request_count"]
    assert not figures.get("error_summary"), figures["error_summary"]
    assert figures["output_sequence_length"]["min"] == OUTPUT_TOKENS
    assert figures["output_sequence_length"]["max"] == OUTPUT_TOKENS


if __name__ == "__main__":
    main(*sys.argv[1:])
