"""`vllm bench serve`: python tests/clients/vllm_bench_client.py URL MODEL TOKENIZER_DIR

Needs the command vllm on the PATH. Fails with an AssertionError unless every request has succeeded
with as many tokens as it asked for. No figure of speed is looked at.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

NUM_REQUESTS = 20
OUTPUT_TOKENS = 16


def main(url: str, model: str, tokenizer: str) -> None:
    for kind, path in (("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(
                [
                    *("vllm", "bench", "serve", "--base-url", url, "--model", model),
                    *("--tokenizer", tokenizer, "--backend", kind, "--endpoint", path),
                    *("--dataset-name", "random", "--random-input-len", "12"),
                    *("--random-output-len", str(OUTPUT_TOKENS), "--ignore-eos"),
                    *("--num-prompts", str(NUM_REQUESTS), "--save-result", "--save-detailed"),
                    *("--result-dir", folder, "--result-filename", "result.json"),
                ],
                check=True,
            )
            result = json.loads((Path(folder) / "result.json").read_text())
        assert result["completed"] == NUM_REQUESTS, result["errors"]
        assert result["output_lens"] == [OUTPUT_TOKENS] * NUM_REQUESTS, result["output_lens"]


if __name__ == "__main__":
    main(*sys.argv[1:])
