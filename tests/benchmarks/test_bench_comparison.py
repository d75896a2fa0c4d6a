"""What a comparison concludes: the best peer, what is wanted, which bounds are missed."""

from __future__ import annotations

import math
import xml.etree.ElementTree as xml
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.cases import Case
from benchmarks.comparison import Column, Result, relative_error
from benchmarks.harness import Timing
from benchmarks.report import markdown, missed, plot, row, summary


def column(engine: str, milliseconds: float, memory_format: str = "contiguous") -> Column:
    timing = Timing((milliseconds / 1e3,), calls=1, idle_share=0.0)
    return Column(engine, memory_format, timing=timing, error=1e-6, compile_s=1.0, memory=2**20)


def result(
    *columns: Column, limit: float | None = None, flops: float = 1e6, model: bool = False
) -> Result:
    case = Case("C2D & more", "operators.convolution", (), limit=limit, model=model)
    return Result(case, columns, flops, 1000, 1e9, 1e9, drift=0.01, others=0.0)


def test_the_best_peer_counts_in_its_better_memory_format() -> None:
    found = result(
        column("blockwright", 2.0), column("torch", 8.0), column("torch", 4.0, "channels_last")
    )
    assert found.best is not None
    assert found.best.title == "torch, channels_last"
    assert found.ratio == pytest.approx(0.5)
    assert found.score == pytest.approx(2.0 / 3.6)  # the roofline, 1 ms, asks for less


def test_near_the_roofline_no_more_is_asked_for() -> None:
    found = result(column("blockwright", 1.05), column("torch", 1.0))
    assert found.roofline == pytest.approx(1e-3)
    assert found.score == pytest.approx(1.05 * 0.92)
    assert not missed([found])


def test_a_bound_of_a_case_is_on_the_raw_ratio() -> None:
    found = result(column("blockwright", 1.05), column("torch", 1.0), limit=0.8)
    assert missed([found]) == ["C2D & more: 1.05 of the best peer's time is above 0.8"]


def test_slow_cases_miss_twice_alone_and_in_the_mean() -> None:
    slow = result(column("blockwright", 9.0), column("torch", 4.0))
    assert [problem.split()[-3:-2] for problem in missed([slow])] == [["is"], ["is"]]


def test_a_model_that_takes_longer_to_compile_than_by_torch_compile_is_a_miss() -> None:
    ours, inductor = column("blockwright", 1.0), column("inductor", 2.0)
    assert not missed([result(ours, inductor, column("openvino", 2.0), model=True)])
    ours.compile_s = 12.5
    assert missed([result(ours, inductor, model=True)]) == [
        "C2D & more: compiled in 12.5 s, by torch.compile in 1.0 s"
    ]
    assert not missed([result(ours, inductor)])  # one operator
    openvino = column("openvino", 2.0)  # compiles next to nothing
    assert not missed([result(ours, openvino, model=True)])


def test_a_second_compilation_object_code_and_exactness_have_bounds() -> None:
    ours = column("blockwright", 1.0)
    ours.warm_s, ours.direct_error, ours.about = 7.9, 2e-7, {"code_bytes": 2_900_000}
    found = result(ours, column("torch", 2.0))
    found = replace(found, case=replace(found.case, code_limit=3_000_000))
    assert not missed([found])
    assert "| 7.9 s | 2900 kB |" in markdown([found])
    ours.warm_s, ours.direct_error, ours.about = 8.1, 9e-8, {"code_bytes": 3_100_000}
    assert missed([found]) == [
        "C2D & more: compiled again in 8.1 s, bound 8 s",
        "C2D & more: 3100 kB of object code, bound 3000 kB",
        "C2D & more: 11 times the error of the plain sum, bound 10",
    ]


def test_what_runs_through_a_library_is_marked_and_does_not_count() -> None:
    ours = column("blockwright", 1.0)
    ours.about = {"external": ["cblas_sgemm"]}
    found = result(ours, column("torch", 2.0))
    assert found.ratio is None
    assert found.score is None
    assert row(found, 12).endswith("not counted, runs through cblas_sgemm")
    assert missed([found]) == ["C2D & more: not counted, it runs through cblas_sgemm"]
    assert summary([found]) == "0 of 1 cases"


def test_what_the_cost_model_expects_stands_beside_what_was_measured() -> None:
    ours = column("blockwright", 2.0)
    ours.about = {"expected_s": 1.5e-3}
    found = result(ours, column("torch", 4.0))
    assert found.as_json()["expected"] == pytest.approx(0.75)
    assert "| 0.75 | 1.0 s |" in markdown([found]).splitlines()[2]


def test_what_we_cannot_do_is_shown_and_is_a_miss() -> None:
    ours = Column("blockwright", status="unsupported: error[BW501]: operator x is not covered")
    found = result(ours, column("torch", 4.0))
    assert found.ratio is None
    assert "BW501" in row(found, 12)
    assert missed([found]) == ["C2D & more: unsupported: error[BW501]: operator x is not covered"]
    assert summary([found]) == "0 of 1 cases"


def test_a_peer_that_failed_is_no_peer() -> None:
    wrong = Column("openvino", status="wrong: error 4e-3 is above 1e-4", error=4e-3)
    assert result(column("blockwright", 1.0), wrong).best is None
    found = result(column("blockwright", 1.0), wrong, column("torch", 2.0))
    assert found.best is not None
    assert found.best.engine == "torch"
    assert found.as_json()["columns"][1]["status"].startswith("wrong")


def test_errors_are_relative_to_the_largest_value() -> None:
    reference = np.array([0.0, -4.0])
    assert relative_error(np.array([1e-3, -4.0]), reference) == pytest.approx(2.5e-4)
    assert relative_error(np.zeros(3), reference) == math.inf
    assert math.isnan(relative_error(np.array([math.nan, 1.0]), reference))


def test_the_plot_is_a_picture_with_every_case() -> None:
    ours = Column("blockwright", status="unsupported: error[BW501]: no")
    cases = [result(column("blockwright", 2.0), column("torch", 4.0)), result(ours)]
    texts = [element.text for element in xml.fromstring(plot("operators", cases)).iter()]
    assert texts.count("C2D & more") == 2
    assert "0.50 (torch)" in texts
    assert "no result" in texts
