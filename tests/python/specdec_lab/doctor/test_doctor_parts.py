"""Parts of the doctor against closed formulas, NumPy and files made by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import planted_faults
import pytest
import torch
from safetensors.torch import load_file, save_file

from specdec_lab.doctor.acceptance import Acceptance, Interval
from specdec_lab.doctor.belonging import check_belonging
from specdec_lab.doctor.checkpoint import Checkpoint, Target
from specdec_lab.doctor.drafts import check_drafts
from specdec_lab.doctor.readings import READINGS
from specdec_lab.doctor.tensors import check_tensors, is_noise
from specdec_native.requests.outputs import DraftedToken, DraftTree

VOCAB, HIDDEN, LAYERS = 400, 192, 8


def tree(num_tokens: int, drafts: list[int], kept: int) -> DraftTree:
    tokens = [DraftedToken(t, i - 1, "eagle3", None, i < kept) for i, t in enumerate(drafts)]
    return DraftTree(num_tokens, tokens)


ANSWER = [10, 11, 12, 13, 14, 15]
# Steps from 1, 4 and 5 tokens, of which two, none and none of the drafts were kept.
STEPS = [tree(1, [11, 12, 99], 2), tree(4, [98], 0), tree(5, [97], 0)]
NONE_KEPT = [tree(i, [90 + i], 0) for i in range(1, 6)]


# -- figures


def test_figures_count_tokens_that_came_from_kept_drafts() -> None:
    acceptance = Acceptance([ANSWER], [STEPS])
    assert [marks.tolist() for marks in acceptance.drafted] == [[True, True, False, False, False]]
    assert acceptance.share.value == pytest.approx(2 / 5)
    assert acceptance.tokens_per_step == pytest.approx(5 / 3)  # five tokens in three steps
    assert acceptance.by_depth == [1 / 3, 1.0, 0.0]
    assert acceptance.gain_over(Acceptance([ANSWER], [NONE_KEPT])).value == pytest.approx(2 / 5)
    with pytest.raises(ValueError, match="different answers"):
        acceptance.gain_over(Acceptance([[1, 2]], [[]]))


def test_intervals_cover_the_mean_in_99_of_100_samples() -> None:
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(2000):
        interval = Interval.of_mean(generator.binomial(1, 0.3, 120).astype(float))
        assert interval.value - interval.low == pytest.approx(interval.high - interval.value)
        covered += interval.low <= 0.3 <= interval.high
    assert 0.98 <= covered / 2000 <= 0.998


# -- tensors


@pytest.mark.parametrize("shape", [(192, 1152), (256, 256), (1536, 576)])
def test_initialised_matrices_are_noise_and_trained_ones_are_not(shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(sum(shape))
    rows, columns = shape
    normal = torch.randn(shape, generator=generator) * 0.02
    uniform = torch.rand(shape, generator=generator) - 0.5
    truncated = torch.nn.init.trunc_normal_(torch.empty(shape), a=-2, b=2, generator=generator)
    for initial in (normal, uniform, truncated, normal.bfloat16().float()):
        assert is_noise(initial.numpy())
    # A direction that gradients added, a quarter above the law's edge; and rows of other lengths.
    edge = 0.02 * (math.sqrt(rows) + math.sqrt(columns))
    u, v = (torch.randn(n, generator=generator) for n in shape)
    direction = torch.outer(u / u.norm(), v / v.norm())
    assert not is_noise((normal + 1.25 * edge * direction).numpy())
    lengths = 1 + 0.2 * torch.randn(rows, 1, generator=generator)
    assert not is_noise((normal * lengths).numpy())


def test_matrices_too_small_to_tell_are_not_noise() -> None:
    assert not is_noise(np.random.default_rng(1).standard_normal((64, 64)).astype(np.float32))


@pytest.fixture
def head(tmp_path: Path) -> Path:
    """Not a trained head, but with an EAGLE-3 head's names, and LM head rows of the target's."""
    generator = torch.Generator().manual_seed(2)

    def matrix(*shape: int) -> torch.Tensor:
        lengths = 1 + 0.3 * torch.randn(shape[0], 1, generator=generator)
        return torch.randn(shape, generator=generator) * 0.05 * lengths

    ids = torch.arange(0, VOCAB, 4)
    table = matrix(VOCAB, HIDDEN)
    tensors = {
        "fc.weight": matrix(HIDDEN, 3 * HIDDEN),
        "midlayer.self_attn.q_proj.weight": matrix(HIDDEN, 2 * HIDDEN),
        "midlayer.self_attn.k_proj.weight": matrix(HIDDEN, 2 * HIDDEN),
        "midlayer.hidden_norm.weight": torch.rand(HIDDEN, generator=generator),
        "midlayer.input_layernorm.weight": torch.rand(HIDDEN, generator=generator),
        "norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": table[ids] + 0.3 * matrix(len(ids), HIDDEN),
        "d2t": ids - torch.arange(len(ids)),
        "t2d": torch.isin(torch.arange(VOCAB), ids),
    }
    sizes = {"hidden_size": HIDDEN, "num_attention_heads": 4, "vocab_size": VOCAB}
    for name, stored, config in (
        ("head", tensors, sizes | {"draft_vocab_size": len(ids), "rope_theta": 1e4}),
        (
            "target",
            {"model.embed_tokens.weight": table},
            sizes | {"num_hidden_layers": LAYERS, "rope_theta": 5e5},
        ),
    ):
        (tmp_path / name).mkdir()
        save_file(stored, tmp_path / name / "model.safetensors")
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    return tmp_path / "head"


def target_of(head: Path) -> Target:
    return Target.read(head.with_name("target"))


def planted(head: Path, change: planted_faults.Fault | object, tmp_path: Path) -> Checkpoint:
    fault = change if isinstance(change, planted_faults.Fault) else planted_faults.Fault(change, "")  # type: ignore[arg-type]
    return Checkpoint.read(planted_faults.plant(fault, head, tmp_path / "planted"))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (planted_faults.with_nan, "4 of its 110592 values are NaN"),
        (torch.zeros_like, "all its values are zero"),
        (planted_faults.noise_like, "independent random numbers"),
        (lambda t: torch.cat([t[:150], torch.zeros_like(t[150:])]), "22% of its rows are zero"),
    ],
)
def test_broken_tensors_are_named(head: Path, made: object, said: str, tmp_path: Path) -> None:
    assert [f for f in check_tensors(Checkpoint.read(head)) if f.is_fault] == []
    change = planted_faults.tensor_made("fc.weight", made)  # type: ignore[arg-type]
    (found,) = [f for f in check_tensors(planted(head, change, tmp_path)) if f.is_fault]
    assert found.subject == "fc.weight" and said in found.text


def test_an_untrained_head_is_final(head: Path, tmp_path: Path) -> None:
    (found,) = check_tensors(planted(head, planted_faults.never_trained, tmp_path))
    assert found.is_final and "never trained" in found.text


# -- belonging


def test_another_model_or_method_is_noticed(head: Path, tmp_path: Path) -> None:
    target = target_of(head)
    assert check_belonging(Checkpoint.read(head), target, "eagle3") == []
    (found,) = check_belonging(Checkpoint.read(head), target, "eagle")
    assert found.is_fault and "--spec-method eagle3" in found.remedy
    other = planted(head, planted_faults.embedding_of_another_model, tmp_path)
    (noted,) = check_belonging(other, target, "eagle3")
    assert noted.subject == "embed_tokens.weight" and not noted.is_fault


# -- drafts


def checked(head: Path, answers: list[list[int]], drafts: list[list[int]]) -> list[str]:
    steps = [[tree(i + 1, [t], int(t == a[i + 1])) for i, t in enumerate(d)]
             for a, d in zip(answers, drafts, strict=True)]  # fmt: skip
    found = check_drafts(Acceptance(answers, steps), Checkpoint.read(head), is_mended=False)
    return [f"{finding.subject}: {finding.text}" for finding in found if finding.is_fault]


def test_drafts_of_another_position_are_a_shift(head: Path) -> None:
    generator = np.random.default_rng(3)
    answers = (4 * generator.integers(0, 100, (6, 30))).tolist()  # tokens that the head drafts
    assert checked(head, answers, [a[1:] for a in answers]) == []
    (late,) = checked(head, answers, [a[:-1] for a in answers])
    assert late.startswith("shift: 100%") and "the token before" in late
    (early,) = checked(head, answers, [a[2:] for a in answers])
    assert early.startswith("shift:") and "the token after it" in early
    (same,) = checked(head, answers, [[8] * 29 for _ in answers])
    assert "the same token, 8" in same
    (none,) = checked(head, answers, [[4 * i for i in range(29)] for _ in answers])
    assert none.startswith("drafts:") and "no other reading" in none


def test_a_draft_vocabulary_that_answers_do_not_use_is_named(head: Path) -> None:
    answers = [[4 * i + 1 for i in range(30)]]
    assert checked(head, answers, [[4] * 29])[0].startswith(
        "draft vocabulary: its 100 tokens are 0%"
    )


# -- readings


def test_every_reading_undoes_its_fault(head: Path, tmp_path: Path) -> None:
    """The tensors and layers of the sound head are among the variants of the broken one."""
    sound, target = load_file(head / "model.safetensors"), target_of(head)
    for number, change in enumerate(
        (
            planted_faults.pieces_rolled(3),
            planted_faults.per_head(planted_faults.as_neighbours),
            planted_faults.norms_moved(-1),
            planted_faults.norms_exchanged,
            planted_faults.ids_for_offsets,
            planted_faults.map_of_another_head,
            planted_faults.rows_of_frequency,
        )
    ):
        broken = planted(head, change, tmp_path / str(number))
        stored = load_file(broken.directory / "model.safetensors")
        assert not all(torch.equal(stored[name], tensor) for name, tensor in sound.items())
        variants = [
            variant.head.write(tmp_path / str(number) / str(i))
            for i, variant in enumerate(
                v for r in READINGS if "eagle3" in r.methods for v in r.variants(broken, target)
            )
        ]
        assert any(
            all(torch.allclose(t.float(), other[n].float(), atol=1e-6) for n, t in sound.items())
            for other in (load_file(v / "model.safetensors") for v in variants)
            if other.keys() == sound.keys()
        ), change


def test_readings_of_config_json_name_layers_and_ropes(head: Path) -> None:
    target, checkpoint = target_of(head), Checkpoint.read(head)
    variants = [
        v for r in READINGS if "eagle3" in r.methods for v in r.variants(checkpoint, target)
    ]
    written = [v.head.config for v in variants]
    taps = [c[planted_faults.IDS] for c in written if planted_faults.IDS in c]
    assert taps == [[3, 5, 6], [1, 3, 4]]  # the inputs of layers 2, 4 and 5, off by one
    bases = [c["rope_theta"] for c in written if c.get("rope_parameters")]
    assert bases == [5e5, 1e5, 1e6]  # the target's, then others
    assert next(c["norm_before_residual"] for c in written if "norm_before_residual" in c) is True


def test_a_changed_checkpoint_keeps_what_was_not_changed(head: Path, tmp_path: Path) -> None:
    stored = {n: t.bfloat16() if t.is_floating_point() else t
              for n, t in load_file(head / "model.safetensors").items()}  # fmt: skip
    save_file(stored, head / "model.safetensors")
    (head / "tokenizer.json").write_text("{}")
    changed = Checkpoint.read(head).with_tensors(
        {"norm.weight": np.full(HIDDEN, 1.5, np.float32), "t2d": None}
    )
    written = load_file(changed.write(tmp_path / "written") / "model.safetensors")
    assert written.pop("norm.weight").eq(1.5).all()
    assert written.keys() == stored.keys() - {"norm.weight", "t2d"}
    for name, tensor in written.items():
        assert tensor.dtype == stored[name].dtype and torch.equal(tensor, stored[name])
    assert (tmp_path / "written/tokenizer.json").read_text() == "{}"
    linked = Checkpoint.read(head).with_config({"rope_theta": 7.0}).write(tmp_path / "l", link=True)
    assert (linked / "model.safetensors").is_symlink()
    assert json.loads((linked / "config.json").read_text())["rope_theta"] == 7.0
