"""Well-formedness of tensor programs: invariants that every pass and primitive relies on.

- every variable, buffer and block is defined once, and used only in the scope of its definition;
- a block uses its own iterators, never the surrounding loop variables, and binds each iterator
  once;
- a block's signature covers the accesses of its body;
- accesses have one index per dimension; atomic updates have an element of a supported type;
- operations, conditions and bounds have operands of the right number and types;
- `break` and `continue` are inside a loop;
- no value is returned, and none is expected of a call of another tensor program;
- the body of a function with blocks is the root block, which has no iterators;
- symbolic sizes of a function have distinct names.
"""

from __future__ import annotations

from weakref import WeakSet

from blockwright import ir
from blockwright.analysis.access.region_annotations import explicit_problem
from blockwright.analysis.access.stride_alignment import alignment_problem
from blockwright.analysis.access.tree import child_stmts
from blockwright.analysis.canonical.memory import memory_roots
from blockwright.analysis.canonical.pointers import address, memories, named_pointers
from blockwright.analysis.facts import symbol_facts, symbols_of
from blockwright.analysis.sizes import divides_by_zero
from blockwright.analysis.validate.atomics import atomic_problem
from blockwright.analysis.validate.jumps import (
    NO_LOOP,
    WrongJump,
    out_of_block,
    out_of_concurrent,
)
from blockwright.analysis.validate.lane_counts import lane_problem
from blockwright.analysis.validate.operands import (
    NO_RESULT,
    NO_RESULT_HELP,
    RETURNS_HELP,
    Types,
    buffer_mismatch,
    concurrent_variable,
    extent_problems,
    returns_from,
    returns_value,
)
from blockwright.analysis.validate.own_elements import layout_problem
from blockwright.analysis.validate.signatures import unstated
from blockwright.arith import Analyzer
from blockwright.ir.printer import script
from blockwright.support import Diagnostic, ValidationError
from blockwright.support.stack import deep
from blockwright.target.scopes import SCOPES_HELP, is_known_scope


def check_well_formed(program: ir.PrimFunc | ir.IRModule) -> None:
    """Raise a `ValidationError` that lists all problems of a program.

    Args:
        program: a tensor program, or a module, whose tensor programs are all checked.
    """
    functions = program.functions.values() if isinstance(program, ir.IRModule) else (program,)
    problems: list[Diagnostic] = []
    for function in functions:
        if isinstance(function, ir.PrimFunc):
            problems += find_problems(function)
    if problems:
        raise ValidationError.collect(problems)


MOST_LOOPS = 500
"""Maximum depth of nested loops; analyses of each loop consult all others."""


@deep
def find_problems(func: ir.PrimFunc) -> list[Diagnostic]:
    """All well-formedness problems of a function; empty if it is well formed."""
    wrong = ir.attribute_problems(func.attrs)
    if wrong:  # all facts about sizes rely on the attributes
        return [
            Diagnostic(code, f"{func.name}: {text}", func.span, help, ())
            for code, text, help in wrong
        ]
    innermost = _loop_beyond_the_limit(func.body)
    if innermost is not None:
        message = (
            f"{func.name}: more than {MOST_LOOPS} nested loops, "
            f"down to loop {innermost.loop_var.name}"
        )
        help = "fuse some of them into one loop"
        return [Diagnostic("BW001", message, innermost.span, help, ())]
    checker = _Checker(func)
    checker.run()
    return checker.problems


_UNDEFINED = ("BW212", "BW618")


@deep
def check_meaning(func: ir.PrimFunc) -> None:
    """Raise a `ValidationError` where a program has no meaning at all: it uses a variable or buffer
    outside its scope (BW212), or leaves a loop that it cannot leave (BW618).

    Unlike `check_well_formed`, it accepts all programs that the interpreter can run.
    """
    if func not in _meaningful:
        checker = _Checker(func, signatures=False)
        checker.run()
        problems = [p for p in checker.problems if p.code in _UNDEFINED]
        if problems:
            raise ValidationError.collect(problems)
        _meaningful.add(func)


_meaningful: WeakSet[ir.PrimFunc] = WeakSet()


def _loop_beyond_the_limit(body: ir.Stmt) -> ir.For | None:
    """The first loop nested deeper than the limit, or None."""
    stack = [(body, 0)]
    while stack:
        node, around = stack.pop()
        if isinstance(node, ir.For):
            if around == MOST_LOOPS:
                return node
            around += 1
        stack += [(child, around) for child in child_stmts(node)]
    return None


class _Checker:
    def __init__(self, func: ir.PrimFunc, signatures: bool = True) -> None:
        self.func = func
        self._signatures = signatures
        self.problems: list[Diagnostic] = []
        self.defined: set[ir.Node] = set()  # all definitions so far, to find duplicates
        self.visible: set[ir.Node] = set()
        self.outside: dict[ir.Var, str] = {}  # loop variables of the scopes around the block
        self._loops: set[ir.Node] = set()  # loop variables of the current scope
        self._around: list[ir.IterVar] = []  # iterators of the enclosing blocks
        self._analyzer: Analyzer | None = None
        self._types = Types()
        self._jump: WrongJump | None = NO_LOOP  # why `break` and `continue` are wrong here
        self._concurrent: ir.Var | None = None  # the variable of an enclosing concurrent loop
        self._evaluated: ir.Expr | None = None  # of the current statement
        self._place = func.span  # of the current statement, for expressions without a span

    def report(self, code: str, message: str, node: ir.Node, help: str | None = None) -> None:
        span = self._place if node.span is None else node.span
        self.problems.append(Diagnostic(code, f"{self.func.name}: {message}", span, help, ()))

    def define(self, node: ir.Var | ir.Buffer) -> None:
        if isinstance(node, ir.Buffer) and not is_known_scope(node.scope):
            self.report(
                "BW230",
                f"buffer {node.name} lives in {node.scope!r}, which is not a storage scope",
                node,
                SCOPES_HELP,
            )
        if node in self.defined:
            kind = "buffer" if isinstance(node, ir.Buffer) else "variable"
            self.report("BW211", f"{kind} {node.name} is defined twice", node)
        self.defined.add(node)
        self.visible.add(node)

    # ------------------------------------------------------------------ functions
    def run(self) -> None:
        func = self.func
        symbols = symbols_of(func)
        names: set[str] = set()
        for symbol in symbols:
            if symbol.name in names:
                self.report("BW214", f"two symbolic sizes are named {symbol.name}", symbol)
            names.add(symbol.name)
        self.visible.update(symbols)
        self.defined.update(symbols)
        for param in func.params:
            if param not in self.visible:
                self.define(param)
        handles = set(func.params)
        for handle, buffer in func.buffer_map:
            if handle not in handles:
                self.report("BW243", f"{buffer.name} is not bound to a parameter", buffer)
            self.size(buffer)
            self.define(buffer)
            self.visible.update(ir.collect(buffer, ir.Var))
        body = func.body
        if isinstance(body, ir.BlockRealize):
            if body.iter_values or body.block.iter_vars:
                self.report("BW246", "the root block has iterators", body.block)
            self.block(body.block, root=True)
        else:
            if ir.collect(body, ir.Block):
                self.report("BW246", "the body has blocks but is not the root block", body)
            self.stmt(body)

    # ------------------------------------------------------------------ statements
    def stmt(self, node: ir.Stmt) -> None:
        around = self._place
        self._place = around if node.span is None else node.span
        self.operands(node)
        jump, outside = self._jump, self._concurrent
        inside = concurrent_variable(node)
        if inside is not None:
            self._jump, self._concurrent = out_of_concurrent(inside), inside
        elif isinstance(node, (ir.For, ir.While)):
            self._jump = None
        self._stmt(node)
        self._jump, self._concurrent = jump, outside
        self._place = around

    def _stmt(self, node: ir.Stmt) -> None:
        if isinstance(node, ir.For):
            self.use(node.min)
            self.use(node.extent)
            with_var = node.thread.var if node.thread is not None else None
            self.define(node.loop_var)
            self._loops.add(node.loop_var)
            if with_var is not None and with_var not in self.visible:
                self.define(with_var)
            self.stmt(node.body)
            self.visible.discard(node.loop_var)
        elif isinstance(node, ir.BlockRealize):
            self.realize(node)
        elif isinstance(node, ir.LetStmt):
            self.use(node.value)
            self.define(node.var)
            self.stmt(node.body)
            self.visible.discard(node.var)
        elif isinstance(node, (ir.Allocate, ir.DeclBuffer)):
            if isinstance(node, ir.DeclBuffer):
                self.use(node.source)
                self.one_memory(node)
            self.declare(node.buffer)
            if isinstance(node, ir.Allocate):
                self.own_elements(node.buffer)
            self.stmt(node.body)
            self.visible.discard(node.buffer)
        else:
            if isinstance(node, ir.AttrStmt) and isinstance(node.node, ir.IterVar):
                self.define(node.node.var)  # a thread axis
            self._evaluated = node.value if isinstance(node, ir.Evaluate) else None
            for child in node.children():
                if isinstance(child, ir.Stmt):
                    self.stmt(child)
                else:
                    self.use(child)
            if isinstance(node, ir.BufferStore):
                self.access(node)
            elif isinstance(node, ir.AssertStmt):
                problem = ir.message_problem(node.message, node.values)
                if problem is not None:
                    self.report(problem[0], problem[1], node, problem[2])

    def realize(self, node: ir.BlockRealize) -> None:
        block = node.block
        if len(node.iter_values) != len(block.iter_vars):
            self.report(
                "BW215",
                f"block {block.name} has {len(block.iter_vars)} iterators and "
                f"{len(node.iter_values)} values",
                block,
            )
        for value in (*node.iter_values, node.predicate):
            self.use(value)
        self.block(block, root=False)

    def block(self, block: ir.Block, root: bool) -> None:
        if block in self.defined:
            self.report("BW211", f"block {block.name} occurs in two places", block)
        self.defined.add(block)
        hidden = {v for v in self.visible if isinstance(v, ir.Var) and v in self._loops}
        self.visible -= hidden
        self.outside.update(dict.fromkeys(hidden, block.name))
        inside: list[ir.Node] = []
        for it in block.iter_vars:
            self.domain(it, block)
        for it in block.iter_vars:
            self.define(it.var)
            inside.append(it.var)
        for buffer in block.alloc_buffers:
            self.declare(buffer)
            self.own_elements(buffer)
            inside.append(buffer)
        for region in (*block.reads, *block.writes):
            self.use(region)
        for match in block.match_buffers:
            self.use(match.source)
            self.visible.update(ir.collect(match.buffer, ir.Var))
            self.define(match.buffer)
            inside.append(match.buffer)
        before, around, jump = self._loops, self._around, self._jump
        self._loops, self._around = set(), [*around, *block.iter_vars]
        self._jump = jump or out_of_block(block)
        if block.init is not None:
            self.stmt(block.init)
        self.stmt(block.body)
        self._loops, self._around, self._jump = before, around, jump
        self.visible.difference_update(inside)
        self.visible |= hidden
        for var in hidden:
            self.outside.pop(var, None)
        for problem in (alignment_problem(block), explicit_problem(block)):
            if problem:
                self.report("BW257", f"annotation of block {block.name}: {problem}", block)
        if not root and self._signatures:
            self.signature(block)

    def domain(self, it: ir.IterVar, block: ir.Block) -> None:
        """Check that a domain is the same for all values of the block's iterators."""
        others = {other.var for other in block.iter_vars}
        for var in ir.collect(it.dom, ir.Var):
            if var in others:
                self.report(
                    "BW212",
                    f"the domain of iterator {it.var.name} depends on iterator {var.name} "
                    f"of the same block {block.name}",
                    it,
                    "declare the largest extent and let the loops cover part of it, or move the "
                    f"loops of {it.var.name} into a nested block",
                )
                return
        self.use(it.dom)

    def one_memory(self, node: ir.DeclBuffer) -> None:
        """Check that a declared buffer aliases a single memory, as all access analyses assume."""
        if address(node.source) is not None:
            return
        result = memories(node.source, named_pointers(self.func))
        roots = memory_roots(self.func) if len(result) > 1 else {}
        apart = {roots.get(m, m) if isinstance(m, ir.Buffer) else m: m.name for m in result}
        if len(apart) > 1:
            names = " or ".join(apart.values())
            self.report(
                "BW256",
                f"buffer {node.buffer.name} is declared on the memory of {names}",
                node,
                "declare a buffer on each, and choose between elements",
            )

    def declare(self, buffer: ir.Buffer) -> None:
        for part in (*buffer.shape, *buffer.strides):
            self.use(part)
        self.size(buffer)
        self.define(buffer)

    def size(self, buffer: ir.Buffer) -> None:
        """Check that extents divide by no 0, and that a constant byte size fits 63 bits."""
        if any(map(divides_by_zero, buffer.shape)):
            self.report("BW250", f"an extent of buffer {buffer.name} divides by 0", buffer)
        wrong = buffer_mismatch(buffer)
        if wrong is not None:
            self.report("BW260", wrong, buffer)
            return
        for code, problem in extent_problems(buffer):
            self.report(code, problem, buffer)

    def own_elements(self, buffer: ir.Buffer) -> None:
        """Check that no two elements of an allocated buffer share memory."""
        problem = layout_problem(buffer, self._facts()) if buffer.strides else None
        if problem is not None:
            self.report(
                "BW261",
                problem,
                buffer,
                "omit strides=, or make each stride at least as large as the elements of the "
                "inner dimensions reach",
            )

    def signature(self, block: ir.Block) -> None:
        """Check that the stated regions cover the accesses of the body."""
        if any(p.code == "BW209" for p in self.problems):
            return  # accesses with a wrong number of indices have no regions
        outside = self._facts().copy()
        for it in self._around:
            outside.bind(it.var, it.dom)
        for word, region, have in unstated(block, outside):
            what = f"{word} {region.buffer.name}, which its signature does not state"
            if have is not None:
                what = (
                    f"{word} more of {region.buffer.name} ({script(region)}) than its "
                    f"signature states ({script(have)})"
                )
            self.report("BW216", f"block {block.name} {what}", block)

    def _facts(self) -> Analyzer:
        if self._analyzer is None:
            self._analyzer = symbol_facts(self.func)
        return self._analyzer

    # ------------------------------------------------------------------ expressions
    def use(self, node: ir.Node) -> None:
        stack: list[ir.Node] = [node]
        while stack:
            here = stack.pop()
            if isinstance(here, ir.Var):
                self.use_var(here)
            elif isinstance(here, ir.Buffer):
                if here not in self.visible:
                    self.report(
                        "BW212", f"buffer {here.name} is used where it is not defined", here
                    )
            elif isinstance(here, ir.Let):
                self.operands(here)
                self.use(here.value)
                self.define(here.var)
                self.use(here.body)
                self.visible.discard(here.var)
            elif isinstance(here, ir.CommReducer):
                self._use_reducer(here)
            else:
                self.operands(here)
                if isinstance(here, ir.BufferLoad):
                    self.access(here)
                elif ir.is_atomic(here):
                    problem = atomic_problem(here)
                    if problem is not None:
                        self.report("BW217", problem, here)
                stack.extend(here.children())

    def operands(self, node: ir.Node) -> None:
        """Check the number and types of the operands of a node."""
        wrong = self._types.mismatch(node)
        if wrong is not None:
            passed = isinstance(node, ir.Call) and node.op == "tensor"
            convert = "convert with T.Cast; compare with 0 for a condition"
            self.report("BW260", wrong, node, ir.TENSOR_OF_PART if passed else convert)
        if (
            self._jump is not None
            and isinstance(node, ir.Call)
            and node.op in ("break", "continue")
        ):
            self.report("BW618", f"{node.op} {self._jump.text}", node, self._jump.help)
        if self._concurrent is not None and isinstance(node, ir.Call) and node.op == "ret":
            self.report("BW618", returns_from(self._concurrent), node, RETURNS_HELP)
        if isinstance(node, ir.Call) and (returns_value(node) or self._is_operand_call(node)):
            self.report("BW617", NO_RESULT, node, NO_RESULT_HELP)

    def _is_operand_call(self, call: ir.Call) -> bool:
        """Whether a call of a tensor program is an operand, as if it had a value."""
        return call.op == "call_global" and call is not self._evaluated

    def _use_reducer(self, node: ir.CommReducer) -> None:
        """A reducer is a function of its operands, which are in scope only in its result."""
        for value in node.identity:
            self.use(value)
        inner = {*node.lhs, *node.rhs} - self.visible
        self.visible |= inner
        for value in node.result:
            self.use(value)
        self.visible -= inner

    def use_var(self, var: ir.Var) -> None:
        if var in self.visible:
            return
        block = self.outside.get(var)
        if block is not None:
            self.report(
                "BW212",
                f"block {block} uses the loop variable {var.name} from outside",
                var,
                "bind it to an iterator of the block",
            )
        else:
            self.report("BW212", f"variable {var.name} is used where it is not defined", var)

    def access(self, node: ir.BufferLoad | ir.BufferStore) -> None:
        if len(node.indices) != node.buffer.ndim:
            self.report(
                "BW209",
                f"buffer {node.buffer.name} has {node.buffer.ndim} dimensions, "
                f"an access has {len(node.indices)} indices",
                node,
            )
            return
        problem = lane_problem(node)
        if problem is not None:
            self.report(
                "BW254",
                problem,
                node,
                "give the last index as many lanes as the value; T.Broadcast repeats a scalar",
            )
