"""schemathesis against a server: python tests/clients/schemathesis_client.py URL

Needs the command schemathesis on the PATH. Fails when an answer is 5xx or does not come.
"""

import subprocess
import sys


def main(url: str, _model: str = "", _tokenizer: str = "") -> None:
    subprocess.run(
        [
            *("schemathesis", "run", f"{url}/openapi.json"),
            *("--checks", "not_a_server_error", "--max-examples", "50"),
            *("--phases", "examples,coverage,fuzzing", "--request-timeout", "30", "--seed", "1"),
        ],
        check=True,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
