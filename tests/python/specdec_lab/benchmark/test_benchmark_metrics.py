"""Figures of `bench`: against closed formulas, NumPy and other implementations of a definition."""

from __future__ import annotations

import json
import math
import random
import statistics
from pathlib import Path

import numpy as np
import pytest

from specdec_lab.benchmark import serving_chart
from specdec_lab.benchmark.answers import Acceptance, Answer, Question
from specdec_lab.benchmark.comparison import compare, quantile, ratio_of
from specdec_lab.benchmark.load_run import Load, Result, Turn
from specdec_lab.benchmark.metrics import Times, by_category, is_good, metrics_of
from specdec_lab.benchmark.serving_report import count_errors, make_report


def answer(
    sent: float,
    *arrivals: float,
    tokens: int = 0,
    category: str = "x",
    text: str = "",
    acceptance: Acceptance | None = None,
) -> Answer:
    question = Question(category, "p", 9)
    return Answer(question, sent, list(arrivals), 5, tokens, text, acceptance, 200)


def failed(status: int | None, error: str) -> Answer:
    return Answer(Question("x", "p", 9), 0.0, status=status, error=error)


def test_times_of_one_answer() -> None:
    one = answer(10.0, 10.5, 11.0, 13.0, tokens=6)
    assert one.ttft == 0.5 and one.latency == 3.0 and one.itls == [0.5, 2.0]
    assert one.tpot == pytest.approx(2.5 / 5)
    assert answer(10.0, 10.5, tokens=1).tpot is None


def test_percentiles_are_those_of_ranks() -> None:
    """0, 1, ... 100 ms in any order: the p-th percentile is p ms."""
    seconds = [i / 1000 for i in range(101)]
    random.Random(1).shuffle(seconds)
    times = Times.of(seconds)
    assert times is not None
    assert times.percentiles == pytest.approx({50: 50.0, 90: 90.0, 99: 99.0})
    assert times.mean == pytest.approx(50.0)
    assert times.std == pytest.approx(math.sqrt((101**2 - 1) / 12))
    assert Times.of([]) is None


def test_figures_of_several_answers() -> None:
    answers = [
        answer(0.0, 0.1, 0.2, 0.5, tokens=5),
        answer(1.0, 1.3, tokens=1),
        answer(2.0, 2.2, 3.2, tokens=3),
        failed(503, "full"),
    ]
    metrics = metrics_of(answers, 4.0, {})
    assert (metrics.completed, metrics.failed) == (3, 1)
    assert (metrics.num_input_tokens, metrics.num_output_tokens) == (15, 9)
    fields = metrics.to_json()
    assert fields["output_throughput"] == pytest.approx(9 / 4)
    assert fields["total_token_throughput"] == pytest.approx(24 / 4)
    assert fields["request_throughput"] == pytest.approx(3 / 4)
    expected = {
        "ttft": [100, 300, 200],
        "tpot": [100, 500],
        "itl": [100, 300, 1000],
        "e2el": [500, 300, 1200],
    }
    for name, values in expected.items():
        assert fields[f"mean_{name}_ms"] == pytest.approx(statistics.fmean(values))
        assert fields[f"std_{name}_ms"] == pytest.approx(statistics.pstdev(values))
        assert fields[f"median_{name}_ms"] == pytest.approx(statistics.median(values))
        assert fields[f"p99_{name}_ms"] == pytest.approx(np.percentile(values, 99))
    assert "request_goodput" not in fields and "spec_decode_num_drafts" not in fields


def test_nothing_was_answered() -> None:
    fields = metrics_of([failed(None, "refused")], 1.0, {"ttft": 1.0}).to_json()
    assert fields["completed"] == 0 and fields["request_goodput"] == 0
    assert "mean_ttft_ms" not in fields
    json.dumps(fields, allow_nan=False)


def test_goodput_counts_answers_within_all_limits() -> None:
    answers = [
        answer(0.0, 0.25, 0.75, tokens=2),  # 250 ms, 500 ms a token, 750 ms
        answer(0.0, 0.5, 0.75, tokens=2),  # 500, 250, 750
        answer(0.0, 0.5, tokens=1),  # 500, 0, 500
        failed(500, "broken"),
    ]
    for limits, expected in (
        ({"ttft": 250.0}, [True, False, False]),
        ({"tpot": 499.0}, [False, True, True]),
        ({"e2el": 750.0}, [True, True, True]),
        ({"ttft": 500.0, "tpot": 250.0}, [False, True, True]),
        ({"ttft": 500.0, "tpot": 250.0, "e2el": 600.0}, [False, False, True]),
    ):
        assert [is_good(one, limits) for one in answers] == [*expected, False]
        fields = metrics_of(answers, 2.0, limits).to_json()
        assert fields["request_goodput"] == sum(expected) / 2.0
        assert fields["good_share"] == sum(expected) / 4


def test_categories_have_figures_of_their_own() -> None:
    drafts = Acceptance(4, 12, 6, (4, 2))
    answers = [
        answer(0.0, 0.1, 0.3, tokens=2, category="code", acceptance=drafts),
        answer(0.0, 0.4, 0.5, tokens=2, category="chat"),
        answer(0.0, 0.2, 0.6, tokens=2, category="code", acceptance=drafts),
    ]
    found = by_category(answers, {"ttft": 150.0})
    assert list(found) == ["code", "chat"]
    code = found["code"].to_json()
    assert code["completed"] == 2 and code["mean_ttft_ms"] == pytest.approx(150)
    assert code["good_share"] == 0.5 and "output_throughput" not in code
    assert code["spec_decode_acceptance_length"] == pytest.approx(1 + 12 / 8)
    assert code["spec_decode_acceptance_rate"] == pytest.approx(50.0)
    assert code["spec_decode_per_position_acceptance_rates"] == pytest.approx([1.0, 0.5])
    assert "spec_decode_num_drafts" not in found["chat"].to_json()


def test_counters_of_a_server_go_over_its_answers() -> None:
    answers = [answer(0.0, 0.1, tokens=1, acceptance=Acceptance(1, 1, 1, (1,)))]
    metrics = metrics_of(answers, 1.0, {}, Acceptance(9, 9, 3, (3,)))
    assert metrics.acceptance == Acceptance(9, 9, 3, (3,))
    assert metrics_of(answers, 1.0, {}).acceptance == Acceptance(1, 1, 1, (1,))


def test_acceptance_is_added_and_subtracted_by_position() -> None:
    one, other = Acceptance(5, 9, 4, (3, 1)), Acceptance(2, 3, 1, (1,))
    assert one + other == Acceptance(7, 12, 5, (4, 1))
    assert one - other == Acceptance(3, 6, 3, (2, 1))
    assert (one + other) - other == one


def test_acceptance_of_an_answers_member_counts_each_kept_prefix() -> None:
    kept_by_step = [0, 2, 1, 3, 0, 2]
    member = {
        "acceptance_histogram": [kept_by_step.count(k) for k in range(5)],
        "num_spec_steps": 6,
        "num_draft_tokens": 20,
        "num_accepted_draft_tokens": sum(kept_by_step),
    }
    expected = tuple(sum(kept > i for kept in kept_by_step) for i in range(4))
    assert Acceptance.from_member(member) == Acceptance(6, 20, 8, expected)


def student_cdf(t: float, degrees: int) -> float:
    """By the trapezoidal rule over the density."""
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2))
    x = np.linspace(0, t, 200_001)
    density = scale / math.sqrt(degrees * math.pi) * (1 + x * x / degrees) ** (-(degrees + 1) / 2)
    return 0.5 + float(np.trapezoid(density, x))


@pytest.mark.parametrize("degrees", [*range(1, 31), 31, 60, 500])
def test_quantiles_are_students(degrees: int) -> None:
    assert student_cdf(quantile(degrees), degrees) == pytest.approx(0.975, abs=2e-4)


def test_a_ratio_is_the_geometric_mean_with_its_interval() -> None:
    ratio = ratio_of([2.0, 8.0, 4.0], [1.0, 1.0, 1.0])
    assert ratio is not None and ratio.mean == pytest.approx(4.0) and ratio.num_rounds == 3
    half = 4.3027 * math.log(2) / math.sqrt(3)  # the logarithms' deviation is log 2
    assert ratio.low == pytest.approx(4 * math.exp(-half))
    assert ratio.high == pytest.approx(4 * math.exp(half))
    alone = ratio_of([2.0, None], [4.0, 1.0])
    assert alone is not None and (alone.mean, alone.low, alone.num_rounds) == (0.5, None, 1)
    assert ratio_of([None, 0.0], [1.0, 1.0]) is None


def test_intervals_hold_the_true_ratio_as_often_as_they_say() -> None:
    source = np.random.default_rng(4)
    num_held = 0
    for _ in range(2000):
        figures = 1.5 * np.exp(source.normal(0, 0.3, 6))
        ratio = ratio_of(figures.tolist(), np.exp(source.normal(0, 0.2, 6)).tolist())
        assert ratio is not None and ratio.low is not None and ratio.high is not None
        num_held += ratio.low <= 1.5 <= ratio.high
    assert num_held / 2000 == pytest.approx(0.95, abs=5 * math.sqrt(0.95 * 0.05 / 2000))


def result(name: str, *turns: tuple[float, list[Answer]]) -> Result:
    return Result(name, [Turn(seconds, answers) for seconds, answers in turns])


def two_results() -> list[Result]:
    return [
        result(
            "slow",
            (2.0, [answer(0.0, 0.2, 1.2, tokens=11, text="a")]),
            (4.0, [answer(0.0, 0.4, 2.4, tokens=11, text="b")]),
        ),
        result(
            "fast",
            (1.0, [answer(0.0, 0.1, 0.6, tokens=11, text="a")]),
            (2.0, [answer(0.0, 0.2, 1.2, tokens=11, text="B")]),
        ),
    ]


def test_a_comparison_is_of_the_same_rounds() -> None:
    slow, fast = two_results()
    found = compare(fast, slow)
    assert (found.name, found.first) == ("fast", "slow")
    assert (found.num_same, found.num_compared) == (1, 2)
    expected = {"output_throughput": 2.0, "mean_ttft": 0.5, "mean_tpot": 0.5, "mean_e2el": 0.5}
    assert {name: ratio.mean for name, ratio in found.ratios.items()} == pytest.approx(expected)
    for ratio in found.ratios.values():  # the rounds agree, however different they are
        assert ratio.low == pytest.approx(ratio.mean) and ratio.high == pytest.approx(ratio.mean)


def test_errors_are_counted_by_status() -> None:
    answers = [failed(503, "full"), failed(None, "refused"), failed(503, "full"), answer(0, 1)]
    assert count_errors(answers) == {"HTTP 503: full": 2, "refused": 1}


def test_a_report_is_json_without_infinities(tmp_path: Path) -> None:
    report = make_report(two_results(), ["m", "m"], Load(), {"ttft": 300.0})
    fields = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert fields["request_rate"] == "inf" and fields["num_rounds"] == 2
    assert [server["base_url"] for server in fields["servers"]] == ["slow", "fast"]
    assert [server["duration"] for server in fields["servers"]] == [6.0, 3.0]
    assert "answers" not in fields["servers"][0]
    detailed = report.to_json(is_detailed=True)["servers"][1]["answers"][1]
    assert detailed["ttft"] == pytest.approx(0.2) and detailed["itl"] == pytest.approx([1.0])
    assert report.num_failed == 0
    for ending in (".png", ".svg"):
        serving_chart.draw(report, tmp_path / f"chart{ending}")
        assert (tmp_path / f"chart{ending}").stat().st_size > 5000


def test_a_chart_of_failures_is_drawn(tmp_path: Path) -> None:
    results = [result("a", (1.0, [failed(500, "broken")]))]
    serving_chart.draw(make_report(results, ["m"], Load(), {}), tmp_path / "chart.png")
    assert (tmp_path / "chart.png").is_file()
