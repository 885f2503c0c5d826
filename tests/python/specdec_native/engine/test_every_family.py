"""Every class of transformers' causal language models computes the same or is refused by name.

Which they are is in docs/supported.md. `every_family.py` says how a class is swept.
"""

from pathlib import Path
from typing import Any

import pytest

import every_family
from every_family import Report, Settings, families, known_families, sweep
from logprobs import Array, likeliest_logprobs
from supported_page import PAGE, details_of, name_of, rows_on

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.mark.parametrize("model_type", known_families())
def test_a_class_computes_what_transformers_does_or_names_the_key(
    model_type: str, tmp_path: Path
) -> None:
    family = families()[model_type]
    report = sweep(family, tmp_path / "model")
    assert not report.problems
    # Nothing is skipped by accident: three spellings of about 30 cases.
    assert report.num_compared > 40
    assert rows_on(PAGE.read_text())[name_of(family)] == details_of(report), (
        f"run tests/python/testing/supported_page.py {model_type}"
    )


# -- The check sees what is planted


def sweep_of_activations(directory: Path) -> Report:
    return sweep(families()["llama"], directory / "model", keys={"hidden_act"})


def plant(monkeypatch: pytest.MonkeyPatch, change: Settings) -> None:
    """Has the engine read other values than transformers, of keys that differ from the default."""
    write = every_family.write_config

    def write_changed(directory: Path, settings: Settings) -> None:
        usual = settings.get("hidden_act", "silu") == "silu"
        write(directory, settings if usual else settings | change)

    monkeypatch.setattr(every_family, "write_config", write_changed)


def test_all_is_well_without_a_plant(tmp_path: Path) -> None:
    report = sweep_of_activations(tmp_path)
    assert not report.problems
    assert {"relu", "gelu"} <= set(report.loaded["hidden_act"])
    assert "quick_gelu" in report.refused["hidden_act"]


def test_a_key_that_is_ignored_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, {"hidden_act": "silu"})
    problems = sweep_of_activations(tmp_path).problems
    assert any('sparse: hidden_act = "relu": loads and differs' in text for text in problems)
    assert any('full: hidden_act = "quick_gelu": loads and differs' in text for text in problems)


def test_another_default_of_an_epsilon_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, {"rms_norm_eps": 1e-5})
    assert any("differs" in text for text in sweep_of_activations(tmp_path).problems)


def test_a_refusal_by_another_name_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, {"attn_gain": 2.0})
    problems = sweep_of_activations(tmp_path).problems
    assert any("refused, but by another name" in text for text in problems)


def test_other_exceptions_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(model: Path, *arguments: Any, **options: Any) -> Array:
        if "gelu" in (model / "config.json").read_text():
            raise RuntimeError("broken")
        return likeliest_logprobs(model, *arguments, **options)

    monkeypatch.setattr(every_family, "likeliest_logprobs", fail)
    problems = sweep_of_activations(tmp_path).problems
    assert any("fails: RuntimeError: broken" in text for text in problems)
