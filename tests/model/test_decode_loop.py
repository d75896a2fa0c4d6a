"""Decoding with a cache that is state: tokens of eager mode, and no allocation in a step."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import blockwright as bw

VOCABULARY, SIZE, CAPACITY = 1 << 19, 8, 24
PROMPT, STEPS = [3, 1, 4, 1, 5], 16


class Decoder(nn.Module):
    """Attention over the tokens so far, whose keys and values are in buffers."""

    keys: Tensor
    values: Tensor
    length: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, SIZE), nn.Embedding(CAPACITY, SIZE)
        self.qkv = nn.Linear(SIZE, 3 * SIZE)
        self.register_buffer("keys", torch.zeros(CAPACITY, SIZE), persistent=False)
        self.register_buffer("values", torch.zeros(CAPACITY, SIZE), persistent=False)
        self.register_buffer("length", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits after the last of the new tokens."""
        at = self.length + torch.arange(tokens.shape[0])
        x = self.tokens(tokens) + self.places(at)
        q, k, v = self.qkv(x).chunk(3, -1)
        self.keys.index_copy_(0, at, k)
        self.values.index_copy_(0, at, v)
        self.length.add_(tokens.shape[0])
        seen = torch.arange(CAPACITY) <= at[:, None]
        weights = (q @ self.keys.T).masked_fill(~seen, -torch.inf).softmax(-1)
        return (x + weights @ self.values)[-1] @ self.tokens.weight.T


@pytest.fixture(scope="module")
def model() -> Decoder:
    return Decoder().eval()


@pytest.fixture(scope="module")
def compiled(model: Decoder) -> bw.CompiledModel:
    examples = {"prefill": (torch.arange(5),), "decode": (torch.arange(1),)}
    sizes = {"prefill": {"tokens": {0: Dim("n", min=2, max=CAPACITY)}}, "decode": None}
    return bw.compile({"prefill": model, "decode": model}, examples, dynamic_shapes=sizes)


@pytest.fixture(scope="module")
def wanted(model: Decoder) -> list[int]:
    """The tokens of eager mode, each from all tokens before it."""
    known = list(PROMPT)
    for _ in range(STEPS):
        with torch.no_grad():
            logits = copy.deepcopy(model)(torch.tensor(known))
        known.append(int(logits.argmax()))
    return known[len(PROMPT) :]


def test_tokens_are_those_of_eager_mode(compiled: bw.CompiledModel, wanted: list[int]) -> None:
    exe, memory = compiled.copy(), torch.empty(VOCABULARY)
    for _ in range(2):
        found: list[int] = []
        logits = exe["prefill"](torch.tensor(PROMPT))
        for _ in range(STEPS):
            found.append(int(logits.argmax()))
            logits = exe["decode"](torch.tensor(found[-1:]), out=memory)
        assert found == wanted
        assert exe.state["length"] == len(PROMPT) + STEPS
        exe.reset_state()


def test_sequences_continue_apart(compiled: bw.CompiledModel, wanted: list[int]) -> None:
    first = compiled.copy()
    first["prefill"](torch.tensor(PROMPT))
    other = first.copy()
    other["decode"](torch.tensor([7]))
    logits = first["decode"](torch.tensor(wanted[:1]))
    assert int(logits.argmax()) == wanted[1]


LOOP = """
import ctypes, json, mmap, resource, sys
import numpy as np
import blockwright as bw

path, prompt, steps, slack = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), 1 << 20
exe = bw.load(path)
decode, token = exe["decode"], np.zeros(1, "int64")
logits = np.empty(decode.signature.results[0].shape, "float32")
found = []

def step():
    token[0] = logits.argmax()
    found.append(int(token[0]))
    decode(token, out=logits)

exe["prefill"](np.array(prompt), out=logits)
step()
ctypes.CDLL(None).mallopt(-3, 1 << 16)  # M_MMAP_THRESHOLD: blocks from 64 KiB on are mapped
size = int(open("/proc/self/statm").read().split()[0]) * mmap.PAGESIZE
resource.setrlimit(resource.RLIMIT_AS, (size + slack, -1))
while len(found) < steps:
    step()
try:  # the logits alone are larger than what is left
    decode(token)
    refused = False
except (MemoryError, RuntimeError, bw.BlockwrightError):
    refused = True
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
print(json.dumps([found, refused]))
"""


def test_a_step_allocates_nothing(
    compiled: bw.CompiledModel, wanted: list[int], tmp_path: Path
) -> None:
    """It works in a process that may not grow, where a result of its own does not fit."""
    compiled.save(tmp_path / "decoder.bwx")
    command = [sys.executable, "-c", LOOP, str(tmp_path / "decoder.bwx"), json.dumps(PROMPT)]
    done = subprocess.run(
        [*command, str(STEPS)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    answer: Any = json.loads(done.stdout)
    assert answer == [wanted, True]
