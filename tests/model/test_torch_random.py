"""Random operators: their generator, and the distributions of their numbers.

The numbers are not those of PyTorch, so they are compared with Philox written in NumPy, and with
the distributions.
"""

# Lambdas take tensors; what reads them does not say so.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import erf, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

import blockwright as bw

COUNT = 20_000
N = Dim("n", min=2, max=COUNT)


class Model(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.function(*tensors)


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox 4x32-10 word by word, as in the paper: with Python's integers."""
    for _ in range(10):
        left, right = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            (right >> 32) ^ counter[1] ^ key[0],
            right % 2**32,
            (left >> 32) ^ counter[3] ^ key[1],
            left % 2**32,
        ]
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    return counter


def words(count: int, seed: int, position: int) -> np.ndarray[Any, Any]:
    """The first words of an operator at a position of the generator."""
    key, last = [seed % 2**32, seed >> 32], [position % 2**32, position >> 32]
    blocks = [philox([k, 0, *last], key) for k in range(-(-count // 4))]
    return np.array(blocks, np.uint32).reshape(-1)[:count]


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000",
         "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
         "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
         "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)  # fmt: skip
def test_philox_has_the_published_answers(counter: str, key: str, expected: str) -> None:
    from blockwright.ops.random_bits import philox as vectorized

    given, cipher, wanted = ([int(w, 16) for w in t.split()] for t in (counter, key, expected))
    assert philox(given, cipher) == wanted
    assert vectorized(np.array(given, np.uint32), (cipher[0], cipher[1])).tolist() == wanted


# --------------------------------------------------------------------------------------- generator
def draws(x: torch.Tensor) -> Any:
    return torch.rand_like(x), torch.rand(3, 5, dtype=torch.float64), torch.randint(-3, 9, (7,))


@pytest.fixture(scope="module")
def drawing() -> Any:
    return bw.compile(Model(draws), (torch.zeros(9),), dynamic_shapes=(({0: N},),))


def expected_draws(count: int, seed: int, call: int) -> list[np.ndarray[Any, Any]]:
    """What `draws` returns in its call number `call`: it has three random operators."""
    single = words(count, seed, 3 * call) >> np.uint32(8)
    double = words(30, seed, 3 * call + 1).view(np.uint64) >> np.uint64(11)
    whole = words(14, seed, 3 * call + 2).view(np.uint64) % np.uint64(12)
    return [
        single.astype(np.float32) * np.float32(2**-24),
        (double.astype(np.float64) * 2.0**-53).reshape(3, 5),
        whole.astype(np.int64) - 3,
    ]


@pytest.mark.parametrize("seed", [0, 0x0123_4567_89AB_CDEF])
def test_numbers_are_those_of_philox(drawing: Any, seed: int) -> None:
    drawing.seed(seed)
    for call, count in enumerate((9, 2, 50)):
        found = drawing(torch.zeros(count))
        for ours, wanted in zip(found, expected_draws(count, seed, call), strict=True):
            np.testing.assert_array_equal(ours.numpy(), wanted)
    assert drawing.state["$random"].tolist() == [seed, 9]


def test_a_seed_repeats_the_numbers_of_an_executable_its_copy_and_its_artefact(
    drawing: Any, tmp_path: Path
) -> None:
    x = torch.zeros(100)
    drawing.seed(5)
    drawing(x)
    ahead = drawing.copy()
    expected = drawing(x)[0]
    assert torch.equal(ahead(x)[0], expected)
    assert not torch.equal(drawing(x)[0], expected)
    drawing.save(tmp_path / "draws.bwx")
    loaded = bw.load(tmp_path / "draws.bwx")
    loaded.seed(5)
    loaded(x)
    assert torch.equal(torch.as_tensor(loaded(x)[0]), expected)
    drawing.reset_state()
    assert torch.equal(drawing(x)[0], torch.from_numpy(expected_draws(100, 0, 0)[0]))


@pytest.mark.parametrize("target", ["x86-64-v2", "native"])
def test_numbers_depend_neither_on_the_target_nor_on_threads(target: str) -> None:
    model = Model(lambda x: (torch.rand_like(x), torch.randint_like(x, 1000), F.dropout(x, 0.3)))
    x = torch.ones(300, 41)
    exe = bw.compile(model, (x,), target=target)
    found: list[Any] = []
    for threads in (1, 2):
        bw.set_num_threads(threads)
        exe.seed(11)
        found.append(exe(x))
    for one, two in zip(*found, strict=True):
        assert torch.equal(one, two)
    single = words(x.numel(), 11, 0) >> np.uint32(8)
    wanted = (single.astype(np.float32) * np.float32(2**-24)).reshape(x.shape)
    np.testing.assert_array_equal(found[0][0].numpy(), wanted)


def test_functions_share_one_generator() -> None:
    x = torch.zeros(8)
    exe = bw.compile(
        {"a": Model(torch.rand_like), "b": Model(torch.rand_like)}, {"a": (x,), "b": (x,)}
    )
    exe.seed(3)
    found = [exe[name](x) for name in ("a", "b", "a")]
    for position, numbers in enumerate(found):
        wanted = (words(8, 3, position) >> np.uint32(8)).astype(np.float32) * np.float32(2**-24)
        np.testing.assert_array_equal(numbers.numpy(), wanted)


def test_what_cannot_be_seeded_is_refused(drawing: Any) -> None:
    with pytest.raises(bw.StateError, match=r"BW851.*does not fit"):
        drawing.seed(2**63)
    plain = bw.compile(Model(torch.neg), (torch.zeros(3),))
    with pytest.raises(bw.StateError, match=r"BW851.*no random operators"):
        plain.seed(1)


def test_impossible_distributions_are_refused() -> None:
    with pytest.raises(bw.ImporterError, match=r"BW514.*probability 1\.5"):
        bw.compile(Model(lambda x: torch.ops.aten.bernoulli.p(x, 1.5)), (torch.zeros(3),))


# ----------------------------------------------------------------------------------- distributions
def distance(sample: Any, distribution: Callable[[Any], Any]) -> float:
    """The statistic of Kolmogorov and Smirnov: the largest distance of distribution functions."""
    ordered = np.sort(np.asarray(sample, np.float64).reshape(-1))
    steps = np.arange(len(ordered) + 1) / len(ordered)
    wanted = distribution(ordered)
    return float(max(np.max(steps[1:] - wanted), np.max(wanted - steps[:-1])))


def normal(x: Any) -> Any:
    return np.array([(1 + erf(v / sqrt(2))) / 2 for v in x])


def exponential(x: Any) -> Any:
    return 1 - np.exp(-2 * x)


CONTINUOUS: dict[str, Any] = {
    "uniform": (lambda x: torch.empty_like(x).uniform_(-1, 3), lambda v: (v + 1) / 4),
    "double": (lambda x: torch.rand_like(x, dtype=torch.float64), lambda v: v),
    "normal": (torch.randn_like, normal),
    "wide normal": (lambda x: torch.randn_like(x, dtype=torch.float64), normal),
    "moved normal": (lambda x: torch.normal(x + 2, 3.0), lambda v: normal((v - 2) / 3)),
    "in place": (lambda x: torch.empty_like(x).normal_(1, 2), lambda v: normal((v - 1) / 2)),
    "exponential": (lambda x: torch.empty_like(x).exponential_(2), exponential),
}


def test_continuous_distributions() -> None:
    """One in a thousand samples of a right distribution is further off than 1.95 / √n."""
    x = torch.zeros(COUNT)
    exe = bw.compile(Model(lambda x: [draw(x) for draw, _ in CONTINUOUS.values()]), (x,))
    samples = exe(x)
    for name, sample in zip(CONTINUOUS, samples, strict=True):
        assert distance(sample, CONTINUOUS[name][1]) < 1.95 / sqrt(COUNT), name
    for first, second in pairwise(samples):
        together = np.corrcoef(first.numpy(), second.numpy())[0, 1]
        assert abs(together) < 4 / sqrt(COUNT)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_have_their_own_steps(dtype: torch.dtype) -> None:
    x = torch.zeros(COUNT, dtype=dtype)
    uniform, gauss = bw.compile(Model(lambda x: (torch.rand_like(x), torch.randn_like(x))), (x,))(x)
    assert uniform.dtype is gauss.dtype is dtype
    digits = {torch.float16: 11, torch.bfloat16: 8}[dtype]
    assert torch.equal(uniform.float() * 2**digits % 1, torch.zeros(COUNT))
    assert 0 <= uniform.min() < uniform.max() < 1
    assert abs(uniform.float().mean() - 0.5) < 4 * sqrt(1 / 12 / COUNT) + 2.0**-digits
    assert abs(gauss.float().mean()) < 4 / sqrt(COUNT)
    assert abs(gauss.float().std() - 1) < 4 / sqrt(2 * COUNT)


def assert_frequencies(sample: Any, wanted: Any) -> None:
    """Counts of 0, 1, … are within five standard deviations of what the probabilities say."""
    counts = np.bincount(np.asarray(sample).astype(np.int64).reshape(-1), minlength=len(wanted))
    probability = np.asarray(wanted, np.float64)
    total = counts.sum()
    spread = np.sqrt(total * probability * (1 - probability))
    assert len(counts) == len(wanted)
    assert (np.abs(counts - total * probability) <= 5 * spread).all()


def test_discrete_distributions() -> None:
    weights = torch.tensor([0.5, 0.0, 2.0, 1.5])

    def discrete(x: torch.Tensor, weights: torch.Tensor) -> Any:
        return (
            torch.randint(5, x.shape),
            torch.randint_like(x, 2, 6) - 2,
            torch.bernoulli(x + 0.25),
            torch.empty_like(x).bernoulli_(0.1),
            torch.multinomial(weights.expand(COUNT, 4), 1),
            torch.multinomial(weights, COUNT, replacement=True),
            torch.multinomial(weights.expand(COUNT, 4), 3),
            torch.randint(-(2**63), 2**63 - 1, x.shape),
            torch.bernoulli(x), torch.bernoulli(x + 1),
        )  # fmt: skip

    x = torch.zeros(COUNT)
    found = bw.compile(Model(discrete), (x, weights))(x, weights)
    fifth, quarter, bits, tenth, once, again, without, all_bits, never, always = found
    assert_frequencies(fifth, [0.2] * 5)
    assert_frequencies(quarter, [0.25] * 4)
    assert_frequencies(bits, [0.75, 0.25])
    assert_frequencies(tenth, [0.9, 0.1])
    for sample in (once, again, without[:, 0]):
        assert_frequencies(sample, [0.125, 0, 0.5, 0.375])
    assert (without.sort(1).values == torch.tensor([0, 2, 3])).all()
    for bit in range(64):
        assert_frequencies((all_bits >> bit) & 1, [0.5, 0.5])
    assert not never.any() and always.all()  # noqa: PT018


def test_permutations_for_any_length() -> None:
    exe = bw.compile(
        Model(lambda x: torch.randperm(x.shape[0])), (torch.zeros(6),), dynamic_shapes=(({0: N},),)
    )
    for count in (2, 6, 1000):
        assert torch.equal(exe(torch.zeros(count)).sort().values, torch.arange(count))
    orders = [tuple(exe(torch.zeros(3)).tolist()) for _ in range(600)]
    known = {order: number for number, order in enumerate(sorted(set(orders)))}
    assert_frequencies([known[order] for order in orders], [1 / 6] * 6)


# ------------------------------------------------------------------------------------------ dropout
def test_dropout_in_training() -> None:
    x = torch.rand(COUNT // 20, 20) + 1
    images = x.reshape(-1, 20, 2, 2)
    normal = torch.randn(COUNT)

    def model(x: torch.Tensor, images: torch.Tensor, normal: torch.Tensor) -> Any:
        return (
            F.dropout(x, 0.25, training=True),
            *torch.ops.aten.native_dropout(x, 0.5, True),
            F.dropout2d(images, 0.25, training=True),
            F.alpha_dropout(normal, 0.25, training=True),
            F.dropout(x, 1.0, training=True),
            F.dropout(x, 0.0, training=True),
            torch.ops.aten.native_dropout(x, 0.5, False)[0],
        )

    found = bw.compile(Model(model), (x, images, normal))(x, images, normal)
    dropped, native, mask, channels, alpha, nothing, everything, same = found
    kept = dropped != 0
    assert_frequencies(kept, [0.25, 0.75])
    torch.testing.assert_close(dropped, x / 0.75 * kept)
    assert mask.dtype is torch.bool
    assert_frequencies(mask, [0.5, 0.5])
    torch.testing.assert_close(native, 2 * x * mask)
    whole = (channels != 0).reshape(-1, 4)
    assert torch.equal(whole.all(1), whole.any(1))
    torch.testing.assert_close(channels, images / 0.75 * (channels != 0))
    assert abs(alpha.mean()) < 5 / sqrt(COUNT)
    assert abs(alpha.std() - 1) < 0.03
    assert not nothing.any()
    assert torch.equal(everything, x)
    assert torch.equal(same, x)


def test_a_model_in_training_mode_is_still_compiled_for_inference() -> None:
    """Random numbers are drawn only where the program says so."""
    model, x = nn.Sequential(nn.Dropout(0.5)).train(), torch.ones(50)
    with pytest.warns(bw.BlockwrightWarning, match="BW511|training mode"):
        assert torch.equal(bw.compile(model, (x,))(x), x)
    exe = bw.compile(torch.export.export(model.train(), (x,)))
    assert set(exe(x).tolist()) == {0.0, 2.0}
