"""`specdec-native doctor` names every fault planted in a toy's head, and none in sound heads.

A mended head is run by the engine beside the sound one: both must be accepted alike.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import planted_faults
import pytest
import torch
from planted_faults import Fault
from safetensors.torch import load_file

import make_heads
import tiny_text_model
import train_heads
from command_line import run
from specdec_lab.doctor.acceptance import Acceptance, measure
from specdec_lab.doctor.examine import examine
from specdec_lab.doctor.findings import FAULTY, SOUND, Report

OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 128, "num_threads": 1}
TOKENS = 24

OF_TOYS: Mapping[str, tuple[str, Fault]] = {
    "eagle, halves of fc exchanged": (
        "eagle",
        Fault(planted_faults.pieces_rolled(2), "embedding and state"),
    ),
    "eagle, state before the norm": (
        "eagle",
        Fault(planted_faults.state_before_norm, "the target's state after its final norm"),
    ),
    "eagle3, ids for offsets": ("eagle3", Fault(planted_faults.ids_for_offsets, "d2t: ids")),
    "eagle3, norms less one": (
        "eagle3",
        Fault(planted_faults.norms_moved(-1), "norms stored less one"),
    ),
    "eagle3, norms plus one": (
        "eagle3",
        Fault(planted_faults.norms_moved(1), "norms stored with one added"),
    ),
    "eagle3, gates exchanged": (
        "eagle3",
        Fault(planted_faults.gates_exchanged, "gate_proj and up_proj"),
    ),
    "eagle3, NaN": (
        "eagle3",
        Fault(
            planted_faults.tensor_made("up_proj.weight", planted_faults.with_nan),
            "NaN",
            mends=False,
        ),
    ),
    "eagle3, zeros": (
        "eagle3",
        Fault(
            planted_faults.tensor_made("fc.weight", torch.zeros_like),
            "all its values are zero",
            mends=False,
        ),
    ),
    "eagle3, never trained": (
        "eagle3",
        Fault(planted_faults.never_trained, "no other reading of the files", mends=False),
    ),
    "medusa, transposed": ("medusa", Fault(planted_faults.medusa_transposed, "layers transposed")),
    "medusa, begins early": (
        "medusa",
        Fault(planted_faults.medusa_begins_early, "begin one token later"),
    ),
    "mlp, norms less one": (
        "mlp",
        Fault(planted_faults.norms_moved(1), "norms stored with one added"),
    ),
    "dflash, taps exchanged": (
        "dflash",
        Fault(planted_faults.pieces_rolled(2), "fc: taps in the order 2, 1"),
    ),
    "dflash, rows of neighbours": (
        "dflash",
        Fault(planted_faults.per_head(planted_faults.as_neighbours), "neighbours"),
    ),
    "dflash, anchor": (
        "dflash",
        Fault(
            planted_faults.set_key("sample_from_anchor", True),
            "a row gives the token of its position",
        ),
    ),
    "mtp, halves of fc exchanged": (
        "mtp",
        Fault(planted_faults.pieces_rolled(2), "embedding and state"),
    ),
}

pytestmark = pytest.mark.usefixtures("one_torch_thread")
Trained = Callable[[str], Path]


def drafter(name: str) -> dict[str, Any]:
    """The keys of a toy's head in a speculative_config, without "model"."""
    variant = make_heads.HEADS[train_heads.TRAINED[name]]
    is_parallel = variant.kind in ("p_eagle", "pard")
    return {"method": variant.method} | ({"parallel_drafting": True} if is_parallel else {})


def examined(target: Path, name: str, head: Path, **options: Any) -> Report:
    config = drafter(name) | {"model": str(head)}
    return examine(
        str(target), target, config, max_tokens=TOKENS, engine_options=OPTIONS, **options
    )


def accepted(target: Path, name: str, head: Path) -> Acceptance:
    prompts = train_heads.ToyLanguage().texts(12, 16, seed=31).tolist()
    config = drafter(name) | {"model": str(head)}
    return measure(target, config, prompts, depth=3, max_tokens=32, engine_options=OPTIONS)


@pytest.mark.parametrize("name", train_heads.TRAINED)
def test_sound_heads_have_no_fault(
    name: str, target_of: Trained, trained_head: Trained, tmp_path: Path
) -> None:
    mended = tmp_path / "mended"
    report = examined(target_of(name), name, trained_head(name), write_mended=mended)
    assert [finding for finding in report.findings if finding.is_fault] == []
    assert report.status == SOUND
    assert report.written is None and not mended.exists()
    assert len(report.trials) > 2 and report.trials[0].share


@pytest.mark.parametrize("case", OF_TOYS)
def test_planted_faults_are_named_and_mended(
    case: str, target_of: Trained, trained_head: Trained, tmp_path: Path
) -> None:
    name, fault = OF_TOYS[case]
    target, sound = target_of(name), trained_head(name)
    broken = planted_faults.plant(fault, sound, tmp_path / "broken")
    report = examined(target, name, broken, write_mended=tmp_path / "mended")
    found = [f for f in report.findings if f.is_fault and fault.named in f"{f.subject}: {f.text}"]
    assert found, report.findings
    assert report.status == FAULTY
    assert (report.written is not None) == fault.mends
    if fault.mends:
        assert found[0].remedy
        mended = accepted(target, name, Path(str(report.written)))
        whole = accepted(target, name, sound)
        assert mended.answers == whole.answers
        assert mended.share.value == pytest.approx(whole.share.value, abs=0.02)


def test_a_layer_of_the_targets_own_checkpoint_is_examined(trained_head: Trained) -> None:
    whole = trained_head("mtp")
    report = examine("toy", whole, {"method": "mtp"}, max_tokens=TOKENS, engine_options=OPTIONS)
    assert report.status == SOUND and report.head is None
    assert report.trials[0].share and report.trials[0].share > 0.3


def test_two_faults_are_mended_one_after_the_other(
    toy_target: Path, trained_head: Trained, tmp_path: Path
) -> None:
    def both(config: dict[str, Any], tensors: dict[str, Any]) -> None:
        planted_faults.ids_for_offsets(config, tensors)
        planted_faults.norms_moved(-1)(config, tensors)

    broken = planted_faults.plant(Fault(both, ""), trained_head("eagle3"), tmp_path / "broken")
    report = examined(toy_target, "eagle3", broken, write_mended=tmp_path / "mended")
    subjects = [finding.subject for finding in report.findings if finding.is_fault]
    assert {"d2t: ids", "norms stored less one"} <= set(subjects)
    stored = load_file(tmp_path / "mended/model.safetensors")
    sound = load_file(trained_head("eagle3") / "model.safetensors")
    assert (stored["d2t"] == sound["d2t"]).all()
    assert stored["norm.weight"].allclose(sound["norm.weight"], atol=1e-6)


# -- the command


@pytest.fixture(scope="module")
def target(toy_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_text_model.add_text(toy_target, tmp_path_factory.mktemp("doctor") / "toy")


def doctor(target: Path, *arguments: object) -> Any:
    questions = target / "questions.jsonl"
    questions.write_text("\n".join(json.dumps(f"{i} of {i * i} words: {i}") for i in range(18)))
    flags = (
        "--prompts",
        questions,
        "--dtype",
        "float32",
        "--max-model-len",
        128,
        "--max-tokens",
        TOKENS,
    )
    return run("doctor", target, *flags, *arguments)


def test_command_says_what_mends_a_head(
    target: Path, trained_head: Trained, tmp_path: Path
) -> None:
    fault = OF_TOYS["medusa, transposed"][1]
    broken = planted_faults.plant(fault, trained_head("medusa"), tmp_path / "broken")
    mended = tmp_path / "mended"
    done = doctor(target, "--spec-model", broken, "--write-mended", mended)
    assert done.returncode == FAULTY, done.stderr
    assert "fault: layers transposed" in done.stdout
    assert f"The mended head is {mended}" in done.stdout
    again = doctor(target, "--spec-model", mended, "--json")
    report = json.loads(again.stdout)
    assert again.returncode == SOUND and report["sound"], again.stdout
    assert report["method"] == "medusa" and report["trials"][0]["share"] > 0.2


def test_command_cannot_examine_what_is_not_there(
    target: Path, trained_head: Trained, tmp_path: Path
) -> None:
    for arguments, message in {
        ("--spec-model", tmp_path / "nothing"): "no such file or directory",
        ("--spec-method", "ngram"): "no checkpoint to examine",
        (): "no head to examine",
        ("--spec-model", trained_head("medusa"), "--write-mended", tmp_path): "name a new",
    }.items():
        done = doctor(target, *arguments)
        assert done.returncode == 2 and message in done.stderr, (arguments, done.stderr)
        assert "Traceback" not in done.stderr


def test_few_prompts_are_refused(target: Path, trained_head: Trained) -> None:
    config = {"model": str(trained_head("medusa"))}
    with pytest.raises(ValueError, match="6 are needed at least"):
        examine("toy", target, config, texts=["abc", "xyz"], engine_options=OPTIONS)
