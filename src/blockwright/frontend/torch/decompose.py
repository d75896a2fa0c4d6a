"""Decomposition of the operators that nothing covers, each alone.

PyTorch knows how to write many operators by means of others. Only those that the importer does not
know are rewritten, so that attention, normalisation and what else has a row stay whole.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Container, Iterable
from typing import Any

from blockwright.frontend.torch.names import origin, target_name
from blockwright.support import BlockwrightError, Diagnostic, ImporterError

_ROUNDS = 8  # decompositions consist of operators that may have to be decomposed in turn


def with_known_operators(program: Any, known: Container[str]) -> Any:
    """The program with operators outside of `known` decomposed where PyTorch knows how.

    Raises: ImporterError BW501 listing the operators that remain, with the lines they come from;
        BW509 where a decomposition gives another type than its operator.
    """
    result = decomposed(program, known)
    missing = unknown_nodes(result, known)
    if missing:
        raise _uncovered(missing)
    if result is not program:
        _require_same_types(program, result)
    return result


def _require_same_types(before: Any, after: Any) -> None:
    """Raise where a result's type or rank has changed: a few of PyTorch's decompositions err, as
    that of `bucketize` with no boundaries."""
    for old, new in zip(_results(before), _results(after), strict=True):
        kinds = [(v.dtype, len(v.shape)) for v in (old, new) if hasattr(v, "shape")]
        if len(set(kinds)) > 1:
            (dtype, rank), (other, axes) = kinds
            raise ImporterError(
                f"PyTorch decomposes an operator wrongly: a result of {dtype} with {rank} axes "
                f"becomes one of {other} with {axes}",
                code="BW509",
                help="leave the operator out of what is compiled",
            )


def _results(program: Any) -> list[Any]:
    """What the exporter knows of each result of a program."""
    names = {spec.name for spec in program.graph.output_node().args[0] if hasattr(spec, "name")}
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.name in names}
    return [values.get(name) for name in program.graph_signature.user_outputs]


def decomposed(program: Any, known: Container[str]) -> Any:
    """The program after all that PyTorch can decompose of what is not `known`."""
    for _ in range(_ROUNDS):
        table = decompositions(unknown_nodes(program, known))
        if not table:
            break
        program = rewritten(program, table)
    return program


def rewritten(program: Any, table: dict[Any, Any]) -> Any:
    """The program in functional form, with the operators of `table` decomposed.

    Raises: ImporterError BW509 when PyTorch fails to.
    """
    from torch import _C

    dispatch: Any = _C  # below autograd, which decomposes a few operators, asked or not
    try:
        with warnings.catch_warnings(), dispatch._AutoDispatchBelowAutograd():
            warnings.simplefilter("ignore")  # PyTorch warns of what it calls itself
            return program.run_decompositions(table)
    except BlockwrightError:
        raise
    except Exception as error:
        names = ", ".join(sorted(str(op) for op in table)) or "operators in place"
        reason = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        help = "leave the operators that it names out of what is compiled"
        if "entirely functional graph" in reason:  # an assertion about the graph of all operators
            reason = "its own decomposition of one of them writes into a tensor in place"
            help = "compute a new tensor instead of writing into a view, as by torch.where"
        raise ImporterError(
            f"PyTorch could not rewrite {names}: {reason}", code="BW509", help=help
        ) from error


def decompositions(operators: Iterable[Any]) -> dict[Any, Any]:
    """The operators that PyTorch can decompose, with how it does."""
    return {op: how for op in operators if (how := decomposition(op)) is not None}


def unknown_nodes(program: Any, known: Container[str]) -> dict[Any, list[Any]]:
    """Operators that are not known → the nodes that call them."""
    result: dict[Any, list[Any]] = {}
    for node in program.graph.nodes:
        if node.op == "call_function" and target_name(node.target) not in known:
            result.setdefault(node.target, []).append(node)
    return result


@functools.cache
def _tables() -> tuple[Any, Any]:
    """PyTorch's tables of decompositions; it takes a tenth of a second to make the first."""
    import torch
    from torch import _decomp

    registry: Any = _decomp
    return torch.export.default_decompositions(), registry.decomposition_table


def decomposition(op: Any) -> Callable[..., Any] | None:
    """How PyTorch writes an operator by means of others; None where it does not."""
    own = _OWN.get(target_name(op))
    if own is not None:
        return own
    for table in _tables():
        if op in table:
            return _whole_ends(op, _on_common_types(op, table[op]))
    composite = getattr(op, "_can_decompose", None)  # operators of Python have none
    if composite is None or not composite():
        return None

    def written_out(*args: Any, **kwargs: Any) -> Any:
        return op.decompose(*args, **kwargs)

    return written_out


def _diagonal_scatter(x: Any, diagonal: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """`x` with another diagonal, in functional form: PyTorch's decomposition writes in place."""
    import torch
    from torch.nn.functional import pad

    matrices = x.movedim((dim1, dim2), (-2, -1))
    rows, columns = matrices.shape[-2:]
    first = max(-offset, 0)
    result = pad(diagonal, (first, rows - first - diagonal.shape[-1])).unsqueeze(-1)
    row = torch.arange(rows, device=x.device).unsqueeze(-1)
    inside = torch.arange(columns, device=x.device) == row + offset
    return torch.where(inside, result, matrices).movedim((-2, -1), (dim1, dim2))


def _whole_ends(op: Any, how: Callable[..., Any]) -> Callable[..., Any]:
    """A decomposition of a range, whose ends are converted to an integer type first, as PyTorch's
    kernel does: a range from 4.3 begins at 4."""
    import torch

    if op.overloadpacket not in (torch.ops.aten.linspace, torch.ops.aten.logspace):
        return how

    def converted(start: Any, end: Any, *args: Any, dtype: Any = None, **kwargs: Any) -> Any:
        def whole(value: Any) -> Any:
            return value.to(dtype) if isinstance(value, torch.Tensor) else int(value)

        if dtype is not None and not (dtype.is_floating_point or dtype.is_complex):
            start, end = whole(start), whole(end)
        return how(start, end, *args, dtype=dtype, **kwargs)

    return converted


_OWN: dict[str, Callable[..., Any]] = {"aten.diagonal_scatter.default": _diagonal_scatter}


def _on_common_types(op: Any, how: Callable[..., Any]) -> Callable[..., Any]:
    """A decomposition, on tensors without axes that are rounded to the half type beside them.

    So do PyTorch's kernels, where its decompositions compute all in float32.
    """
    import torch

    if torch.Tag.pointwise not in getattr(op, "tags", ()):
        return how

    def rounded(*args: Any, **kwargs: Any) -> Any:
        given = [
            a
            for a in (*args, *kwargs.values())
            if isinstance(a, torch.Tensor) and a.is_floating_point()
        ]
        common = {tensor.dtype for tensor in given if tensor.ndim}
        if len(common) != 1 or not common <= {torch.float16, torch.bfloat16}:
            return how(*args, **kwargs)
        (dtype,) = common

        def entered(value: Any) -> Any:
            return value.to(dtype) if any(value is tensor for tensor in given) else value

        return how(*map(entered, args), **{name: entered(v) for name, v in kwargs.items()})

    return rounded


def _uncovered(missing: dict[Any, list[Any]]) -> ImporterError:
    places = {target_name(op): [origin(n) for n in nodes] for op, nodes in missing.items()}
    diagnostics = [
        Diagnostic(
            "BW501",
            f"operator {name} is not covered ({len(lines)} uses)",
            None,
            None,
            tuple(dict.fromkeys(lines[:3])),
        )
        for name, lines in sorted(places.items())
    ]
    last = diagnostics[-1]
    help = "compute it outside of the compiled model, or add an operator row (docs/new-operator.md)"
    diagnostics[-1] = Diagnostic(last.code, last.message, None, help, last.notes)
    return ImporterError.collect(diagnostics)
