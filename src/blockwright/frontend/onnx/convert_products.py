"""Matrix products and Einsum."""

from __future__ import annotations

from blockwright import ir
from blockwright.frontend.onnx.call import Call, Converters, Value, dims_of, dtype_of, rank_of
from blockwright.frontend.onnx.convert_shapes import product

TABLE = Converters()


@TABLE.op("MatMul")
def _matmul(call: Call) -> Value:
    return matmul(call, call.tensor(0), call.tensor(1))


def matmul(
    call: Call, a: ir.GraphExpr, b: ir.GraphExpr, out_dtype: str | None = None
) -> ir.GraphExpr:
    """NumPy's matrix product."""
    return call.apply("matmul", a, b, out_dtype=out_dtype)


@TABLE.op("Gemm")
def gemm(call: Call) -> Value:
    """alpha · A' · B' + beta · C, where A and B may be transposed."""
    a, b = call.tensor(0), call.tensor(1)
    alpha, beta, dtype = call.attr("alpha", 1.0), call.attr("beta", 1.0), dtype_of(a)
    if call.attr("transA", 0):
        a = call.apply("permute_dims", a, axes=(1, 0))
    bias = call.optional(2)
    transposed = call.attr("transB", 0)
    if transposed and alpha == 1 and (bias is None or beta == 1):
        whole = bias is not None and rank_of(bias) == 1 and not ir.is_const_int(dims_of(bias)[0], 1)
        if bias is None or whole:
            return call.apply("linear", a, b, *(() if bias is None else (bias,)))
    if transposed:
        b = call.apply("permute_dims", b, axes=(1, 0))
    result = call.apply("matmul", a, b)
    if alpha != 1:
        result = call.apply("multiply", result, call.scalar(alpha, dtype))
    if bias is None or beta == 0:
        return result
    if beta != 1:
        bias = call.apply("multiply", bias, call.scalar(beta, dtype))
    return call.apply("add", result, bias)


@TABLE.op("Einsum")
def _einsum(call: Call) -> Value:
    """A sum of products: operands are multiplied pairwise, sums are taken as early as possible."""
    equation = call.attr("equation").replace(" ", "")
    operands = call.tensors()
    terms, output = _terms(call, equation, operands)
    parts = [_diagonal(call, v, t) for v, t in zip(operands, terms, strict=True)]
    value, labels = parts[0]
    for position, (other, more) in enumerate(parts[1:], start=2):
        later = {label for _, t in parts[position:] for label in t}
        value, labels = _pair(call, value, labels, other, more, later | set(output))
    gone = [label for label in labels if label not in output]
    if gone:
        axes = tuple(labels.index(label) for label in gone)
        value = call.apply("sum", value, axes=axes, keepdims=False)
        labels = [label for label in labels if label in output]
    order = tuple(labels.index(label) for label in output)
    if order != tuple(range(len(order))):
        return call.apply("permute_dims", value, axes=order)
    return value if value not in operands else call.reshape(value, dims_of(value))


def _terms(
    call: Call, equation: str, operands: list[ir.GraphExpr]
) -> tuple[list[list[str]], list[str]]:
    """The labels of each operand and of the result; those of an ellipsis are numbers."""
    left, arrow, right = equation.partition("->")
    texts = left.split(",")
    if len(texts) != len(operands):
        raise call.error(f"{equation} has {len(texts)} terms", "write one for each operand")
    terms: list[list[str]] = []
    for text, operand in zip(texts, operands, strict=True):
        named = len(text.replace("...", ""))
        count = rank_of(operand) - named
        before, dots, after = text.partition("...")
        if count < 0 or (count and not dots):
            raise call.error(f"{text} does not fit rank {rank_of(operand)}", "name each axis")
        terms.append([*before, *(str(-k) for k in range(count, 0, -1)), *after])
    every = [label for term in terms for label in term]
    wide = sorted({label for label in every if label.startswith("-")}, key=int)
    if arrow:
        before, dots, after = right.partition("...")
        return terms, [*before, *(wide if dots else []), *after]
    once = sorted(label for label in set(every) if every.count(label) == 1 and label.isalpha())
    return terms, [*wide, *once]


def _diagonal(call: Call, value: ir.GraphExpr, labels: list[str]) -> tuple[ir.GraphExpr, list[str]]:
    """Keep the diagonal of axes with the same label."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            size = dims_of(value)[first]
            index = call.apply("arange", begin=0, end=size, step=1, dtype="int64")
            rank = rank_of(value)
            shape = [size if k == first else 1 for k in range(rank)]
            full = [1 if k == second else d for k, d in enumerate(dims_of(value))]
            where = call.apply("broadcast_to", call.reshape(index, shape), shape=tuple(full))
            value = call.apply("gather", value, where, axis=second)
            labels = [name for k, name in enumerate(labels) if k != second]
            value = call.reshape(value, [d for k, d in enumerate(dims_of(value)) if k != second])
    return value, labels


def _pair(
    call: Call,
    a: ir.GraphExpr,
    left: list[str],
    b: ir.GraphExpr,
    right: list[str],
    kept: set[str],
) -> tuple[ir.GraphExpr, list[str]]:
    """The product of two operands, summed over the labels that nothing else needs, by a matmul."""
    sizes = _sizes(a, left) | {k: v for k, v in _sizes(b, right).items() if not _one(v)}
    sizes = {**_sizes(b, right), **_sizes(a, left), **sizes}
    a, left = _summed(call, a, left, [x for x in left if x not in right and x not in kept])
    b, right = _summed(call, b, right, [x for x in right if x not in left and x not in kept])
    batch = [x for x in left if x in right and x in kept]
    inner = [x for x in left if x in right and x not in kept]
    rows = [x for x in left if x not in right]
    columns = [x for x in right if x not in left]
    one = [ir.const(1, "int64")]
    a = _ordered(call, a, left, [*batch, *rows, *inner])
    b = _ordered(call, b, right, [*batch, *inner, *columns])
    lead_a = [dict(zip([*batch, *rows, *inner], dims_of(a), strict=True))[x] for x in batch]
    lead_b = [dict(zip([*batch, *inner, *columns], dims_of(b), strict=True))[x] for x in batch]
    held = [sizes[x] for x in rows], [sizes[x] for x in inner], [sizes[x] for x in columns]
    m, k, n = (product(v or one) for v in held)
    total = call.apply("matmul", call.reshape(a, [*lead_a, m, k]), call.reshape(b, [*lead_b, k, n]))
    shape = [*dims_of(total)[: len(batch)], *held[0], *held[2]]
    return call.reshape(total, shape), [*batch, *rows, *columns]


def _one(size: ir.Expr) -> bool:
    return ir.is_const_int(size, 1)


def _sizes(value: ir.GraphExpr, labels: list[str]) -> dict[str, ir.Expr]:
    return dict(zip(labels, dims_of(value), strict=True))


def _summed(
    call: Call, value: ir.GraphExpr, labels: list[str], gone: list[str]
) -> tuple[ir.GraphExpr, list[str]]:
    if not gone:
        return value, labels
    axes = tuple(labels.index(label) for label in gone)
    value = call.apply("sum", value, axes=axes, keepdims=False)
    return value, [label for label in labels if label not in gone]


def _ordered(call: Call, value: ir.GraphExpr, labels: list[str], order: list[str]) -> ir.GraphExpr:
    axes = tuple(labels.index(label) for label in order)
    if axes == tuple(range(len(axes))):
        return value
    return call.apply("permute_dims", value, axes=axes)
