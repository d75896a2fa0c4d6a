"""Buffers that a model rebinds: the old tensor keeps its elements, as in Python."""

from __future__ import annotations

import pytest
import torch

import blockwright as bw


class _Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("p", torch.tensor([1.0, 2.0, 3.0]))
        self.register_buffer("c", torch.tensor([4.0, 5.0, 6.0]))


class DelayLine(_Model):
    """The oldest sample, a view, is returned."""

    def forward(self, x):
        oldest = self.p[0]
        self.p = torch.cat([self.p[1:], x[:1]])
        return oldest


class Previous(_Model):
    def forward(self, x):
        previous = self.p
        self.p = previous * 0.5 + x
        return self.p, previous


class Swapped(_Model):
    """The new value of one buffer is the old value of another that is rebound first."""

    def forward(self, x):
        old = self.c.view(3)
        self.c = x * 2
        self.p = old.view(3)
        return self.p + self.c


class InPlaceFirst(_Model):
    def forward(self, x):
        old = self.p
        old.add_(x)
        part = old[:2]
        self.p = old * 2
        old.mul_(3)
        return part, self.p


class ReboundTwice(_Model):
    def forward(self, x):
        first = self.p
        self.p = first + x
        second = self.p
        self.p = second * 2
        return first, second, self.p


class Transposed(_Model):
    def forward(self, x):
        old = self.p.view(3, 1)
        self.p = self.p - x
        return old.t(), old.sum()


@pytest.mark.parametrize(
    "kind", [DelayLine, Previous, Swapped, InPlaceFirst, ReboundTwice, Transposed]
)
def test_old_tensors_of_rebound_buffers_keep_their_elements(kind):
    compiled, model = bw.compile(kind().eval(), (torch.ones(3),)), kind().eval()
    for step in range(1, 5):
        x = torch.full((3,), float(step))
        found, wanted = compiled(x.clone()), model(x.clone())
        if not isinstance(wanted, tuple):
            found, wanted = (found,), (wanted,)
        for a, b in zip(found, wanted, strict=True):
            assert torch.equal(torch.as_tensor(a), b)


class Kept(_Model):
    def forward(self, x):
        self.p = x
        return self.c + x


def test_a_buffer_bound_to_an_input_is_refused_with_the_remedy():
    with pytest.raises(bw.BlockwrightError, match=r"BW509[\s\S]*self\.buffer = x\.clone\(\)"):
        bw.compile(Kept().eval(), (torch.ones(3),))
