"""guidellm against a server: python tests/clients/guidellm_client.py URL MODEL TOKENIZER_DIR

Needs the command guidellm on the PATH. Fails with an AssertionError unless every request has
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
        report = Path(folder) / "report.json"
        subprocess.run(
            [
                *("guidellm", "run", "--disable-console"),
                *("--backend", f"kind=openai_http,target={url},model={model}"),
                *("--profile", "kind=concurrent,streams=4"),
                *("--constraint", f"kind=max_requests,count={NUM_REQUESTS}"),
                *("--tokenizer", f"kind=hf_auto,model={tokenizer}"),
                "--data",
                f"kind=synthetic_text,prompt_tokens=12,output_tokens={OUTPUT_TOKENS}",
                *("--output", f"kind=json,path={report}"),
            ],
            check=True,
        )
        (benchmark,) = json.loads(report.read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert totals["successful"] == NUM_REQUESTS and not totals["errored"], totals
    for request in benchmark["requests"]["successful"]:
        assert request["output_tokens"] == OUTPUT_TOKENS, request
        assert request["prompt_tokens"] > 0, request


if __name__ == "__main__":
    main(*sys.argv[1:])
