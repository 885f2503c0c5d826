"""Draft heads of the package on the command line."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specdec_cli import demo
from specdec_cli.main import app
from specdec_native.checkpoints import hub
from test_shipped_heads import HEAD, MODEL, pack, target, trained

__all__ = ["target", "trained"]  # fixtures


def test_the_command_line_knows_it(
    target: Path, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(trained, HEAD, monkeypatch, "--description", "for tests")
    run = CliRunner().invoke
    listed = run(app, ["fetch"])
    assert f"{HEAD}: for tests (eagle3 head of {MODEL})" in listed.stdout
    assert json.loads(run(app, ["fetch", "--json"]).stdout)[1]["target"] == MODEL
    fetched = Path(run(app, ["fetch", HEAD]).stdout.strip())
    assert fetched == hub.resolve_model(HEAD)
    facts = json.loads(run(app, ["info", HEAD, "--json"]).stdout)
    assert facts["method"] == "eagle3" and facts["target"] == MODEL
    assert json.loads(run(app, ["info", "--json"]).stdout)["heads"] == [HEAD]
    options = ["--spec-model", HEAD, "--max-tokens", "4", "--json"]
    answer = run(app, ["generate", "abab", "-m", str(target), *options])
    assert answer.exit_code == 0, answer.stderr
    methods = {m.name: m.speculative_config for m in demo.methods_for(f"tests/{MODEL}")}
    assert methods["eagle3 head"] == {"method": "eagle3", "model": HEAD}
    assert "eagle3 head" not in [m.name for m in demo.methods_for("gemma-3-270m")]
