"""Results of bench/e2e/compare: medians, ratios, verdicts, files, the picture."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from compare import report, speedups
from compare.results import Contestant, Result, Sample, digest, make_rows, make_verdicts

from conftest import ROOT
from fake_contestants import OURS, OURS_FAST, PEER, PEER_FAST


def sample(contestant: Contestant, seconds: float, **fields: Any) -> Sample:
    values: dict[str, Any] = {
        "workload": "chat",
        "batch": 1,
        "call": 0,
        "repeat": 0,
        "num_tokens": 100,
        "first_token_seconds": None,
        "num_accepted": None,
        "foreign_cores": 0.0,
        "digest": "same",
        "peak_bytes": 1 << 20,
        **fields,
    }
    return Sample(contestant=contestant, seconds=seconds, **values)


def test_rows_hold_medians_of_quiet_samples_by_prompt() -> None:
    samples = [sample(OURS, s, call=0, first_token_seconds=0.5) for s in (1.0, 9.0, 2.0)]
    samples += [sample(OURS, s, call=1, first_token_seconds=1.5) for s in (3.0, 4.0, 5.0)]
    samples.append(sample(OURS, 0.001, call=1, foreign_cores=0.5))
    result = Result({"model": "m"}, samples=samples, max_foreign_cores=0.1)
    result.weight_bytes, result.bandwidths = {"bf16": 1e9}, [50e9, 100e9, 60e9]
    (row,) = make_rows(result)
    assert row.tokens_per_s == pytest.approx(200 / (2.0 + 4.0))
    assert row.first_token_ms == pytest.approx(1000.0)
    assert row.decode_tokens_per_s == pytest.approx(198 / (6.0 - 2.0))
    assert row.of_bandwidth == pytest.approx(198 / 4.0 / 60)
    assert (row.num_samples, row.num_noisy) == (3, 1)


def test_ratios_and_verdicts() -> None:
    samples = [
        sample(OURS, 1.0, call=0, first_token_seconds=0.02),
        sample(OURS, 1.0, call=1, first_token_seconds=0.02),
        sample(OURS_FAST, 0.2, call=0, num_accepted=60),
        sample(OURS_FAST, 1.25, call=1, num_accepted=0, digest="other"),
        sample(PEER, 2.0, call=0, first_token_seconds=0.05),
        sample(PEER, 3.0, call=1, first_token_seconds=0.05),
        sample(PEER_FAST, 0.5, call=0),
        sample(PEER_FAST, 1.5, call=1),
    ]
    result = Result({"model": "m"}, samples=samples)
    rows = {row.contestant: row for row in make_rows(result)}
    fast = rows[OURS_FAST]
    assert fast.times_plain == pytest.approx(2.0 / 1.45)
    assert fast.worst_times_plain == pytest.approx(0.8)
    assert fast.tokens_per_step == pytest.approx(200 / 140)
    assert fast.same_as_plain is False
    assert rows[PEER_FAST].same_as_plain is True
    assert rows[PEER].ours_over_it == pytest.approx(2.5)
    assert rows[PEER_FAST].ours_over_it == pytest.approx(2.0 / 1.45)
    verdicts = {v.kind: v.ratio for v in make_verdicts(list(rows.values()))}
    assert verdicts == {
        "plain": pytest.approx(2.5),
        "best speculation": pytest.approx(2.0 / 1.45),
        "first token": pytest.approx(2.5),
    }
    assert "| NO " in report.render(result)


def test_plain_decoding_that_does_not_repeat_itself_is_not_the_same() -> None:
    samples = [sample(OURS, 1.0, digest="a"), sample(OURS, 1.0, digest="b", repeat=1)]
    (row,) = make_rows(Result({"model": "m"}, samples=samples))
    assert row.same_as_plain is False


def test_precisions_are_compared_with_their_own_kind() -> None:
    int8 = dataclasses.replace(PEER, precision="int8")
    rows = make_rows(Result({"model": "m"}, samples=[sample(OURS, 1.0), sample(int8, 2.0)]))
    assert [row.ours_over_it for row in rows if row.contestant == int8] == [None]
    assert make_verdicts(rows) == []


def test_instruction_sets_are_compared_with_their_own_kind() -> None:
    ours, peer = (dataclasses.replace(c, isa="avx2") for c in (OURS, PEER))
    samples = [sample(OURS, 1.0), sample(PEER, 2.0), sample(ours, 3.0), sample(peer, 4.5)]
    result = Result({"model": "m"}, samples=samples)
    rows = {str(row.contestant): row for row in make_rows(result)}
    assert rows["peer:plain:bf16"].ours_over_it == pytest.approx(2.0)
    assert rows["peer:plain:bf16:avx2"].ours_over_it == pytest.approx(1.5)
    ratios = {v.kernels: v.ratio for v in make_verdicts(list(rows.values()))}
    assert ratios == {"bf16": pytest.approx(2.0), "bf16, avx2": pytest.approx(1.5)}
    assert "bf16, avx2, chat, batch 1" in report.render(result)
    assert Result.from_json(report.to_json(result)) == result


def test_results_are_read_back_and_put_together(tmp_path: Path) -> None:
    first = Result({"model": "m"}, samples=[sample(OURS, 1.0)], absent={"peer": ["get it"]})
    report.write_json(first, tmp_path / "a.json")
    again = report.read_json(tmp_path / "a.json")
    assert again == first
    again.add(Result({"model": "m"}, samples=[sample(PEER, 2.0)], versions={"peer": "2"}))
    assert [row.ours_over_it for row in make_rows(again)] == [1.0, 2.0]
    assert again.absent == {}
    with pytest.raises(ValueError, match="different models"):
        again.add(Result({"model": "other"}))


def test_digests_tell_answers_apart() -> None:
    assert digest([[1, 2], [3]]) == digest([(1, 2), (3,)])
    assert len({digest([[1, 2], [3]]), digest([[1], [2, 3]]), digest([[1, 2, 3]])}) == 3


def test_the_picture_of_the_readme_shows_what_was_measured(tmp_path: Path) -> None:
    folder = ROOT / "bench" / "results" / "cpu" / "zen5"
    for cell in speedups.SPECULATION:
        rows = json.loads((folder / f"{cell.file}.json").read_text())["rows"]
        ours = [row for row in rows if row["contestant"]["peer"] == "specdec"]
        best = max(row["times_plain"] for row in ours if row["workload"] == cell.workload)
        assert speedups.speculation_bar(cell, folder).ratio == pytest.approx(best)
    speedups.draw(folder, tmp_path / "again.svg")
    words = [
        re.findall(r"<text.*?>(.*?)</text>", file.read_text(), re.DOTALL)
        for file in (folder / "speedups.svg", tmp_path / "again.svg")
    ]
    assert words[0] == words[1]
    assert any("2.49 x" in text for text in words[0])
