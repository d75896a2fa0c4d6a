"""The parser of the `R` dialect; produces graph functions in A-normal form.

Nested operator calls are bound to fresh variables, so that every operand is a variable, a constant,
a shape or a tuple of these. Declared annotations are kept; no annotations are deduced here.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any, ClassVar, cast

from blockwright import ir
from blockwright.ir import Expr, GraphCall, GraphExpr, GraphFunction, GraphVar, Info, Var
from blockwright.script.core import POISON, ParseProblem, Reporter, Script, items_of, sequence_of
from blockwright.script.relax.evaluator import DataflowLocal, RelaxEvaluator
from blockwright.script.relax.infos import as_info, dimension, symbols
from blockwright.script.relax.sequence import Sequence
from blockwright.script.relax.syntax import (
    declared_types,
    defined,
    last_assignment,
    output_names,
    parse_text,
    word,
)
from blockwright.script.relax.values import (
    DataflowMarker,
    MatchCastValue,
    OpName,
    OutputMarker,
    SizeValue,
    as_graph,
    tuple_,
)
from blockwright.script.tir.evaluator import FunctionRef
from blockwright.script.tir.syntax import function_name, without_docstring
from blockwright.support import ScriptError

_RENAME = "give the symbol or the parameter another name"


class RelaxParser(RelaxEvaluator):
    """Parses one function and the functions nested in it."""

    statements: ClassVar[dict[type[ast.stmt], Callable[[Any, Any], None]]] = {}

    def __init__(self, script: Script, reporter: Reporter) -> None:
        super().__init__(script, reporter)
        self.sequence = Sequence()
        self.attrs: dict[str, Any] = {}
        self.outputs: set[str] | None = None  # outputs of the current dataflow block, if any
        self._symbol_types: dict[str, str] = {}
        self._defined_now = ""  # the parameter whose annotation is being parsed
        self._counts: Counter[str] = Counter()

    # ----------------------------------------------------------------------------------- functions
    def function(
        self, node: ast.FunctionDef, private: bool = False, pure: bool = True, nested: bool = False
    ) -> GraphFunction | None:
        """Parse a function; None if problems were reported."""
        before = len(self.reporter.found)
        saved = (self.sequence, self.attrs, self.outputs, self._symbol_types)
        self.sequence, self.attrs, self.outputs = Sequence(), {}, None
        self._symbol_types = declared_types(node)
        result: GraphFunction | None = None
        self.scopes.append({})
        try:
            with symbols(self._symbol), self.reporter.statement(node):
                params = [p for p in map(self._param, self._plain_args(node.args)) if p is not None]
                returns = None if node.returns is None else self._info(node.returns)
                self._body_of_function(node)
                if len(self.reporter.found) == before and self.sequence.result is not None:
                    attrs = self._attributes(function_name(node), private or nested)
                    body = self.sequence.finish(self.sequence.result)
                    result = GraphFunction(
                        tuple(params), body, returns, attrs, pure, span=self.span(node)
                    )
        finally:
            self.scopes.pop()
            self.sequence, self.attrs, self.outputs, self._symbol_types = saved
        return result

    def _attributes(self, name: str, anonymous: bool) -> dict[str, Any]:
        attrs = dict(self.attrs)
        if attrs.get("global_symbol", name) is None:
            del attrs["global_symbol"]
        elif not anonymous:
            attrs.setdefault("global_symbol", name)
        return attrs

    def _plain_args(self, args: ast.arguments) -> list[ast.arg]:
        extra = [*args.posonlyargs, *args.kwonlyargs, *filter(None, (args.vararg, args.kwarg))]
        for arg in extra:
            self.reporter.add(ParseProblem("BW112", "a parameter is a plain name with a type", arg))
        for default in args.defaults:
            self.reporter.add(ParseProblem("BW112", "a parameter has no default value", default))
        return args.args

    def _param(self, arg: ast.arg) -> GraphVar | None:
        known = self.scopes[-1].get(arg.arg)
        self.bind(arg.arg, POISON)
        self._defined_now = arg.arg
        with self.reporter.statement(arg):
            if isinstance(known, GraphVar):
                raise ParseProblem("BW111", f"there are two parameters {arg.arg!r}", arg)
            if isinstance(known, Var):
                raise ParseProblem(
                    "BW111", f"{arg.arg!r} is a symbol of an earlier parameter", arg, _RENAME
                )
            info = None if arg.annotation is None else self._info(arg.annotation)
            self._defined_now = ""
            param = GraphVar(arg.arg, info=info, span=self.span(arg))
            self.bind(arg.arg, param)
            return param
        self._defined_now = ""
        return None

    def _info(self, node: ast.expr) -> Info:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node = parse_text(node.value, node)
        try:
            return as_info(self.eval(node))
        except ScriptError as error:
            raise ParseProblem(error.code, error.message, node, error.help) from None

    def _body_of_function(self, node: ast.FunctionDef) -> None:
        body = without_docstring(node.body)
        if not body or not isinstance(body[-1], ast.Return):
            self.reporter.add(
                ParseProblem(
                    "BW103",
                    "a graph function ends with `return`",
                    node,
                    "return the value of the function on the last line",
                )
            )
        self.body(body)

    def fragment(self, body: list[ast.stmt]) -> Any:
        """Expand a macro body at its call; the final `return` is the value of the call."""
        last = body[-1] if isinstance(body[-1], ast.Return) else None
        self.body(without_docstring(body if last is None else body[:-1]))
        return None if last is None or last.value is None else self.eval(last.value)

    # ------------------------------------------------------------------------------------- symbols
    def _symbol(self, text: str) -> Expr:
        """Parse a dimension given as text; unknown names become new symbols."""
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except SyntaxError:
            raise ScriptError(
                f"{text!r} is not a dimension", code="BW107", help='write "n" or "n * 2"'
            ) from None
        for part in ast.walk(tree):
            if isinstance(part, ast.Name) and part.id == self._defined_now:
                raise ScriptError(
                    f"{part.id!r} is the parameter itself, not a symbol of its shape",
                    code="BW111",
                    help=_RENAME,
                )
            if isinstance(part, ast.Name) and not self._is_known(part.id):
                kind = self._symbol_types.get(part.id, "int64")
                self.bind(part.id, Var(part.id, ir.dtype_of(kind)))
        try:
            return dimension(self.eval(tree))
        except ParseProblem as problem:  # its location is relative to the text
            raise ScriptError(problem.message, code=problem.code, help=problem.help) from None

    def _is_known(self, name: str) -> bool:
        if any(name in scope for scope in self.scopes):
            return True
        return isinstance(self.script.env.get(name), Expr) or name in ("T", "R", "I")

    # ---------------------------------------------------------------------------------- statements
    def body(self, nodes: Iterable[ast.stmt]) -> None:
        for node in nodes:
            done = False
            with self.reporter.statement(node):
                if self.sequence.result is not None:
                    raise ParseProblem("BW103", "nothing follows `return`", node)
                method = self.statements.get(type(node))
                if method is None:
                    raise ParseProblem(
                        "BW103", f"`{word(node)}` is not a statement of the R dialect", node
                    )
                method(self, node)
                done = True
            if not done:
                for name in defined(node):
                    self.bind(name, POISON)

    def emit(self, name: str, value: GraphExpr, info: Info | None, node: ast.AST) -> GraphVar:
        """Emit a binding of a value to a new variable."""
        value = self.normal(value, node, top=True)
        if info is not None and value.info is None and not isinstance(value, GraphVar):
            value = value.replace(info=info)
        local = self.outputs is not None and name not in self.outputs
        var = GraphVar(name, local, info=info, span=self.span(node))
        self.sequence.bindings.append(ir.VarBinding(var, value, span=self.span(node)))
        return var

    def normal(self, value: GraphExpr, node: ast.AST, top: bool = False) -> GraphExpr:
        """The value in A-normal form: nested calls are bound to fresh variables."""
        if isinstance(value, GraphCall):
            call = value.replace(args=tuple(self.normal(a, node) for a in value.args))
            if all(a is b for a, b in zip(call.args, value.args, strict=True)):
                call = value
            return call if top else self.emit(self._fresh("lv"), call, call.info, node)
        if isinstance(value, ir.TupleExpr):
            fields = tuple(self.normal(f, node) for f in value.fields)
            same = all(a is b for a, b in zip(fields, value.fields, strict=True))
            return value if same else value.replace(fields=fields)
        if isinstance(value, ir.TupleGetItem):
            inner = self.normal(value.tuple_value, node)
            return value if inner is value.tuple_value else value.replace(tuple_value=inner)
        return value

    def _fresh(self, base: str) -> str:
        self._counts[base] += 1
        return f"{base}_{self._counts[base] - 1}" if self._counts[base] > 1 else base

    def visit_Assign(self, node: ast.Assign) -> None:
        if len(node.targets) != 1:
            raise ParseProblem("BW103", "one assignment at a time", node)
        self.assign(node.targets[0], self.eval(node.value), None, node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is None:
            raise ParseProblem("BW103", "an annotated name needs a value", node)
        info = self._info(node.annotation)
        value = self.eval(node.value)
        if not isinstance(value, (GraphExpr, MatchCastValue, OpName, SizeValue)):
            value = as_graph(value)
        self.assign(node.target, value, info, node)

    def assign(self, target: ast.expr, value: Any, info: Info | None, node: ast.stmt) -> None:
        """Bind a name; graph values become bindings of the program, other values do not."""
        if isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(target, value, node)
            return
        if not isinstance(target, ast.Name):
            raise ParseProblem("BW103", "graph values are immutable; bind a new name", target)
        if isinstance(value, MatchCastValue):
            self.bind(target.id, self._match_cast(target.id, value, info, node))
            return
        if isinstance(value, SizeValue):
            self.bind(target.id, self._size(target.id, value, node))
            return
        if isinstance(value, Var) and value.name == "":
            self.bind(target.id, self._symbol_named(target.id, value, node))
            return
        graphs = (GraphExpr, FunctionRef, OpName)
        whole = any(isinstance(v, graphs) for v in sequence_of(value) or ())
        if isinstance(value, graphs) or whole:
            self.bind(target.id, self.emit(target.id, as_graph(value), info, node))
        else:
            self.bind(target.id, value)

    def _unpack(self, target: ast.Tuple | ast.List, value: Any, node: ast.stmt) -> None:
        if isinstance(value, GraphExpr) and not isinstance(value, ir.TupleExpr):
            if not isinstance(value, GraphVar):
                value = self.emit(self._fresh("lv"), value, None, node)
            items: list[Any] = [ir.TupleGetItem(value, k) for k in range(len(target.elts))]
        else:
            items = items_of(value.fields if isinstance(value, ir.TupleExpr) else value)
        if len(items) != len(target.elts):
            raise ParseProblem(
                "BW106",
                f"{len(target.elts)} names on the left, {len(items)} values on the right",
                node,
            )
        for part, item in zip(target.elts, items, strict=True):
            self.assign(part, item, None, node)

    def _match_cast(
        self, name: str, cast: MatchCastValue, info: Info | None, node: ast.stmt
    ) -> GraphVar:
        value = self.normal(cast.value, node)
        local = self.outputs is not None and name not in self.outputs
        var = GraphVar(
            name, local, info=cast.pattern if info is None else info, span=self.span(node)
        )
        self.sequence.bindings.append(
            ir.MatchCast(var, value, cast.pattern, cast.message, cast.values, span=self.span(node))
        )
        return var

    def _size(self, name: str, size: SizeValue, node: ast.stmt) -> Expr:
        """The size of an axis; a cast binds a symbol to it if the annotation does not state it."""
        tensor = self.normal(size.tensor, node)
        info = tensor.info
        if not isinstance(info, ir.TensorInfo) or info.rank < 0:
            raise ParseProblem(
                "BW107",
                "R.get_shape_value needs a tensor that is annotated with its number of dimensions",
                node,
                "annotate it with R.Tensor(ndim=2), or bind its sizes with R.match_cast",
            )
        rank = info.rank
        axis = size.axis + rank if size.axis < 0 else size.axis
        if not 0 <= axis < rank:
            raise ParseProblem(
                "BW107", f"axis {size.axis} of a tensor of {rank} dimensions", node, "count from 0"
            )
        if info.shape is not None:
            return info.shape[axis]
        int64 = ir.dtype_of("int64")
        dims = [Var(name if k == axis else f"{name}_{k}", int64) for k in range(rank)]
        pattern = ir.TensorInfo(tuple(dims), info.dtype, device=info.device)
        self._match_cast(self._fresh("lv"), MatchCastValue(tensor, pattern, "", ()), None, node)
        return dims[axis]

    def _symbol_named(self, name: str, made: Var, node: ast.AST) -> Var:
        """`n = T.int64()`: the symbol "n" of the signature, or a new one."""
        known = next((s[name] for s in reversed(self.scopes) if name in s), None)
        if isinstance(known, Var):
            if known.type is not made.type:
                raise ParseProblem(
                    "BW107", f"symbol {name!r} is {known.type}, not {made.type}", node
                )
            return known
        return Var(name, made.type, span=self.span(node))

    def visit_Expr(self, node: ast.Expr) -> None:
        value = self.eval(node.value)
        if isinstance(value, GraphCall):
            self.emit("_", value, None, node)
        elif isinstance(value, OutputMarker):
            if self.outputs is None:
                raise ParseProblem("BW108", "R.output is outside a dataflow block", node)
        elif isinstance(value, (GraphExpr, MatchCastValue)):
            raise ParseProblem("BW103", "this value is discarded", node, "bind it to a name")
        elif isinstance(value, dict):
            self.attrs.update(cast("dict[str, Any]", value))

    def visit_With(self, node: ast.With) -> None:
        call = node.items[0].context_expr
        marker = self.eval(call)
        if len(node.items) != 1 or not isinstance(marker, DataflowMarker):
            raise ParseProblem(
                "BW103",
                f"`with {ast.unparse(call)}` is not part of the dialect",
                call,
                "write with R.dataflow():",
            )
        if self.outputs is not None:
            raise ParseProblem("BW108", "dataflow blocks do not nest", node)
        self.sequence.close(dataflow=False)
        self.outputs = output_names(node.body)
        self.scopes.append({})
        try:
            self.body(node.body)
            inner = self.scopes[-1]
            for name in sorted(self.outputs - inner.keys()):
                self.reporter.add(
                    ParseProblem(
                        "BW102", f"{name!r} is not defined in the dataflow block", node.body[-1]
                    )
                )
            kept = {
                k: v if k in self.outputs or not isinstance(v, GraphVar) else DataflowLocal()
                for k, v in inner.items()
            }
        finally:
            self.scopes.pop()
            self.outputs = None
        self.sequence.close(dataflow=True)
        self.scopes[-1].update(kept)

    def visit_If(self, node: ast.If) -> None:
        condition = self.eval(node.test)
        if not isinstance(condition, GraphExpr):
            self.body(node.body if condition else node.orelse)
            return
        name, value, info = self._choice(node, condition)
        self.bind(name, self.emit(name, value, info, node))

    def _choice(self, node: ast.If, condition: GraphExpr) -> tuple[str, ir.If, Info | None]:
        """Parse an `if` at run time; returns the name and annotation of its value too."""
        if self.outputs is not None:
            raise ParseProblem(
                "BW108", "a dataflow block has no `if`", node, "end the dataflow block before it"
            )
        condition = self.normal(condition, node)
        then, name, info = self._branch(node.body, node)
        other, other_name, other_info = self._branch(node.orelse, node)
        if name != other_name:
            raise ParseProblem(
                "BW103",
                f"the branches end with {name!r} and {other_name!r}",
                node,
                "both must end by assigning the same name, the value of the `if`",
            )
        stated = info is not None and other_info is not None
        if stated and not ir.structural_equal(info, other_info):
            raise ParseProblem(
                "BW107",
                f"the branches annotate {name!r} differently",
                node,
                "it is one value; annotate it in one branch only",
            )
        return name, ir.If(condition, then, other), info if info is not None else other_info

    def _branch(self, body: list[ast.stmt], node: ast.If) -> tuple[ir.SeqExpr, str, Info | None]:
        """Parse a branch; its value is that of its last assignment, or of the `if` at its end."""
        with self._inner() as sequence:
            while body and isinstance(last := body[-1], ast.If):
                self.body(body[:-1])
                condition = self.eval(last.test)
                if isinstance(condition, GraphExpr):
                    name, value, info = self._choice(last, condition)
                    return sequence.finish(self.emit(name, value, info, last)), name, info
                body = last.body if condition else last.orelse
            target, value_node = last_assignment(body, node)
            self.body(body[:-1])
            with self.reporter.statement(value_node):
                last = body[-1]
                info = self._info(last.annotation) if isinstance(last, ast.AnnAssign) else None
                found = self.eval(value_node)
                if isinstance(found, MatchCastValue):
                    cast_value = self._match_cast(target, found, info, last)
                    return sequence.finish(cast_value), target, info
                if isinstance(found, SizeValue):
                    found = self._size(target, found, last)
                value = as_graph(found)
                if isinstance(value, GraphCall):
                    value = self.emit(target, value, info, value_node)
                return sequence.finish(self.normal(value, value_node)), target, info
        raise ParseProblem("BW103", "this branch has no value", node)

    @contextmanager
    def _inner(self) -> Generator[Sequence]:
        saved, self.sequence = self.sequence, Sequence()
        self.scopes.append({})
        try:
            yield self.sequence
        finally:
            self.scopes.pop()
            self.sequence = saved

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        pure = True
        for decorator in node.decorator_list:
            options = self.eval(decorator)
            pure = pure and getattr(options, "pure", True)
        function = self.function(node, pure=pure, nested=True)
        if function is None:
            self.bind(node.name, POISON)
            return
        infos = [p.info for p in function.params]
        info = None
        if function.ret_info is not None and all(i is not None for i in infos):
            known = tuple(i for i in infos if i is not None)
            info = ir.CallableInfo(known, function.ret_info, pure)
        self.bind(node.name, self.emit(node.name, function, info, node))

    def visit_Return(self, node: ast.Return) -> None:
        if self.outputs is not None:
            raise ParseProblem("BW108", "`return` is inside a dataflow block", node)
        value = self.eval(node.value) if node.value is not None else tuple_()
        result = as_graph(value)
        if isinstance(result, GraphCall):
            result = self.emit(self._fresh("gv"), result, None, node)
        self.sequence.result = self.normal(result, node)

    def visit_Pass(self, node: ast.Pass) -> None:
        """`pass` emits nothing."""


RelaxParser.statements.update({
    getattr(ast, name.removeprefix("visit_")): method
    for name, method in vars(RelaxParser).items()
    if name.startswith("visit_")
})  # fmt: skip
