"""Decompose the operators that no converter covers, one by one.

PyTorch can express many operators by others. Only operators that the importer does not know are
decomposed, so that attention, normalization and all others with a row stay whole.
"""

from __future__ import annotations

import functools
import warnings
from collections import ChainMap
from collections.abc import Callable, Iterable
from typing import Any

from blockwright.frontend.torch import compositions, compositions_values
from blockwright.frontend.torch.compositions import in_place_kernels
from blockwright.frontend.torch.effects import kept_in_order, without_tokens
from blockwright.frontend.torch.kernels import replaced_composites
from blockwright.frontend.torch.names import origin, target_name
from blockwright.frontend.torch.regions import all_nodes
from blockwright.frontend.torch.whole_layers import whole_recurrent_layers
from blockwright.support import BlockwrightError, Diagnostic, ImporterError

COMPOSITIONS = ChainMap(compositions.COMPOSITIONS, compositions_values.COMPOSITIONS)
_ROUNDS = 8  # most rounds; a decomposition may contain operators that must be decomposed in turn


Choice = Callable[[Any], bool]
"""Whether something holds of a node of a program."""


def no_node(node: Any) -> bool:
    """The choice of no node at all."""
    return False


def with_known_operators(program: Any, known: Choice, left: Choice = no_node) -> Any:
    """Decompose the nodes that are not `known` where PyTorch can.

    Arguments: `left` tells which nodes with other operators may remain; all are left whole if
        PyTorch fails to decompose one.
    Raises:
        ImporterError: BW501 lists the operators that remain, with their source lines; BW509 if
            PyTorch fails, or a decomposition has another result type than its operator.
    """
    try:
        return _decomposed(program, known, left)
    except ImporterError as error:
        whole = all(left(n) for nodes in unknown_nodes(program, known).values() for n in nodes)
        if error.code != "BW509" or not whole:
            raise
        return program


def _decomposed(program: Any, known: Choice, left: Choice) -> Any:
    result = decomposed(program, known)
    missing = {
        op: rest
        for op, nodes in unknown_nodes(result, known).items()
        if (rest := [node for node in nodes if not left(node)])
    }
    if missing:
        raise _uncovered(missing)
    if result is not program:
        _require_same_types(program, result)
    return result


def _require_same_types(before: Any, after: Any) -> None:
    """Raise if a result's type or rank has changed.

    A few of PyTorch's decompositions are wrong, for example that of `bucketize` without boundaries.
    """
    for old, new in zip(_results(before), _results(after), strict=True):
        kinds = [(v.dtype, len(v.shape)) for v in (old, new) if hasattr(v, "shape")]
        if len(set(kinds)) > 1:
            (dtype, rank), (other, axes) = kinds
            raise ImporterError(
                f"PyTorch decomposes an operator wrongly: a result of {dtype} with {rank} axes "
                f"becomes one of {other} with {axes}",
                code="BW509",
                help="compute the operator outside of the compiled model",
            )


def _results(program: Any) -> list[Any]:
    """The exporter's metadata of each result of a program."""
    names = {spec.name for spec in program.graph.output_node().args[0] if hasattr(spec, "name")}
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.name in names}
    return [values.get(name) for name in program.graph_signature.user_outputs]


def decomposed(program: Any, known: Choice) -> Any:
    """Decompose, in several rounds, every operator that is not `known` and that PyTorch can."""
    for _ in range(_ROUNDS):
        table = decompositions(unknown_nodes(program, known))
        if not table:
            break
        program = rewritten(program, table)
    return program


def rewritten(program: Any, table: dict[Any, Any]) -> Any:
    """The program in functional form, with the operators of `table` decomposed.

    Raises: ImporterError BW509 if PyTorch fails.
    """
    from torch import _C

    dispatch: Any = _C  # below autograd, which would decompose a few operators unasked
    try:
        with (
            warnings.catch_warnings(),
            dispatch._AutoDispatchBelowAutograd(),
            kept_in_order(program),
            whole_recurrent_layers(),
            replaced_composites(in_place_kernels()),
        ):
            warnings.simplefilter("ignore")  # PyTorch warns about its own calls
            return without_tokens(program.run_decompositions(table))
    except BlockwrightError:
        raise
    except Exception as error:
        names = ", ".join(sorted(str(op) for op in table)) or "operators in place"
        reason = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        help = "compute these operators outside of the compiled model"
        if "entirely functional graph" in reason:  # an assertion about the graph of all operators
            reason = "its own decomposition of one of them writes into a tensor in place"
            help = "compute a new tensor instead of writing into a view, as by torch.where"
        raise ImporterError(
            f"PyTorch could not rewrite {names}: {reason}", code="BW509", help=help
        ) from error


def decompositions(operators: Iterable[Any]) -> dict[Any, Any]:
    """Operator → decomposition, for the operators that PyTorch can decompose."""
    return {op: how for op in operators if (how := decomposition(op)) is not None}


def unknown_nodes(program: Any, known: Choice) -> dict[Any, list[Any]]:
    """Operators of nodes that are not known → these nodes."""
    result: dict[Any, list[Any]] = {}
    for node in all_nodes(program.graph_module):
        if node.op == "call_function" and not known(node):
            result.setdefault(node.target, []).append(node)
    return result


@functools.cache
def _tables() -> tuple[Any, Any]:
    """PyTorch's decomposition tables; building the first takes a tenth of a second."""
    import torch
    from torch import _decomp

    registry: Any = _decomp
    return torch.export.default_decompositions(), registry.decomposition_table


def decomposition(op: Any) -> Callable[..., Any] | None:
    """Our decomposition of an operator, or PyTorch's; None if there is none."""
    own = COMPOSITIONS.get(target_name(op))
    if own is not None:
        return own
    for table in _tables():
        if op in table:
            return _whole_ends(op, _on_common_types(op, table[op]))
    composite = getattr(op, "_can_decompose", None)  # Python operators have none
    if composite is None or not composite():
        return None

    def written_out(*args: Any, **kwargs: Any) -> Any:
        return op.decompose(*args, **kwargs)

    return written_out


def _whole_ends(op: Any, how: Callable[..., Any]) -> Callable[..., Any]:
    """Decomposition of a range that first converts its ends to an integer type.

    PyTorch's kernel does so: a range from 4.3 begins at 4.
    """
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


def _on_common_types(op: Any, how: Callable[..., Any]) -> Callable[..., Any]:
    """Decomposition that rounds tensors without axes to the half type of the other operands.

    PyTorch's kernels do so, where its decompositions compute everything in float32.
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
