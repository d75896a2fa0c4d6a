"""The parser of the `T` dialect: walks Python's syntax tree and drives the IR builder.

A problem aborts its statement, and the names that the statement would have defined are poisoned.
Parsing continues, so that all errors are reported, each only once.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterable
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, ClassVar

from blockwright import ir
from blockwright.analysis.access.stable_values import is_pure
from blockwright.ir import Buffer, DType, Expr, PrimFunc, Stmt, Var
from blockwright.ir.dtype import INT32
from blockwright.script.core import (
    POISON,
    MetaVar,
    ParseProblem,
    Reporter,
    Script,
    items_of,
    iterable_of,
    sequence_of,
)
from blockwright.script.tir import blocks, statements
from blockwright.script.tir.builder import (
    Builder,
    FrameOf,
    FuncFrame,
    LoopNest,
    ScopeFrame,
    StatementFrame,
)
from blockwright.script.tir.evaluator import TirEvaluator
from blockwright.script.tir.macro import Macro
from blockwright.script.tir.pointers import name_pointer
from blockwright.script.tir.syntax import (
    function_name,
    loop_names,
    names_of,
    parts_of,
    side_by_side,
    targets,
    without_docstring,
    word,
)
from blockwright.script.tir.values import (
    BufferSlice,
    BufferSpec,
    DTypeFactory,
    to_expr,
)


class TirParser(TirEvaluator):
    """Parses one function of the `T` dialect."""

    statements: ClassVar[dict[type[ast.stmt], Callable[[Any, Any], None]]] = {}

    def __init__(self, script: Script, reporter: Reporter) -> None:
        super().__init__(script, reporter)
        self.builder = Builder()
        self._named: tuple[ast.expr | None, list[str]] = (None, [])
        self._symbols: dict[str, Var] = {}  # symbols for string dimensions of the signature

    # ----------------------------------------------------------------------------------- functions
    def function(
        self,
        node: ast.FunctionDef,
        private: bool = False,
        index_dtype: DType = INT32,
        checked: bool = True,
    ) -> PrimFunc | None:
        """Parse a function; None if problems were reported."""
        before = len(self.reporter.found)
        frame = FuncFrame(function_name(node), private, index_dtype, checked)
        with self.builder, self.scope():
            self.builder.span = self.span(node)
            with self.reporter.statement(node), frame:
                self._params(node.args, frame)
                self.body(without_docstring(node.body))
                self.builder.failed = len(self.reporter.found) > before
        return frame.result if len(self.reporter.found) == before else None

    def _params(self, args: ast.arguments, frame: FuncFrame) -> None:
        extra = [*args.posonlyargs, *args.kwonlyargs, *filter(None, (args.vararg, args.kwarg))]
        for arg in extra:
            self.reporter.add(ParseProblem("BW112", "a parameter is a plain name with a type", arg))
        for default in args.defaults:
            self.reporter.add(ParseProblem("BW112", "a parameter has no default value", default))
        result: dict[str, Var] = {}
        for scalars in (True, False):  # scalars first: shapes may use later scalar parameters
            for arg in args.args:
                if scalars is not isinstance(arg.annotation, (ast.Call, ast.Subscript)):
                    with self.poisoning([arg.arg], arg):
                        result[arg.arg] = self._param(arg, frame)
        frame.params = [result[a.arg] for a in args.args if a.arg in result]

    def _param(self, arg: ast.arg, frame: FuncFrame) -> Var:
        if arg.annotation is None:
            raise ParseProblem(
                "BW112",
                f"parameter {arg.arg!r} has no type",
                arg,
                "write a: T.handle, n: T.int64 or A: T.Buffer(shape, dtype)",
            )
        annotation = arg.annotation
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            annotation = ast.parse(annotation.value, mode="eval").body
            for part in ast.walk(annotation):
                ast.copy_location(part, arg.annotation)
        kind = self.eval(annotation)
        if isinstance(kind, DTypeFactory) or (isinstance(kind, Var) and kind.type.is_handle):
            var = Var(arg.arg, kind.dtype, span=self.span(arg))  # T.handle("float32") too
            self.bind(arg.arg, var)
            return var
        if isinstance(kind, BufferSpec):
            handle = Var(f"{arg.arg}_handle", ir.dtype_of("handle"), span=self.span(arg))
            self.builder.span = self.span(arg)
            options = dict(kind.options)
            if "data" in options:
                raise ParseProblem("BW112", "a parameter provides its own memory; omit data", arg)
            if "strides" in options:
                options["strides"] = self._named_dims(options["strides"])
            shape = self._named_dims(kind.shape)
            try:
                buffer = statements.make_buffer(arg.arg, shape, kind.dtype, **options)
            except TypeError as error:
                text = str(error).removeprefix("make_buffer() ")
                raise ParseProblem(
                    "BW106", f"wrong call of T.Buffer: it {text}", annotation
                ) from error
            frame.buffer_map[handle] = buffer
            self.bind(arg.arg, buffer)
            return handle
        raise ParseProblem(
            "BW112",
            f"{ast.unparse(arg.annotation)!r} is not a parameter type",
            arg.annotation,
            "write T.handle, a type such as T.int64, or T.Buffer(…)",
        )

    def _named_dims(self, shape: Any) -> Any:
        """Replace string dimensions by symbols: `T.Buffer(("n", 4))`."""
        out: list[Any] = []
        for item in items_of(shape):
            if isinstance(item, str):
                known = self.scopes[-1].get(item)
                if known is None:
                    known = self._symbols[item] = Var(item, ir.dtype_of("int64"))
                    self.bind(item, known)
                item = known
            out.append(item)
        return tuple(out)

    def called(self, func: Any, args: list[Any], kwargs: dict[str, Any], node: ast.Call) -> Any:
        if node is self._named[0]:  # set only now, so that the arguments do not consume the names
            self.builder.hints = self._named[1]
        if isinstance(func, Macro):
            return func.expand(self, args, kwargs, node)
        return super().called(func, args, kwargs, node)

    def fragment(self, body: list[ast.stmt]) -> Any:
        """Expand a macro body at its call; a final `return` is the value of the call."""
        last = body[-1] if isinstance(body[-1], ast.Return) else None
        self.body(without_docstring(body if last is None else body[:-1]))
        return None if last is None or last.value is None else self.eval(last.value)

    # ---------------------------------------------------------------------------------- statements
    @contextmanager
    def scope(self) -> Any:
        self.scopes.append({})
        try:
            yield
        finally:
            self.scopes.pop()

    @contextmanager
    def poisoning(self, names: Iterable[str], node: ast.AST) -> Any:
        """Report problems inside; on failure, bind `names` to `POISON`."""
        done = False
        with self.reporter.statement(node):
            yield
            done = True
        if not done:
            self.builder.failed = True
            for name in names:
                self.bind(name, POISON)

    def body(self, nodes: Iterable[ast.stmt]) -> None:
        for node in nodes:
            depth = len(self.builder.frames)
            with self.poisoning(targets(node), node):
                self.builder.span = self.span(node)
                self.builder.hints = []
                self.statement(node)
            del self.builder.frames[depth:]

    def statement(self, node: ast.stmt) -> None:
        method = self.statements.get(type(node))
        if method is None:
            raise ParseProblem("BW103", f"`{word(node)}` is not a statement of the T dialect", node)
        method(self, node)

    def indented(self, nodes: Iterable[ast.stmt]) -> None:
        with self.scope():
            self.body(nodes)

    def evaluate_named(self, value: ast.expr, target: ast.expr | None) -> Any:
        """Evaluate an expression whose definitions are named after the assignment target."""
        outer, self._named = self._named, (value, names_of(target))
        self.builder.hints = []
        result = self.eval(value)
        self.builder.hints = []
        self._named = outer
        return result

    def assign(self, target: ast.expr, value: Any, node: ast.stmt) -> None:
        """Bind names to a value; a computed expression becomes a let variable of the program."""
        if isinstance(target, (ast.Tuple, ast.List)):
            meta = isinstance(value, MetaVar)
            items = sequence_of(value.value if isinstance(value, MetaVar) else value)
            parts = None if items is None else parts_of(target.elts, len(items))
            if items is None or parts is None:
                got = "one value" if items is None else f"{len(items)} values"
                raise ParseProblem(
                    "BW106", f"{len(target.elts)} names on the left, {got} on the right", node
                )
            for part, place in parts:
                item = MetaVar(items[place]) if meta else items[place]
                if isinstance(place, slice):  # a list of values is a Python value
                    self.assign_plain(part, items[place])
                else:
                    self.assign(part, item, node)
        elif not isinstance(target, ast.Name):
            raise ParseProblem("BW103", "this cannot be assigned to", target)
        elif isinstance(value, MetaVar):
            self.bind(target.id, value.value)
        elif isinstance(value, BufferSpec):
            self.bind(target.id, statements.declared(value).rest(target.id))
        elif isinstance(value, ScopeFrame):
            self.bind(target.id, value.rest(target.id))
        elif isinstance(value, (StatementFrame, LoopNest)):
            raise ParseProblem(
                "BW103", "this opens a block or loop", node, "use it with `with` or `for`"
            )
        elif isinstance(value, Var) and target.id in self._symbols:
            known = self._symbols[target.id]
            if value not in self.builder.fresh or value.type is not known.type:
                raise ParseProblem(
                    "BW107", f"{target.id!r} is a dimension of type {known.type}", node
                )
        elif isinstance(value, (Expr, BufferSlice)) and value not in self.builder.fresh:
            self.let(target.id, to_expr(value), node)
        else:
            self.bind(target.id, value)

    def let(self, name: str, value: Expr, node: ast.stmt) -> None:
        if value.dtype.is_handle:
            self.builder.span = self.span(node)
            self.bind(name, name_pointer(value, name).rest())
            return
        var = Var(name, value.dtype, span=self.span(node))
        self.bind(name, ScopeFrame(partial(_let, var, value), name).rest())

    def visit_Assign(self, node: ast.Assign) -> None:
        if len(node.targets) != 1:
            raise ParseProblem("BW103", "one assignment at a time", node)
        target = node.targets[0]
        if isinstance(target, ast.Subscript):
            self._store(target, self.eval(node.value), node)
            return
        pairs = side_by_side(target, node.value)
        if not pairs:
            pairs = [(target, node.value)]
        result = [(part, self.evaluate_named(value, part)) for part, value in pairs]
        for part, value in result:
            self.assign(part, value, node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if not isinstance(node.target, ast.Name) or node.value is None:
            raise ParseProblem("BW103", "an annotated name needs a value", node)
        kind = self.eval(node.annotation)
        # T.handle("float32") is a call that returns a fresh variable.
        pointer = isinstance(kind, Var) and kind in self.builder.fresh and kind.type.is_handle
        if not isinstance(kind, DTypeFactory) and not pointer:
            raise ParseProblem(
                "BW107",
                f"{ast.unparse(node.annotation)!r} is not a type",
                node.annotation,
                "write x: T.int32 = …",
            )
        value = to_expr(self.eval(node.value), kind.dtype)
        if value.dtype is not kind.dtype:
            raise ParseProblem(
                "BW107",
                f"the value is {value.dtype}, the variable {kind.dtype}",
                node,
                f'convert it: T.Cast("{kind.dtype}", …)',
            )
        self.let(node.target.id, value, node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if not isinstance(node.target, ast.Subscript):
            raise ParseProblem(
                "BW103",
                "only buffer elements can be updated",
                node,
                "a variable has one value; use a buffer with one element",
            )
        value = self._updated(node, node.target)
        if not isinstance(value, Expr) or is_pure(value):
            self._store(node.target, value, node)
            return
        with ExitStack() as stack, self.scope():
            target = self._evaluated_once(node.target, stack)
            self._store(target, self._updated(node, target), node)

    def _updated(self, node: ast.AugAssign, target: ast.Subscript) -> Any:
        read = ast.Subscript(target.value, target.slice, ast.Load())
        value = ast.BinOp(ast.copy_location(read, node.target), node.op, node.value)
        return self.eval(ast.copy_location(value, node))

    def _evaluated_once(self, target: ast.Subscript, stack: ExitStack) -> ast.Subscript:
        """The element whose indices are names of what is evaluated before the update."""
        place = target.slice
        names: list[ast.expr] = []
        for part in place.elts if isinstance(place, ast.Tuple) else [place]:
            value = None if isinstance(part, ast.Slice) else self.eval(part)
            if not isinstance(value, Expr) or isinstance(value, (Var, ir.IntImm)):
                names.append(part)
                continue
            var = Var("place", value.dtype, span=self.span(part))
            stack.enter_context(ScopeFrame(partial(_let, var, value), "place"))
            hidden = f"{len(names)}th index"  # no name of a script
            self.bind(hidden, self.builder.define(var))
            names.append(ast.copy_location(ast.Name(hidden, ast.Load()), part))
        once = names[0] if len(names) == 1 else ast.copy_location(ast.Tuple(names), place)
        return ast.copy_location(ast.Subscript(target.value, once, ast.Store()), target)

    def _store(self, target: ast.Subscript, value: Any, node: ast.stmt) -> None:
        buffer = self.eval(target.value)
        if not isinstance(buffer, Buffer):
            raise ParseProblem("BW103", f"{ast.unparse(target.value)!r} is not a buffer", target)
        index = self.eval(target.slice)
        self.builder.span = self.span(node)
        statements.buffer_store(buffer, value, index)

    def visit_Expr(self, node: ast.Expr) -> None:
        value = self.evaluate_named(node.value, None)
        self.builder.span = self.span(node)
        if isinstance(value, ScopeFrame):
            value.rest()
        elif isinstance(value, ir.Call) and ir.op_has_effect(value.op):
            statements.evaluate(value)
        elif isinstance(value, Expr):
            raise ParseProblem(
                "BW103",
                "the value of this expression is discarded",
                node,
                "store it, or write T.evaluate(…)",
            )
        elif isinstance(value, StatementFrame):
            raise ParseProblem(
                "BW103", "this opens a block or loop", node, "use it with `with` or `for`"
            )
        elif isinstance(value, (BufferSlice, BufferSpec, Buffer, DTypeFactory)):
            raise ParseProblem("BW103", "this is not a statement", node)

    def visit_For(self, node: ast.For) -> None:
        if node.orelse:
            raise ParseProblem("BW103", "`for … else` is not part of the dialect", node.orelse[0])
        source = self._iterable(node.iter)
        if not isinstance(source, LoopNest):
            self._unrolled(node, source)
            return
        wanted, target = len(source.specs), node.target
        if isinstance(target, ast.Name):  # all loop variables of a grid as one list
            self.builder.hints = (
                [target.id] * wanted if wanted == 1 else [f"{target.id}_{k}" for k in range(wanted)]
            )
            parts: Any = [(target, 0 if wanted == 1 else slice(None))]
        else:
            parts = parts_of(
                list(target.elts) if isinstance(target, (ast.Tuple, ast.List)) else [target], wanted
            )
            if parts is None:
                names = names_of(target)
                raise ParseProblem(
                    "BW106", f"{wanted} loops, but {len(names)} loop variables", target
                )
            self.builder.hints = loop_names(parts, wanted)
        with source, self.scope():
            for part, place in parts:
                self.assign_plain(part, source.indices[place])
            self.body(node.body)

    def _iterable(self, node: ast.expr) -> Any:
        is_range = (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and (node.func.id == "range")
            and self.lookup("range", node) is builtins.range
        )
        if is_range and isinstance(node, ast.Call):
            bounds = [self.eval(a) for a in node.args]
            if not 1 <= len(bounds) <= 3:
                raise ParseProblem(
                    "BW106", "a loop takes range(stop) or range(start, stop, step)", node
                )
            annotations = next((self.eval(k.value) for k in node.keywords), None)
            step = bounds.pop() if len(bounds) == 3 else None
            return blocks.serial(*bounds, annotations=annotations, step=step)
        return self.eval(node)

    def _unrolled(self, node: ast.For, source: Any) -> None:
        """A loop over a Python iterable: parse the body once per element."""
        nodes = (Expr, Buffer, BufferSlice)
        items = None if isinstance(source, nodes) else iterable_of(source)
        if items is None:
            raise ParseProblem(
                "BW103",
                "this is not a loop",
                node.iter,
                "write range(n), T.grid(…), T.parallel(…) or a Python list",
            )
        for item in items:
            with self.scope():
                self.assign_plain(node.target, item)
                self.body(node.body)

    def visit_While(self, node: ast.While) -> None:
        condition = to_expr(self.eval(node.test), ir.dtype_of("bool"))
        span = self.span(node)
        emit = self.builder.emit
        with FrameOf(lambda body: emit(ir.While(condition, body, span=span))):
            self.indented(node.body)

    def visit_If(self, node: ast.If) -> None:
        condition = self.operand(self.eval(node.test))
        if not isinstance(condition, Expr):
            self.indented(node.body if condition else node.orelse)
            return
        span, taken = self.span(node), list[Stmt]()
        for branch in (node.body, node.orelse):
            if branch:
                with FrameOf(taken.append):
                    self.indented(branch)
        self.builder.emit(ir.IfThenElse(condition, *taken, span=span))

    def visit_With(self, node: ast.With) -> None:
        with ExitStack() as stack, self.scope():
            for item in node.items:
                call = item.context_expr
                value = self.eval(call)
                if not hasattr(value, "__enter__"):
                    raise ParseProblem(
                        "BW103", f"`with {ast.unparse(call)}` is not part of the dialect", call
                    )
                self.builder.span = self.span(item.context_expr)
                self.builder.hints = names_of(item.optional_vars)
                result = stack.enter_context(value)
                self.builder.hints = []
                if isinstance(result, Var) and isinstance(
                    item.optional_vars, (ast.List, ast.Tuple)
                ):
                    result = [result]  # `with T.block([n]) as [i]`
                if item.optional_vars is not None:
                    self.assign(item.optional_vars, result, node)
            self.body(node.body)
            self.builder.span = self.span(node)

    def visit_Assert(self, node: ast.Assert) -> None:
        condition = to_expr(self.eval(node.test), ir.dtype_of("bool"))
        message = "assertion failed" if node.msg is None else self.eval(node.msg)
        statements.Assert(condition, message)

    def visit_Pass(self, node: ast.Pass) -> None:
        """`pass` emits nothing."""

    def visit_Break(self, node: ast.Break) -> None:
        statements.evaluate(ir.call("break"))

    def visit_Continue(self, node: ast.Continue) -> None:
        statements.evaluate(ir.call("continue"))

    def visit_Return(self, node: ast.Return) -> None:
        values = [] if node.value is None else [to_expr(self.eval(node.value))]
        statements.evaluate(ir.call("ret", *values))


def _let(var: Var, value: Expr, _: str) -> tuple[Var, Callable[[Stmt], Stmt]]:
    """What a scope defines that names a value, and how it wraps its statements."""
    return var, lambda body: ir.LetStmt(var, value, body, span=var.span)


TirParser.statements.update({
    getattr(ast, name.removeprefix("visit_")): method
    for name, method in vars(TirParser).items()
    if name.startswith("visit_")
})  # fmt: skip
