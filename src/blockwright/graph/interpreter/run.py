"""Run graph functions: bindings in order, control flow, calls of functions and closures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np

from blockwright import ir
from blockwright.arith import Analyzer
from blockwright.graph.builder import inherited_bounds
from blockwright.graph.check_annotations import Deduced
from blockwright.graph.deduce import deduce_call
from blockwright.graph.interpreter.foreign import Foreign, called_foreign, find_foreign
from blockwright.graph.interpreter.loops import run_scan, run_while_loop
from blockwright.graph.interpreter.memory import Memory, detached
from blockwright.graph.interpreter.operators import (
    check_sizes,
    evaluated_attributes,
    operator_result,
)
from blockwright.graph.interpreter.programs import run_library, run_program
from blockwright.graph.interpreter.symbols import Symbols, new_symbols
from blockwright.graph.interpreter.values import (
    Array,
    Bound,
    Function,
    Mismatch,
    Shape,
    admitted,
    described,
    is_array,
    is_scalar,
    is_tuple,
)
from blockwright.graph.loops import loop_parts
from blockwright.graph.relate import info_text
from blockwright.graph.well_formed import check_structure
from blockwright.interp import Limit
from blockwright.support import GraphError, InterpretError, ValidationError, coded_message
from blockwright.support.stack import in_room

_DEEP = 100
"""Height of a function from which it runs on the larger stack."""

_ROOM = 20
"""Depth of calls from which they run on the larger stack; a call takes about ten Python frames."""


class Options(msgspec.Struct, frozen=True):
    """Options of a run.

    Attributes:
        exact: compute operators by their tensor programs, not by their NumPy oracles.
        packed: Python functions by name, for calls of foreign functions.
        depth: largest number of graph functions that may be active at once.
        limit: limit on the loop iterations of tensor programs.
    """

    exact: bool = False
    packed: Mapping[str, Callable[..., Any]] = {}
    depth: int = 1000
    limit: Limit | None = None


class Frame:
    """One call of a graph function, or the part of it so far.

    Attributes:
        values: of the variables bound so far; symbols: of the symbols.
        name: the function; attrs: declared bounds; infos: deduced annotations of its variables.
    """

    def __init__(self, callee: Function, deduced: Deduced) -> None:
        self.callee = callee
        self.values: dict[ir.GraphVar, Any] = dict(callee.values)
        self.symbols = Symbols(callee.symbols)
        self.attrs: dict[str, Any] = callee.function.attrs
        self.infos = deduced.infos


class Interpreter:
    """Runs the functions of one module."""

    _table: ClassVar[dict[type[ir.GraphExpr], str]] = {
        ir.Constant: "_constant", ir.PrimValue: "_scalar", ir.ShapeExpr: "_shape",
        ir.StringValue: "_text", ir.TupleExpr: "_tuple", ir.TupleGetItem: "_field",
        ir.GlobalVar: "_named", ir.ExternFunc: "_itself", ir.OpRef: "_itself",
        ir.GraphFunction: "_closure", ir.If: "_if", ir.GraphCall: "_call", ir.SeqExpr: "sequence",
    }  # fmt: skip
    _special: ClassVar[dict[str, str]] = {
        "call_tir": "_program", "call_tir_inplace": "_program", "call_dps_library": "_library",
        "call_packed": "_packed", "call_pure_packed": "_packed", "invoke_closure": "_invoke",
        "make_closure": "_bound", "scan": "_scan", "while_loop": "_while_loop",
        "shape_of": "_shape_of", "tensor_to_shape": "_loaded_shape", "item": "_item",
    }  # fmt: skip

    def __init__(self, module: ir.IRModule, options: Options) -> None:
        self.module, self.options = module, options
        self.constants: dict[ir.Constant, Array] = {}
        self.memory = Memory(module)
        self._depth = 0
        self._deduced: dict[ir.GraphFunction, Deduced] = {}
        self._tall: dict[ir.GraphFunction, bool] = {}

    # ----------------------------------------------------------------------------------- functions
    def function(self, name: str) -> Function:
        """A graph function of the module as a value."""
        function = self.module[name]
        assert isinstance(function, ir.GraphFunction)
        return Function(function, name, function, self.enter)

    def enter(self, callee: Function, arguments: Sequence[Any]) -> Any:
        """Call a function with Python values from outside the module."""
        params = callee.function.params
        if len(arguments) == len(params):
            pairs = zip(params, arguments, strict=True)
            arguments = [admitted(p.info, a) for p, a in pairs]
            if self._depth == 0:
                arguments = self.memory.begun(params, arguments)
                return self.memory.returned(self.call(callee, arguments))
        return self.call(callee, arguments)

    def call(self, callee: Function, arguments: Sequence[Any]) -> Any:
        """Call a function with values.

        Raises: InterpretError BW768: more than `depth` functions are active.
        """
        if self._depth >= self.options.depth:
            raise InterpretError(
                f"{callee.name}: more than {self.options.depth} graph functions call each other",
                code="BW768",
                span=callee.function.span,
                help="check that the recursion ends, or pass a larger depth=",
            )
        self._depth += 1
        try:
            if self._depth == _ROOM or self._is_tall(callee.owner):
                return in_room(self._body, callee, arguments)
            return self._body(callee, arguments)
        finally:
            self._depth -= 1

    def _is_tall(self, function: ir.GraphFunction) -> bool:
        result = self._tall.get(function)
        if result is None:
            result = self._tall[function] = ir.height(function) > _DEEP
        return result

    def _annotations(self, owner: ir.GraphFunction) -> Deduced:
        """The deduced annotations of a function. Raises: ValidationError if it is invalid."""
        result = self._deduced.get(owner)
        if result is None:
            check_structure(owner, self.module)
            result = Deduced(owner, self.module)
            if result.problems:
                raise ValidationError.collect(result.problems)
            self._deduced[owner] = result
        return result

    def _body(self, callee: Function, arguments: Sequence[Any]) -> Any:
        frame = Frame(callee, self._annotations(callee.owner))
        function = callee.function
        self._parameters(callee, arguments, frame)
        result = self.sequence(function.body, frame)
        self._agreed((function.ret_info,), result, f"the result of {callee.name}", function, frame)
        return result

    def _parameters(self, callee: Function, arguments: Sequence[Any], frame: Frame) -> None:
        """Bind the parameters and their symbols. Raises: InterpretError BW701 to BW709."""
        params = callee.function.params
        if len(arguments) != len(params):
            names = ", ".join(p.name for p in params)
            raise InterpretError(
                f"{callee.name} takes {len(params)} arguments ({names}), got {len(arguments)}",
                code="BW701",
            )
        symbols = frame.symbols
        known = set(symbols.values)
        pairs = list(zip(params, arguments, strict=True))
        for step in (symbols.bind, symbols.solve):
            for param, value in pairs:
                step(param.info, value, f"{callee.name}: argument {param.name}")
        for param, value in pairs:
            wrong = symbols.mismatch(param.info, value)
            if wrong is not None:
                raise self._mismatched(
                    f"{callee.name}: argument {param.name}", param.info, wrong, param, frame
                )
            frame.values[param] = value
        symbols.check_ranges(frame.attrs, [v for v in symbols.values if v not in known])

    def _mismatched(
        self, what: str, info: ir.Info | None, wrong: Mismatch, node: ir.Node, frame: Frame
    ) -> InterpretError:
        used = [v for v in new_symbols(info) if v in frame.symbols.values]
        return InterpretError(
            f"{what}: {wrong.message}",
            code=wrong.code,
            span=node.span,
            notes=[f"annotated {info_text(info)}", *frame.symbols.notes(used)],
        )

    def _agreed(
        self,
        infos: Sequence[ir.Info | None],
        value: Any,
        what: str,
        node: ir.Node,
        frame: Frame,
    ) -> None:
        """Check a value against stated and deduced annotations. Raises: InterpretError BW769."""
        seen: list[ir.Info] = []
        for info in infos:
            if info is None or any(info is other for other in seen):
                continue
            seen.append(info)
            wrong = frame.symbols.mismatch(info, value)
            if wrong is not None:
                wrong = Mismatch("BW769", wrong.message)
                raise self._mismatched(f"{frame.callee.name}: {what}", info, wrong, node, frame)

    # ------------------------------------------------------------------------------------ bindings
    def sequence(self, body: ir.SeqExpr, frame: Frame) -> Any:
        """Run binding blocks and return the value of the result."""
        for block in body.blocks:
            for binding in block.bindings:
                if isinstance(binding, ir.MatchCast):
                    value = self._match_cast(binding, frame)
                else:
                    assert isinstance(binding, ir.VarBinding)
                    value = self.value(binding.value, frame)
                var = binding.var
                infos = (var.info, frame.infos.get(var))
                self._agreed(infos, value, var.name, binding, frame)
                frame.values[var] = value
        result = self.value(body.body, frame)
        self._agreed((body.info,), result, "the result", body, frame)
        return result

    def _match_cast(self, cast: ir.MatchCast, frame: Frame) -> Any:
        """Check a value against a pattern and bind new symbols.

        Raises: InterpretError: the error that the cast states, or else BW702 to BW709 for the
            kind, type, rank or size that differs.
        """
        value = self.value(cast.value, frame)
        if isinstance(cast.pattern, ir.PrimInfo):
            value = admitted(cast.pattern, value)  # a number that a foreign function returned
        symbols, known = frame.symbols, set(frame.symbols.values)
        symbols.bind(cast.pattern, value, cast.var.name)
        wrong = symbols.mismatch(cast.pattern, value)
        if wrong is None:
            symbols.check_ranges(frame.attrs, [v for v in symbols.values if v not in known])
            return value
        if cast.message:
            given = tuple(int(symbols.value(v)) for v in cast.values)
            text = cast.message % given if given else cast.message
            code, message, help = coded_message(text) or ("BW753", text, None)
            raise InterpretError(message, code=code, help=help, span=cast.span)
        code = "BW704" if wrong.code == "BW709" else wrong.code
        what = f"match_cast of {cast.var.name}"
        wrong = Mismatch(code, wrong.message)
        raise self._mismatched(what, cast.pattern, wrong, cast, frame)

    # -------------------------------------------------------------------------------------- values
    def value(self, expr: ir.GraphExpr, frame: Frame) -> Any:
        """The value of an expression, checked against its annotation."""
        if isinstance(expr, ir.GraphVar):
            return frame.values[expr]
        method = self._table.get(type(expr))
        if method is None:
            raise InterpretError(
                f"cannot run the graph expression {type(expr).__name__}",
                code="BW757",
                span=expr.span,
            )
        result = getattr(self, method)(expr, frame)
        self._agreed((expr.info,), result, f"a value {expr!r}"[:80], expr, frame)
        return result

    def _constant(self, expr: ir.Constant, frame: Frame) -> Any:
        if expr not in self.constants:
            data = self.constants[expr] = expr.data.view()
            data.flags.writeable = False
        return self.constants[expr]

    def _scalar(self, expr: ir.PrimValue, frame: Frame) -> Any:
        value = frame.symbols.value(expr.value)
        return expr.value.dtype.numpy().type(value) if isinstance(value, int) else value

    def _shape(self, expr: ir.ShapeExpr, frame: Frame) -> Any:
        return Shape(frame.symbols.shape(expr.values))

    def _text(self, expr: ir.StringValue, frame: Frame) -> Any:
        return expr.value

    def _tuple(self, expr: ir.TupleExpr, frame: Frame) -> Any:
        return tuple(self.value(f, frame) for f in expr.fields)

    def _field(self, expr: ir.TupleGetItem, frame: Frame) -> Any:
        whole = self.value(expr.tuple_value, frame)
        if not is_tuple(whole) or not 0 <= expr.index < len(whole):
            raise GraphError(
                f"field {expr.index} of {described(whole)}", code="BW417", span=expr.span
            )
        return whole[expr.index]

    def _named(self, expr: ir.GlobalVar, frame: Frame) -> Any:
        target = self.module[expr.name]
        return self.function(expr.name) if isinstance(target, ir.GraphFunction) else target

    def _itself(self, expr: ir.GraphExpr, frame: Frame) -> Any:
        return expr

    def _closure(self, expr: ir.GraphFunction, frame: Frame) -> Any:
        return Function(
            expr.replace(attrs=inherited_bounds(expr.attrs, frame.attrs)),
            str(expr.attrs.get("global_symbol", f"a function in {frame.callee.name}")),
            frame.callee.owner,
            self.enter,
            dict(frame.values),
            dict(frame.symbols.values),
        )

    def _if(self, expr: ir.If, frame: Frame) -> Any:
        condition = self.value(expr.condition, frame)
        flag = is_array(condition) or is_scalar(condition)
        if not flag or condition.dtype != np.bool_ or condition.ndim:
            raise InterpretError(
                f"the condition of an `if` is {described(condition)}, not one bool",
                code="BW702",
                span=expr.span,
            )
        symbols = dict(frame.symbols.values)
        result = self.sequence(expr.then_branch if condition else expr.else_branch, frame)
        frame.symbols.values = symbols  # those of the branch end with it
        constant = any(condition is c for c in self.constants.values())
        if isinstance(expr.condition, ir.PrimValue):
            constant = ir.const_int(expr.condition.value) is not None
        return result if constant else detached(result)

    # --------------------------------------------------------------------------------------- calls
    def _call(self, call: ir.GraphCall, frame: Frame) -> Any:
        if isinstance(call.op, ir.OpRef):
            special = self._special.get(call.op.name)
            if special is not None:
                return getattr(self, special)(call, frame)
            args = [self.value(a, frame) for a in call.args]
            return self._operator(call.op, call, args, frame)
        callee = call.op if isinstance(call.op, ir.ExternFunc) else self.value(call.op, frame)
        args = [self.value(a, frame) for a in call.args]
        return self._apply(callee, args, call, frame)

    def _operator(self, op: ir.OpRef, call: ir.GraphCall, args: Sequence[Any], frame: Frame) -> Any:
        known = [self._static(a, frame) for a in call.args]
        check_sizes(call, known, frame.symbols)
        attrs = evaluated_attributes(call.attrs, frame.symbols)
        return operator_result(op.name, args, known, attrs, self.options.exact, call.span)

    def _static(self, arg: ir.GraphExpr, frame: Frame) -> ir.Info | None:
        """What is known about an argument before the program runs."""
        if isinstance(arg, ir.GraphVar):
            return frame.infos.get(arg) or arg.info
        if isinstance(arg, ir.TupleExpr):
            fields = (self._static(f, frame) or ir.ObjectInfo() for f in arg.fields)
            return ir.TupleInfo(tuple(fields))
        if isinstance(arg, ir.TupleGetItem):
            whole = self._static(arg.tuple_value, frame)
            return whole.fields[arg.index] if isinstance(whole, ir.TupleInfo) else None
        return arg.info

    def _apply(self, callee: Any, args: Sequence[Any], call: ir.GraphCall, frame: Frame) -> Any:
        """Call any function value."""
        result = self._result_of(callee, args, call, frame)
        return self.memory.handed_on(callee, result, self.enter)

    def _result_of(self, callee: Any, args: Sequence[Any], call: ir.GraphCall, frame: Frame) -> Any:
        if isinstance(callee, Function):
            inside = callee.run == self.enter
            return self.call(callee, args) if inside else callee(*args)
        if isinstance(callee, Bound):
            return callee(*args)
        if isinstance(callee, ir.OpRef):
            return self._operator(callee, call, args, frame)
        if isinstance(callee, ir.ExternFunc):
            return self._foreign(callee.name, args, call, frame)
        if callable(callee) and not isinstance(callee, ir.Node):
            return admitted(_stated(call), callee(*args, **call.attrs))
        raise GraphError(
            f"{described(callee)} cannot be called as a graph function",
            code="BW415",
            span=call.span,
            help="call a tensor program with R.call_tir",
        )

    def _foreign(self, name: str, args: Sequence[Any], call: ir.GraphCall, frame: Frame) -> Any:
        """Call a foreign function and check its result against the stated annotation."""
        attrs = evaluated_attributes(call.attrs, frame.symbols)
        stated = _stated(call)
        function = find_foreign(name, self.options.packed)
        result = admitted(stated, called_foreign(name, function, args, attrs))
        self._agreed((stated,), result, f"the result of {name}", call, frame)
        return result

    def _packed(self, call: ir.GraphCall, frame: Frame) -> Any:
        function, *args = (self.value(a, frame) for a in call.args)
        return self._apply(function, args, call, frame)

    def _invoke(self, call: ir.GraphCall, frame: Frame) -> Any:
        function, *args = (self.value(a, frame) for a in call.args)
        if len(args) == 1 and is_tuple(args[0]):
            args = list(args[0])
        return self._apply(function, args, call, frame)

    def _bound(self, call: ir.GraphCall, frame: Frame) -> Any:
        """A function with the values of its last arguments."""
        function, captured = (self.value(a, frame) for a in call.args)
        return Bound(function, captured, lambda args: self._apply(function, args, call, frame))

    def _scan(self, call: ir.GraphCall, frame: Frame) -> Any:
        values, parts = [self.value(a, frame) for a in call.args], loop_parts(call)
        carried = len(parts.carried)

        def empty() -> list[Array]:
            infos = [self._static(a, frame) or ir.ObjectInfo() for a in call.args]
            signature = self._annotations(values[0].owner).signature
            whole = deduce_call(call, Analyzer(), self.module, [signature, *infos[1:]])
            assert isinstance(whole, ir.TupleInfo)
            end = len(whole.fields) - (carried if parts.memory else 0)
            return [self._empty(info, frame) for info in whole.fields[carried:end]]

        return detached(run_scan(parts, values, self._applied(call, frame), empty))

    def _empty(self, info: ir.Info, frame: Frame) -> Array:
        """A tensor without elements."""
        assert isinstance(info, ir.TensorInfo)
        assert info.shape is not None
        assert info.dtype is not None
        return np.zeros(frame.symbols.extents(info.shape), info.dtype.numpy())

    def _while_loop(self, call: ir.GraphCall, frame: Frame) -> Any:
        values = [self.value(a, frame) for a in call.args]
        return detached(run_while_loop(loop_parts(call), values, self._applied(call, frame)))

    def _applied(self, call: ir.GraphCall, frame: Frame) -> Callable[[Any, list[Any]], Any]:
        return lambda function, args: self._apply(function, args, call, frame)

    def _shape_of(self, call: ir.GraphCall, frame: Frame) -> Any:
        return Shape(self.value(call.args[0], frame).shape)

    def _loaded_shape(self, call: ir.GraphCall, frame: Frame) -> Any:
        """The elements of a tensor as a shape.

        Raises: InterpretError BW708: one is negative, or exceeds what the call states.
        """
        sizes = Shape(int(size) for size in self.value(call.args[0], frame))
        limits = self.value(call.args[1], frame) if len(call.args) > 1 else sizes
        for axis, (size, limit) in enumerate(zip(sizes, limits, strict=True)):
            if not 0 <= size <= limit:
                rule = f"at most {limit}" if size >= 0 else "at least 0"
                raise InterpretError(
                    f"tensor_to_shape: dimension {axis} is {size}, and must be {rule}",
                    code="BW708",
                    span=call.span,
                )
        return sizes

    def _item(self, call: ir.GraphCall, frame: Frame) -> Any:
        return np.int64(self.value(call.args[0], frame).reshape(())[()])

    def _program(self, call: ir.GraphCall, frame: Frame) -> Any:
        return run_program(
            self.module,
            self.value(call.args[0], frame),
            self.value(call.args[1], frame),
            self.value(call.args[2], frame) if len(call.args) > 2 else Shape(),
            call,
            frame.symbols,
            self.memory,
            self.options.packed,
            self.options.limit,
        )

    def _library(self, call: ir.GraphCall, frame: Frame) -> Any:
        function = call.args[0]
        assert isinstance(function, ir.ExternFunc)
        args = self.value(call.args[1], frame)
        attrs = evaluated_attributes(call.attrs, frame.symbols)
        if function.function is not None:
            found = Foreign(function.function, False)
        else:
            found = find_foreign(function.name, self.options.packed)
        return run_library(found, args, attrs, call, frame.symbols)


def _stated(call: ir.GraphCall) -> ir.Info | None:
    if not call.out_info:
        return None
    return call.out_info[0] if len(call.out_info) == 1 else ir.TupleInfo(call.out_info)
