"""A flood of requests: python tests/clients/flood_client.py URL MODEL

Needs one of wrk (Debian), hey (Debian) and autocannon (npm) on the PATH, and runs each that is
there for some seconds. Fails with an AssertionError unless all answers are good and the server
answers afterwards as before. No figure of speed is looked at.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

SECONDS = 5
CONNECTIONS = 64


def main(url: str, model: str) -> None:
    body = json.dumps({"model": model, "prompt": "Hello", "max_tokens": 4, "temperature": 0})
    address = f"{url}/v1/completions"
    expected = ask(address, body)
    floods = {"wrk": wrk, "hey": hey, "autocannon": autocannon}
    there = [name for name in floods if shutil.which(name)]
    assert there, "install wrk, hey or autocannon"
    for name in there:
        num_good, num_bad = floods[name](address, body)
        print(f"{name}: {num_good} good answers, {num_bad} others")
        assert num_good > 0 and num_bad == 0
        assert ask(address, body) == expected


def ask(address: str, body: str) -> list[object]:
    """The choices of one answer."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(address, body.encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        choices: list[object] = json.load(response)["choices"]
    return choices


def run(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def wrk(address: str, body: str) -> tuple[int, int]:
    script = (
        f'wrk.method = "POST"\nwrk.body = [==[{body}]==]\n'
        'wrk.headers["Content-Type"] = "application/json"\n'
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "post.lua"
        file.write_text(script)
        length = ["-t", "1", "-c", str(CONNECTIONS), "-d", f"{SECONDS}s", "--timeout", "30s"]
        text = run("wrk", *length, "-s", str(file), address)
    num_all = int(re.findall(r"(\d+) requests in", text)[0])
    bad = re.findall(r"Non-2xx or 3xx responses: (\d+)", text)
    errors = re.findall(
        r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", text
    )
    num_bad = sum(map(int, bad)) + sum(int(number) for counts in errors for number in counts)
    return num_all - num_bad, num_bad


def hey(address: str, body: str) -> tuple[int, int]:
    options = ["-z", f"{SECONDS}s", "-c", str(CONNECTIONS), "-m", "POST", "-t", "30"]
    text = run("hey", *options, "-T", "application/json", "-d", body, address)
    counts = {int(status): int(n) for status, n in re.findall(r"\[(\d\d\d)\]\s+(\d+) resp", text)}
    num_good = counts.pop(200, 0)
    return num_good, sum(counts.values()) + ("Error distribution" in text)


def autocannon(address: str, body: str) -> tuple[int, int]:
    options = ["-c", str(CONNECTIONS), "-d", str(SECONDS), "-m", "POST", "-t", "30", "-j"]
    text = run("autocannon", *options, "-H", "Content-Type=application/json", "-b", body, address)
    report = json.loads(text)
    return report["2xx"], report["non2xx"] + report["errors"] + report["timeouts"]


if __name__ == "__main__":
    main(*sys.argv[1:])
