"""Compile many samples as one module; split it to find those that fail."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Generator, Iterable, Sequence
from typing import Any, cast
from unittest import mock

import msgspec
import torch
from torch.utils import _pytree as pytree

from blockwright.frontend.torch import from_exported_program
from blockwright.frontend.torch.decompose import decomposed, no_node, unknown_nodes
from blockwright.frontend.torch.importer import is_known
from blockwright.frontend.torch.mutation import functional
from blockwright.frontend.torch.names import target_name
from blockwright.support import ImporterError
from fuzzing.conformance.samples import UNSPECIFIED, OperatorSample, with_gaps
from fuzzing.conformance.unspecified import free_elements
from fuzzing.eager.compare import (
    copied,
    difference,
    in_float64,
    kind_difference,
    leaves,
    same_bits,
)
from fuzzing.eager.outcome import Outcome, called, compiled, export, problem_of
from fuzzing.eager.sizes import every_size_dynamic, other_sizes

_BETWEEN_BYTES = 1e-3
"""Fraction of floats so close to the middle of two byte values that rounding errors decide."""


class SampleOutcome(msgspec.Struct, frozen=True):
    """Outcome of a sample: "passed", "export", "refused", "wrong" or "internal"."""

    what: str
    code: str = ""
    words: str = ""


class Prepared(msgspec.Struct, frozen=True, eq=False):
    """A sample of an operator with PyTorch's results.

    Attributes:
        wide: the results in float64, None if there are none.
        changed, changed_wide: the inputs after the call, which some operators change, and the same
            in float64.
        scalar: the results for special values in non-contiguous tensors, else None.
        group: label of the samples drawn together; a failing batch is split into groups first.
        settled: whether elements are deterministic (not those of random or empty tensors).
    """

    name: str
    sample: OperatorSample
    expected: Any
    wide: Any
    changed: list[torch.Tensor]
    changed_wide: list[torch.Tensor] | None
    scalar: Any
    settled: bool
    group: str = ""


_SEEDS = (2, 3, 5, 7)
"""Seeds with which results are computed again: those of a random operator differ, few random
integers not every time."""


def prepared(name: str, sample: OperatorSample, group: str = "") -> Prepared | None:
    """Run a sample in PyTorch; None if PyTorch rejects it.

    None also if its results cannot be compared: sparse or complex half-precision ones.
    """
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            torch.default_generator.manual_seed(1)
            changed = copied(sample.tensors)
            expected = sample.call(changed)
            settled = name not in UNSPECIFIED
            for seed in _SEEDS if settled else ():
                with _seeded(seed):
                    again = sample.call(copied(sample.tensors))
                settled = settled and same_bits(expected, again)
        except Exception:  # noqa: BLE001  not a valid sample
            return None
        try:
            in_wide = OperatorSample("", sample.function, *_wide((sample.args, sample.kwargs)))
            wide = sample.function(*in_wide.args, **in_wide.kwargs)
            changed_wide = in_wide.tensors
        except Exception:  # noqa: BLE001  some operators support only one type
            wide = changed_wide = None
        scalar = None
        if sample.kind == "special" and settled:
            with contextlib.suppress(RuntimeError):  # a few operators reject such strides
                scalar = sample.call([with_gaps(t) for t in sample.tensors])
    return Prepared(name, sample, expected, wide, changed, changed_wide, scalar, settled, group)


@contextlib.contextmanager
def _seeded(seed: int) -> Generator[None]:
    """Start random numbers at a seed, also where the samples of random operators set their own."""
    generator = torch.default_generator.manual_seed(seed)
    with mock.patch.object(torch, "manual_seed", return_value=generator):
        yield


def _wide(value: Any) -> Any:
    narrow = (torch.float32, torch.float16, torch.bfloat16)

    def change(leaf: Any) -> Any:
        return torch.float64 if isinstance(leaf, torch.dtype) and leaf in narrow else leaf

    return pytree.tree_map(change, in_float64(value))


class SampleResults(torch.nn.Module):
    """A module that returns the results of one sample."""

    def __init__(self, sample: OperatorSample) -> None:
        super().__init__()
        self.sample = sample
        self.count = len(sample.tensors)

    def forward(self, *tensors: torch.Tensor) -> list[Any]:
        return leaves(self.sample.call(list(tensors)))


class Batch(torch.nn.Module):
    """A module that returns the results of several samples in order.

    Each sample is a submodule, so that exported nodes name the sample they belong to.
    """

    def __init__(self, samples: Sequence[OperatorSample]) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(SampleResults(sample) for sample in samples)

    def forward(self, *tensors: torch.Tensor) -> list[Any]:
        results: list[Any] = []
        start = 0
        for part in cast("Iterable[SampleResults]", self.parts):
            results.append(part(*tensors[start : start + part.count]))
            start += part.count
        return results


def judged(batch: list[Prepared], dynamic: bool = False) -> list[SampleOutcome]:
    """The outcome of each sample."""
    result = _attempt(batch, dynamic)
    if not isinstance(result, Outcome):
        return result
    if len(batch) == 1:
        return [SampleOutcome(result.what, result.code, result.words)]
    groups = [list(g) for _, g in itertools.groupby(batch, lambda p: p.group)]
    if len(groups) > 1:
        return [outcome for group in groups for outcome in judged(group, dynamic)]
    alone = [None] * len(batch) if result.code != "BW501" else _uncovered(batch, dynamic)
    if not any(alone):
        alone = [importable(p, dynamic) for p in batch]
    kept = [p for p, problem in zip(batch, alone, strict=True) if problem is None]
    if len(kept) == len(batch):
        half = len(batch) // 2
        return [*judged(batch[:half], dynamic), *judged(batch[half:], dynamic)]
    rest = iter(judged(kept, dynamic) if kept else [])
    return [
        next(rest) if problem is None else SampleOutcome(problem.what, problem.code, problem.words)
        for problem in alone
    ]


def _uncovered(batch: list[Prepared], dynamic: bool) -> list[Outcome | None]:
    """The unsupported operators of each sample, found by one decomposition of all."""
    program = _exported(batch, dynamic)
    result: list[Outcome | None] = [None] * len(batch)
    try:
        missing = unknown_nodes(decomposed(functional(program), is_known), is_known)
    except ImporterError:  # some sample cannot be decomposed: the caller tries each alone
        return result
    for operator, nodes in missing.items():
        words = f"operator {target_name(operator)} is not covered"
        for node in nodes:
            paths = [path for path, _ in node.meta.get("nn_module_stack", {}).values()]
            number = next((p.removeprefix("parts.") for p in paths if p.startswith("parts.")), "")
            if number.isdecimal():
                result[int(number)] = Outcome("refused", "BW501", words)
    return result


def importable(one: Prepared, dynamic: bool = False) -> Outcome | None:
    """The reason why the importer rejects a sample; None if it accepts it."""
    program = _exported([one], dynamic)
    if isinstance(program, Outcome):
        return program
    try:
        from_exported_program(program, fallback="error")
    except Exception as error:  # noqa: BLE001  an internal error is a finding
        return problem_of(error)
    return None


def _exported(batch: list[Prepared], dynamic: bool) -> Any:
    tensors = tuple(t for p in batch for t in copied(p.sample.tensors))
    shapes = (tuple(every_size_dynamic(t) for t in tensors),) if dynamic else None
    return export(Batch([p.sample for p in batch]), tensors, shapes)


def _attempt(batch: list[Prepared], dynamic: bool) -> list[SampleOutcome] | Outcome:
    """The outcomes of the samples if they compile and run as one module."""
    program = _exported(batch, dynamic)
    if isinstance(program, Outcome):
        return program
    executable = compiled(program)
    if isinstance(executable, Outcome):
        return executable
    tensors = [copied(p.sample.tensors) for p in batch]
    results = called(executable, tuple(itertools.chain(*tensors)))
    if isinstance(results, Outcome):
        return results
    for one, after in zip(batch, tensors, strict=True):
        if not same_bits(after, one.sample.tensors):
            text = kind_difference(after, one.changed)
            if not text and one.settled:
                text = difference(after, one.changed, one.changed_wide)
            if text:
                return Outcome("wrong", "", f"an input after the call: {text}")
    outcomes = [_compared(p, r) for p, r in zip(batch, results, strict=True)]
    if dynamic:
        for step in (1, 13):
            outcomes = _at_other_sizes(batch, outcomes, program, executable, step)
    return outcomes


def _compared(one: Prepared, result: Any) -> SampleOutcome:
    if not one.settled:
        text = kind_difference(result, one.expected)
    else:
        text = difference(result, one.expected, one.wide, _free(one, result))
        if text and one.scalar is not None:
            text = difference(result, _either(one, result), one.wide, _free(one, result))
        doubtful = one.sample.kind == "special" or (text and _off_by_one(result, one.expected))
        if text and doubtful and _as_decomposed(one, result):
            return SampleOutcome("passed", "as decomposed", text)
    return SampleOutcome("wrong", "", text) if text else SampleOutcome("passed")


def _free(one: Prepared, result: Any) -> list[Any] | None:
    return free_elements(one.name, one.sample, result, one.expected)


def _off_by_one(result: Any, expected: Any, few: bool = False) -> bool:
    """Whether bytes differ by at most 1, and with `few`, only rarely.

    PyTorch interpolates byte images in fixed point; its decomposition rounds floats, some of them
    halfway between bytes.
    """
    if kind_difference(result, expected):
        return False
    for x, y in zip(leaves(result), leaves(expected), strict=True):
        if x.dtype != torch.uint8:
            return False
        off = (x.int() - y.int()).abs()
        if bool((off > 1).any()):
            return False
        if few and float(off.float().mean()) > _BETWEEN_BYTES:
            return False
    return True


def _as_decomposed(one: Prepared, result: Any) -> bool:
    """Whether a result for special values equals that of PyTorch's own decomposition.

    Some decompositions ignore special values that the kernel handles: `grid_sampler_2d` returns 0
    for a NaN position, and the mean of `var_mean` is infinite where the kernel's running mean is
    NaN.
    """
    program = _exported([one], False)
    if isinstance(program, Outcome):
        return False
    whole = functional(program)
    for known in (is_known, no_node):
        with contextlib.suppress(ImporterError):  # PyTorch cannot decompose everything
            parts = decomposed(whole, known)
            matches = parts.module()(*copied(one.sample.tensors))
            same = not difference(result, matches, one.wide, _free(one, result)) or _off_by_one(
                result, matches, few=True
            )
            if same and parts is not whole:
                return True
    return False


def _either(one: Prepared, result: Any) -> Any:
    """PyTorch's results, with elements of its scalar code where ours agree with that.

    PyTorch's vector code differs from its scalar code at some special values: `fmod(1e300, 1e-300)`
    is NaN for contiguous tensors, and 0, which is exact, for others.
    """
    mixed: list[Any] = []
    for x, vector, scalar in zip(
        leaves(result), leaves(one.expected), leaves(one.scalar), strict=True
    ):
        if isinstance(vector, torch.Tensor) and not kind_difference(x, vector):
            as_scalar = torch.isclose(x, scalar, rtol=1e-6, atol=0, equal_nan=True)
            mixed.append(torch.where(as_scalar, scalar, vector))
        else:
            mixed.append(vector)
    return mixed


def _at_other_sizes(
    batch: list[Prepared],
    outcomes: list[SampleOutcome],
    program: Any,
    executable: Any,
    step: int,
) -> list[SampleOutcome]:
    """The outcomes after another call with larger sizes; samples invalid there keep theirs."""
    now = [t for p in batch for t in p.sample.tensors]
    larger = other_sizes(program, now, step)
    if larger is None:
        return outcomes
    start = 0
    given: list[torch.Tensor] = []
    again: list[Prepared | None] = []
    for one in batch:
        count = len(one.sample.tensors)
        mine = larger[start : start + count]
        start += count
        other = prepared(one.name, one.sample.replaced("dynamic", mine), one.group)
        again.append(other)
        given += mine if other is not None else one.sample.tensors
    results = called(executable, tuple(copied(given)))
    if isinstance(results, Outcome):
        if len(batch) > 1:  # judge each sample in its own module
            return [o for p in batch for o in judged([p], True)]
        return [SampleOutcome(results.what, results.code, results.words)]
    return [
        old if other is None or old.what != "passed" else _compared(other, result)
        for old, other, result in zip(outcomes, again, results, strict=True)
    ]
