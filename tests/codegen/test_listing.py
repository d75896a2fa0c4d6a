"""What is shown as the assembly of a function: its own code, and nothing of the entry around it."""

from __future__ import annotations

import re

import pytest

import blockwright as bw
from blockwright.codegen.listing import own_code

SCALED = """
@T.prim_func
def scaled(a: T.Buffer((4096,), "float32"), b: T.Buffer((4096,), "float32")):
    for i in T.parallel(64):
        for j in range(64):
            with T.block("b"):
                vi = T.axis.spatial(4096, i * 64 + j)
                b[vi] = T.exp(a[vi]) * T.float32(0.37)
"""
NAMED = re.compile(r'"[^"]+"|[\w.$]+')
LABEL = re.compile(r'^("[^"]+"|[\w.$]+):', re.MULTILINE)


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4", "aarch64"])
def test_the_code_of_a_function_is_whole_and_without_its_entry(target: str) -> None:
    module = bw.build(bw.from_source(SCALED), target=target)
    complete, shown = module.source("asm", complete=True), module.source("asm", "scaled")
    assert len(shown.splitlines()) < len(complete.splitlines()) / 2
    assert "bw.scaled:" in shown
    assert "__tvm_ffi_scaled" in complete
    assert "BW701" in complete
    for absent in ("__tvm_ffi_scaled", "BW7", "bw_kind_name", "bw_dtype_name"):
        assert absent not in shown
    # What the kept code refers to is kept with it: constants, jump tables, the parallel body.
    defined = set(LABEL.findall(complete))
    assert {name for name in NAMED.findall(shown) if name in defined} <= set(LABEL.findall(shown))
    assert ".LCPI" in shown or target == "aarch64"
    assert len(LABEL.findall(shown)) == len(set(LABEL.findall(shown)))


def test_instructions_are_those_of_the_complete_text() -> None:
    module = bw.build(bw.from_source(SCALED), target="x86-64-v3")
    complete, shown = module.source("asm", complete=True), module.source("asm")
    body = complete.split("\nbw.scaled:\n")[1].split("\n\t.size")[0]
    assert body in shown


def test_text_without_that_function_is_shown_as_it_is() -> None:
    text = "\t.text\n\t.globl\tmain\n\t.type\tmain,@function\nmain:\n\tretq\n\t.size\tmain, 1\n"
    assert own_code(text, "bw.other") == text
