"""One trial of the channels-last rewrite of a function, with its cost.

Every value exists in its default layout, stored channels-last, or both; a layout is created only
when it is used. A `Trial` is a proposal that may be discarded.
"""

from __future__ import annotations

import numpy as np

from blockwright import ir
from blockwright.graph import constant, deduce_call, function_analyzer, shape_value
from blockwright.passes.layout.layout_regions import LayoutChange, Region, TypicalSizes
from blockwright.passes.layout.layout_rules import (
    MAX_RANK,
    MIN_RANK,
    Order,
    Reordered,
    attributes,
    channels_last,
    inverse,
    is_usual,
    keeps_elements_in_place,
    reordered,
)
from blockwright.passes.rewrite import flat_function, used_vars


class Trial:
    """Rewrites a function; operators whose results are in `plain` stay as written.

    Arguments: `reorder_flops` is the figure of the target's core.
    """

    def __init__(
        self, function: ir.GraphFunction, plain: set[ir.GraphVar], reorder_flops: float
    ) -> None:
        self.function, self.plain = function, plain
        self.analyzer = function_analyzer(function)
        self.sizes = TypicalSizes(function, reorder_flops)
        self.bindings: list[ir.Binding] = []
        self.last: dict[ir.GraphExpr, ir.GraphExpr] = {}
        self.waiting: set[ir.GraphVar] = set()  # exist only channels-last so far
        self.made_last: set[ir.GraphVar] = set()  # were computed channels-last
        self.same: dict[ir.GraphExpr, ir.GraphExpr] = {}  # value → another value equal to it
        self.flat: dict[ir.GraphVar, tuple[int, ...]] = {}  # flattened as stored: (C, spatial…)
        self.readers = _readers(function)
        self._joined: dict[ir.GraphVar, ir.GraphVar] = {}
        self._facts: list[tuple[ir.GraphVar, Region]] = []

    def run(self) -> None:
        for binding in self.function.bindings:
            if not (isinstance(binding, ir.VarBinding) and self._try(binding)):
                self._as_written(binding)
        self.result = self._usual(self.function.body.body)

    def finish(self) -> ir.GraphFunction:
        return flat_function(self.function, self.bindings, self.result)

    def regions(self) -> list[Region]:
        """Costs and gains collected by region, in the order of their first operators."""
        result: dict[ir.GraphVar, Region] = {}
        for var, fact in self._facts:
            region = result.setdefault(self._root(var), Region())
            region.members += fact.members
            region.operators.update(fact.operators)
            region.changes += fact.changes
            region.were += fact.were
            region.profit += fact.profit
        return list(result.values())

    # ------------------------------------------------------------------------------------- regions
    def _root(self, var: ir.GraphVar) -> ir.GraphVar:
        while var in self._joined:
            var = self._joined[var]
        return var

    def _join(self, a: ir.GraphVar, b: ir.GraphExpr) -> None:
        if isinstance(b, ir.GraphVar) and self._root(a) is not self._root(b):
            self._joined[self._root(b)] = self._root(a)

    def _fact(self, var: ir.GraphVar) -> Region:
        fact = Region()
        self._facts.append((var, fact))
        return fact

    # ------------------------------------------------------------------------------------- layouts
    def _usual(self, value: ir.GraphExpr) -> ir.GraphExpr:
        """The value in its default layout."""
        if isinstance(value, ir.GraphVar):
            if value in self.waiting:
                self._change(self.last[value], value, inverse(_order_of(value)), value, False)
                self.waiting.discard(value)
            return self.same.get(value, value)
        if isinstance(value, (ir.TupleExpr, ir.GraphCall, ir.TupleGetItem)):
            for var in used_vars(value):
                self._usual(var)
            return _replaced(value, self.same)
        return value

    def _stored(self, value: ir.GraphExpr, user: ir.GraphVar) -> ir.GraphExpr:
        """The value stored channels-last."""
        value = self.same.get(value, value)
        if value not in self.last:
            order = _order_of(value)
            if isinstance(value, ir.Constant):
                moved = np.ascontiguousarray(np.transpose(value.data, order))
                self.last[value] = constant(moved, value.name)
            else:
                assert isinstance(value, ir.GraphVar)
                result = ir.GraphVar(f"{value.name}_last", True)
                self.last[value] = self._change(value, result, order, user, True)
        self._join(user, value)
        return self.last[value]

    def _change(
        self, value: ir.GraphExpr, var: ir.GraphVar, order: Order, region: ir.GraphVar, into: bool
    ) -> ir.GraphVar:
        """Bind `var` to `value` with permuted axes, as a view if no element moves."""
        shape = _shape(value)
        target = tuple(shape[axis] for axis in order)
        if keeps_elements_in_place(shape, order):
            call = self._call("reshape", {}, value, shape_value(target))
        else:
            call = self._call("permute_dims", {"axes": order}, value)
            name = var.name if not into else getattr(value, "name", var.name)
            known = shape if into else target
            cost = 2 * self.sizes.bytes(value.tensor_info)
            self._fact(region).changes.append(LayoutChange(name, known, into, cost))
        return self._bind(var, call)

    def _spread(self, value: ir.GraphExpr, order: Order, user: ir.GraphVar) -> ir.GraphExpr:
        """An operand reshaped and permuted to broadcast against tensors stored in `order`."""
        rank = value.tensor_info.rank
        shape = _shape(value)
        if all(ir.is_const_int(d, 1) for d in shape):
            return self._usual(value) if rank == 0 else self._single(value)
        if rank == len(order):
            return self._stored(value, user)
        if isinstance(value, ir.Constant):
            full = value.data.reshape((*[1] * (len(order) - rank), *value.data.shape))
            moved = np.transpose(full, order)
            lead = next((i for i, n in enumerate(moved.shape) if n != 1), len(order) - 1)
            return constant(np.ascontiguousarray(moved.reshape(moved.shape[lead:])), value.name)
        one = ir.const(1, "int64")
        dims = (*[one] * (len(order) - rank), *shape)
        result = ir.GraphVar(f"{_name(value)}_wide", True)
        wide = self._bind(result, self._call("reshape", {}, self._usual(value), shape_value(dims)))
        return self._change(wide, ir.GraphVar(f"{_name(value)}_last", True), order, user, True)

    def _single(self, value: ir.GraphExpr) -> ir.GraphExpr:
        """A value of one element, in whichever layout exists."""
        if isinstance(value, ir.GraphVar) and value in self.waiting:
            return self.last[value]
        return self._usual(value)

    # ---------------------------------------------------------------------------------- operators
    def _try(self, binding: ir.VarBinding) -> bool:
        """Rewrite the binding if channels-last applies; return whether it was rewritten."""
        call = binding.value
        if not isinstance(call, ir.GraphCall) or not isinstance(call.op, ir.OpRef):
            return False
        if not isinstance(call.info, ir.TensorInfo) or call.info.shape is None:
            return False
        name = call.op.name
        if name in ("linear", "matmul"):
            return self._product(binding.var, call)
        if binding.var in self.plain:
            return False
        if name == "permute_dims":
            return self._permuted(binding.var, call)
        if name in ("reshape", "flatten"):
            return self._view(binding.var, call)
        return self._operator(binding.var, call)

    def _operator(self, var: ir.GraphVar, call: ir.GraphCall) -> bool:
        operands = _operands(call)
        if not operands or any(o.tensor_info.shape is None for o in operands):
            return False
        rank = max(o.tensor_info.rank for o in operands)
        if not MIN_RANK <= rank <= MAX_RANK:
            return False
        order = channels_last(rank)
        how = reordered(call, order)
        if how is None or not (how.profits or self._prefers(operands, how)):
            return False
        args = [self._argument(a, n, how, order, var) for n, a in enumerate(call.args)]
        attrs = how.attrs
        if how.weight is not None and isinstance(args[1], ir.Constant):
            moved = np.ascontiguousarray(np.transpose(args[1].data, how.weight))
            args[1], attrs = constant(moved, args[1].name), {**attrs, **how.weight_attrs}
        assert isinstance(call.op, ir.OpRef)
        fact = self._fact(var)
        fact.members.append(var)
        fact.operators[call.op.name] += 1
        fact.profit = self.sizes.profit(call) if how.profits else 0
        result = self._call(call.op.name, attrs, *args)
        if is_usual(how.result):
            self._bind(var, result)
            return True
        self._set_last(var, self._bind(ir.GraphVar(f"{var.name}_last", True), result))
        return True

    def _set_last(self, var: ir.GraphVar, form: ir.GraphExpr) -> None:
        self.last[var] = form
        self.waiting.add(var)
        self.made_last.add(var)

    def _prefers(self, operands: list[ir.GraphExpr], how: Reordered) -> bool:
        """Whether channels-last copies no more bytes now, and some operand is stored so."""
        read = operands if how.operands is None else operands[: how.operands]
        to_last = to_usual = 0
        result = False
        for value in {self.same.get(o, o) for o in read if isinstance(o, ir.GraphVar)}:
            result |= value in self.made_last
            rank = value.tensor_info.rank
            if not MIN_RANK <= rank <= MAX_RANK:
                continue
            if keeps_elements_in_place(_shape(value), channels_last(rank)):
                continue
            size = self.sizes.bytes(value.tensor_info)
            to_last += 0 if value in self.last else size
            to_usual += size if value in self.waiting else 0
        return result and to_last <= to_usual

    def _argument(
        self, value: ir.GraphExpr, number: int, how: Reordered, order: Order, user: ir.GraphVar
    ) -> ir.GraphExpr:
        if isinstance(value, ir.TupleExpr):
            fields = tuple(self._argument(f, number, how, order, user) for f in value.fields)
            info = ir.TupleInfo(tuple(f.info or ir.ObjectInfo() for f in fields))
            return ir.TupleExpr(fields, info=info)
        if isinstance(value, ir.ShapeExpr):
            return shape_value([value.values[axis] for axis in order])
        if how.operands is None:
            return self._spread(value, order, user)
        return self._stored(value, user) if number < how.operands else self._usual(value)

    # ------------------------------------------------------------------------- permutations, views
    def _permuted(self, var: ir.GraphVar, call: ir.GraphCall) -> bool:
        """Absorb a permutation of the model into a layout, or merge it with a layout change."""
        (value,) = call.args
        value = self.same.get(value, value)
        rank = value.tensor_info.rank
        if not isinstance(value, ir.GraphVar) or not MIN_RANK <= rank <= MAX_RANK:
            return False
        given = attributes(call)["axes"]
        axes = tuple(a % rank for a in given) if given is not None else call_reversed(rank)
        order = channels_last(rank)
        in_place = keeps_elements_in_place(_shape(value), axes)
        cost = 0 if in_place else 2 * self.sizes.bytes(value.tensor_info)
        if axes == order and value in self.made_last:
            self.same[var] = self.last[value]
            self._fact(value).were += cost
            return True
        if axes == inverse(order) and value not in self.waiting:
            fact = self._fact(var)
            fact.members.append(var)
            fact.were += cost
            self._set_last(var, value)
            return True
        if value in self.waiting:  # merge both permutations
            both = tuple(order.index(axis) for axis in axes)
            self._bind(var, self._call("permute_dims", {"axes": both}, self.last[value]))
            return True
        return False

    def _view(self, var: ir.GraphVar, call: ir.GraphCall) -> bool:
        """Reshape in stored order if only spatial axes are merged or split, or for `_product`."""
        value = call.args[0]
        if not isinstance(value, ir.GraphVar) or value not in self.waiting:
            return False
        source, target = _shape(value), _shape(call)
        if keeps_elements_in_place(source, channels_last(len(source))):
            return False
        if MIN_RANK <= len(target) <= MAX_RANK:
            if not all(self.analyzer.prove_equal(source[a], target[a]) for a in (0, 1)):
                return False
            dims = tuple(target[axis] for axis in channels_last(len(target)))
            result = ir.GraphVar(f"{var.name}_last", True)
            stored = self._call("reshape", {}, self.last[value], shape_value(dims))
            self._fact(var).members.append(var)
            self._join(var, value)
            self._set_last(var, self._bind(result, stored))
            return True
        sizes = tuple(ir.const_int(d) for d in source[1:])
        known = tuple(size for size in sizes if size is not None)
        if len(target) != 2 or len(known) != len(sizes) or not self._only_weighted(var):
            return False
        if not self.analyzer.prove_equal(source[0], target[0]):
            return False
        self.flat[var] = known
        self._bind(var, self._call("reshape", {}, self.last[value], shape_value(target)))
        return True

    def _only_weighted(self, var: ir.GraphVar) -> bool:
        """Whether all readers of a value are products with constant weights."""
        readers = self.readers.get(var, [])
        return bool(readers) and all(
            isinstance(call, ir.GraphCall)
            and isinstance(call.op, ir.OpRef)
            and call.op.name in ("linear", "matmul")
            and call.args[0] is var
            and isinstance(call.args[1], ir.Constant)
            and call.args[1].tensor_info.rank == 2
            for call in readers
        )

    def _product(self, var: ir.GraphVar, call: ir.GraphCall) -> bool:
        """Compute a product from a tensor flattened in stored order, with permuted weights."""
        data, weight = call.args[:2]
        if not isinstance(data, ir.GraphVar) or data not in self.flat:
            return False
        assert isinstance(weight, ir.Constant)
        assert isinstance(call.op, ir.OpRef)
        dims = self.flat[data]
        rows = weight.data if call.op.name == "linear" else weight.data.T
        kept = np.moveaxis(rows.reshape(rows.shape[0], *dims), 1, -1).reshape(rows.shape)
        moved = kept if call.op.name == "linear" else kept.T
        args = (
            data,
            constant(np.ascontiguousarray(moved), weight.name),
            *(self._usual(a) for a in call.args[2:]),
        )
        self._bind(var, call.replace(args=args))
        return True

    # ------------------------------------------------------------------------------------ bindings
    def _call(self, name: str, attrs: dict[str, object], *args: ir.GraphExpr) -> ir.GraphCall:
        call = ir.GraphCall(ir.OpRef(name), args, attrs)
        return call.replace(info=deduce_call(call, self.analyzer, None))

    def _bind(self, var: ir.GraphVar, value: ir.GraphCall) -> ir.GraphVar:
        if var.info is None:
            var = var.replace(info=value.info)
        self.bindings.append(ir.VarBinding(var, value))
        return var

    def _as_written(self, binding: ir.Binding) -> None:
        """Bind as written, with operands in their default layout."""
        assert isinstance(binding, (ir.VarBinding, ir.MatchCast))
        value = self._usual(binding.value)
        same = value is binding.value
        self.bindings.append(binding if same else binding.replace(value=value))


def call_reversed(rank: int) -> Order:
    return tuple(reversed(range(rank)))


def _shape(value: ir.GraphExpr) -> tuple[ir.Expr, ...]:
    shape = value.tensor_info.shape
    assert shape is not None
    return shape


def _order_of(value: ir.GraphExpr) -> Order:
    return channels_last(value.tensor_info.rank)


def _name(value: ir.GraphExpr) -> str:
    return str(getattr(value, "name", "") or "lv")


def _operands(call: ir.GraphCall) -> list[ir.GraphExpr]:
    """Tensor operands, with tuples expanded; empty if some operand is not a tensor."""
    out: list[ir.GraphExpr] = []
    for arg in call.args:
        if not isinstance(arg, ir.ShapeExpr):
            out.extend(arg.fields if isinstance(arg, ir.TupleExpr) else (arg,))
    return out if all(isinstance(o.info, ir.TensorInfo) for o in out) else []


def _readers(function: ir.GraphFunction) -> dict[ir.GraphVar, list[ir.GraphExpr]]:
    """Map each variable to its readers; the function's result counts as a reader."""
    out: dict[ir.GraphVar, list[ir.GraphExpr]] = {}
    for binding in function.bindings:
        if isinstance(binding, (ir.VarBinding, ir.MatchCast)):
            for var in used_vars(binding.value):
                out.setdefault(var, []).append(binding.value)
    for var in used_vars(function.body.body):
        out.setdefault(var, []).append(function.body.body)
    return out


class _Replace(ir.Mutator):
    def __init__(self, values: dict[ir.GraphExpr, ir.GraphExpr]) -> None:
        super().__init__()
        self.values = values

    def __call__(self, node: ir.Node) -> ir.Node:
        if isinstance(node, ir.GraphExpr) and node in self.values:
            return self.values[node]
        if isinstance(node, (ir.GraphVar, ir.Constant, ir.Info)):
            return node
        return node.map_children(self)


def _replaced(value: ir.GraphExpr, values: dict[ir.GraphExpr, ir.GraphExpr]) -> ir.GraphExpr:
    changed = _Replace(values)(value) if values else value
    assert isinstance(changed, ir.GraphExpr)
    return changed
