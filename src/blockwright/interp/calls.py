"""Calls with effects or checks: module functions, packed functions, constants, print, jumps."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from blockwright.analysis import AlignRow
from blockwright.analysis.validate.operands import NO_RESULT, NO_RESULT_HELP, returns_value
from blockwright.interp.atomic import AtomicCompiler
from blockwright.interp.lanes import Break, Continue, Env, Fn, Return, RunState, Site, pick
from blockwright.interp.memory import Array, MemoryBlock, Pointer, TypedView
from blockwright.interp.numeric import is_array
from blockwright.interp.objects import OBJECT_OPERATIONS, compile_object
from blockwright.interp.privatization import Privates
from blockwright.ir import (
    LARGE_ARGUMENT,
    LARGE_ARGUMENT_HELP,
    TENSOR_OF_PART,
    Buffer,
    BufferLoad,
    Call,
    Evaluate,
    Expr,
    Stmt,
    StringImm,
    atomic_place,
    dtype_of,
    is_atomic,
    tensor_problem,
)
from blockwright.support import Diagnostic, InterpretError, ValidationError

_LARGEST = dtype_of("int64").max_value

Run = Callable[[Env], None]
CallGlobal = Callable[[RunState, str, list[Any]], None]


class CallCompiler(AtomicCompiler):
    """Adds calls to expressions. `call_global` runs another function of the module."""

    def __init__(self, call_global: CallGlobal) -> None:
        super().__init__()
        self.call_global = call_global
        self.privates: Privates = {}
        self.alignment: dict[Buffer, tuple[AlignRow, ...]] = {}

    def stmt(self, node: Stmt) -> Run:
        """A closure that runs a statement; implemented by the statement compiler."""
        raise NotImplementedError

    def after_barrier(self, part: Stmt) -> list[Run]:
        """A statement, preceded by a barrier if it shares memory with blocks that have run."""
        return [self.stmt(part)]

    def _evaluate(self, node: Evaluate) -> Run:
        value = node.value
        if isinstance(value, Call) and value.op in ("address_of", "tensor"):
            return self.pointer(value)
        self.evaluated = value
        run = self._compile(value)
        self.evaluated = None
        place = atomic_place(value) if is_atomic(value) else None
        shown = isinstance(value, Call) and value.op == "print"
        scopes = ["global"] if shown else [] if place is None else [place.buffer.scope]
        return self.by_one(run, scopes)

    def _effect(self, expr: Call) -> Fn:
        methods: dict[str, Callable[[Call], Fn]] = {
            "call_global": self._call_global, "call_packed": self._call_packed,
            "print": self._print, "address_of": self.pointer,
            "constant_data": self._constant, "tensor": self._tensor,
            "result_memory": self._result_memory,
            "result_size": lambda e: self.index(e.args[2]),
            "checked_index": self._checked, "checked_divisor": self._divisor,
            "as_index": self._as_index,
            "assume": self._assume,
        }  # fmt: skip
        if expr.op in OBJECT_OPERATIONS:
            return compile_object(self, expr)
        method = self.atomic if is_atomic(expr) else methods.get(expr.op)
        if method is not None:
            return method(expr)
        if expr.op in ("prefetch", "undef"):
            return lambda env: 0
        if expr.op not in ("break", "continue", "ret"):
            return super()._effect(expr)

        if expr.op == "ret" and self.launch is not None:
            raise InterpretError(
                "a kernel returns early",
                code="BW757",
                span=self.here,
                help="guard the rest of the statements with `if`",
            )

        if returns_value(expr):
            raise self._no_result()
        site = self.site(expr)

        def leave(env: Env) -> None:
            if expr.op == "ret":
                raise Return
            raise (Break if expr.op == "break" else Continue)(env[0], site)

        return leave

    def _checked(self, expr: Call) -> Fn:
        value, extent, site = self.value(expr.args[0]), self.index(expr.args[1]), self.site(expr)
        index = self.is_index(expr)

        def checked(env: Env) -> Any:
            result, size = value(env), extent(env)
            inside = (result >= 0) & (result < size)
            if not (inside.all() if type(inside) is np.ndarray else inside):
                lane = int(np.argmin(inside))
                text = f"index {pick(result, lane)} is out of range"
                raise site.error(
                    env,
                    "BW708",
                    f"{text}; it must be at least 0 and less than {pick(size, lane)}",
                    lane,
                )
            if not index:
                return result
            return result.astype(np.int64) if type(result) is np.ndarray else int(result)

        return checked

    def _as_index(self, expr: Call) -> Fn:
        value = self.value(expr.args[0])
        if not self.is_index(expr):
            return value

        def number(env: Env) -> Any:
            result = value(env)
            return result.astype(np.int64) if type(result) is np.ndarray else int(result)

        return number

    def _divisor(self, expr: Call) -> Fn:
        value, site = self.value(expr.args[0]), self.site(expr)

        def checked(env: Env) -> Any:
            result = value(env)
            fine = result != 0
            if not (fine.all() if type(fine) is np.ndarray else fine):
                raise site.error(env, "BW716", "integer division by zero", int(np.argmin(fine)))
            return result

        return checked

    def _assume(self, expr: Call) -> Fn:
        """Check an assumption; if it were false, the compiled program would be undefined."""
        condition, site = self.condition(expr.args[0]), self.site(expr)

        def check(env: Env) -> Any:
            holds = np.asarray(condition(env))
            if not holds.all():
                lane = int(np.argmin(holds)) if holds.ndim else 0
                raise site.error(env, "BW753", "an assumption does not hold", lane)
            return 0

        return check

    def argument(self, expr: Expr) -> Fn:
        """An argument of a call: handles are pointers or slots."""
        if expr.dtype.is_handle and not isinstance(expr, StringImm):
            return self.pointer(expr)
        if expr.dtype.is_int and self.is_index(expr):
            return self.index(expr)
        return self.value(expr)

    def packed_argument(self, expr: Expr) -> Fn:
        """An argument of a foreign function: numbers are those of Python."""
        value, dtype, site = self.argument(expr), expr.dtype, self.site(expr)
        if dtype.is_handle:
            return value
        if dtype.is_bool or dtype.is_float:
            number = bool if dtype.is_bool else float
            return lambda env: number(value(env))

        def integer(env: Env) -> int:
            result = int(value(env))
            if result > _LARGEST:
                raise site.error(env, "BW708", LARGE_ARGUMENT, help=LARGE_ARGUMENT_HELP)
            return result

        return integer

    def _name_of(self, expr: Call) -> str:
        if not expr.args or not isinstance(expr.args[0], StringImm):
            raise InterpretError(
                f"the first argument of {expr.op} must be a name", code="BW757", span=expr.span
            )
        return expr.args[0].value

    def _call_global(self, expr: Call) -> Fn:
        if expr is not self.evaluated:
            raise self._no_result()
        name, args = self._name_of(expr), [self.argument(a) for a in expr.args[1:]]
        run = self.call_global

        site = self.site(expr)

        def call(env: Env) -> int:
            _outside_kernels(env, site, name)
            run(env[1], name, [a(env) for a in args])
            return 0

        return call

    def _no_result(self) -> ValidationError:
        return ValidationError.collect([Diagnostic("BW617", NO_RESULT, self.here, NO_RESULT_HELP)])

    def _call_packed(self, expr: Call) -> Fn:
        name, args, site = (
            self._name_of(expr),
            [self.packed_argument(a) for a in expr.args[1:]],
            self.site(expr),
        )

        def call(env: Env) -> Any:
            _outside_kernels(env, site, name)
            function = env[1].packed.get(name)
            if function is None:
                raise site.error(
                    env,
                    "BW757",
                    f"no Python function {name!r} is registered for this run",
                    help=f"pass packed={{{name!r}: function}} to interpret, or "
                    "register it with interp.register_packed",
                )
            return function(*[a(env) for a in args])

        return call

    def _constant(self, expr: Call) -> Fn:
        name, site = self._name_of(expr), self.site(expr)

        def constant(env: Env) -> Pointer:
            state: RunState = env[1]
            result = state.constants.get(name)
            if result is None:
                known: dict[str, Any] = (
                    {} if state.module is None else state.module.attrs.get("constants", {})
                )
                if name not in known:
                    raise site.error(env, "BW757", f"the module has no constant {name!r}")
                array: Array = np.ascontiguousarray(known[name])
                storage = MemoryBlock(
                    array.reshape(-1).view(np.uint8), None, array.itemsize, 0, True
                )
                result = state.constants[name] = Pointer(storage, 0)
            return result

        return constant

    def _result_memory(self, expr: Call) -> Fn:
        """New memory for a late result, whose handle is the list that gets the array."""
        handle, name = self.value(expr.args[0]), expr.args[1]
        sizes = [self.index(size) for size in expr.args[2:]]
        assert isinstance(name, StringImm)
        dtype = dtype_of(name.value).numpy()

        def allocate(env: Env) -> Pointer:
            array: Array = np.zeros([int(size(env)) for size in sizes], dtype)
            handle(env).append(array)
            memory = array.reshape(-1).view(np.uint8)
            shadow = np.zeros(memory.size, np.uint8)
            return Pointer(MemoryBlock(memory, shadow, array.itemsize, 0, False), 0)

        return allocate

    def _tensor(self, expr: Call) -> Fn:
        """A whole buffer as an array for Python functions; marks the buffer as written."""
        place, wrong = expr.args[0], tensor_problem(expr.args[0])
        if wrong is not None or not isinstance(place, BufferLoad):
            raise InterpretError(wrong or "", code="BW757", span=expr.span, help=TENSOR_OF_PART)
        slot = self._known(place.buffer)

        def tensor(env: Env) -> Any:
            view: TypedView = env[slot]
            base, size = env[slot + 1], view.size
            if view.shadow is not None:
                view.shadow[base : base + view.reach()] = view.ones
            return np.lib.stride_tricks.as_strided(
                view.data[base:], view.shape, tuple(s * size for s in view.strides)
            )

        return tensor

    def _print(self, expr: Call) -> Fn:
        args = [self.argument(a) for a in expr.args]

        def show(env: Env) -> int:
            values = [a(env) for a in args]
            for lane in range(env[0] or 1):
                texts = [_text(v if env[0] is None else pick(v, lane)) for v in values]
                sys.stdout.write(" ".join(texts) + "\n")
            return 0

        return show


def _outside_kernels(env: Env, site: Site, name: str) -> None:
    if env[0] is not None:
        raise site.error(
            env,
            "BW757",
            f"a kernel calls {name!r}",
            help="kernels cannot call functions; inline the function's body",
        )


def _text(value: Any) -> str:
    if is_array(value):
        return f"[{', '.join(_text(v) for v in value)}]"
    plain: object = value.item() if hasattr(value, "item") else value
    if isinstance(plain, bool):
        return str(int(plain))
    return f"{plain:.9g}" if isinstance(plain, float) else str(plain)
