"""Specialize the last tile of a loop for fewer rows.

Before, for tiles of six rows, where each of the last two rows may not exist::

    for t in range(ceildiv(n, 6), annotations={"tail_specialization": 2}):
        ...                                     # sums of six rows
        if t * 6 < n: C[t * 6] = …
        ...
        if t * 6 + 5 < n: C[t * 6 + 5] = …

After::

    for t in range(ceildiv(n, 6)):
        if t * 6 + 4 < n:
            ...                                 # as before
        else:
            ...                                 # LLVM removes unused results
            if t * 6 < n: C[t * 6] = …
            ...
            if t * 6 + 3 < n: C[t * 6 + 3] = …

In the short form, LLVM removes computations that only feed the missing rows, such as sums whose
results are not stored.
"""

from __future__ import annotations

from blockwright.arith import Analyzer
from blockwright.arith.condition import conjuncts, room_of
from blockwright.ir import Expr, For, Node, PrimFunc, Stmt, const, const_int, sub, uses_var
from blockwright.ir import stmt as S
from blockwright.ir.annotations import TAIL_SPECIALIZATION
from blockwright.lower.context import LowerContext, function_analyzer, lowering_pass
from blockwright.lower.rewrite import Instantiate, Statements, reads_memory, walk_code
from blockwright.support import BuildError


@lowering_pass
def specialize_tails(func: PrimFunc, context: LowerContext) -> PrimFunc:
    """Duplicate the body of each annotated loop: a full form and a short form for the last tile.

    Raises: BuildError BW636 where the annotation is not a positive number of rows.
    """
    pass_ = _TailSpecializer(function_analyzer(func))
    body = pass_(func.body)
    for name in pass_.whole:
        context.note(f"loop {name} has no short tail: fewer rows than that are conditional")
    return func.replace(body=body)


class _TailSpecializer(Statements):
    def __init__(self, analyzer: Analyzer) -> None:
        super().__init__()
        self.analyzer = analyzer
        self.whole: dict[str, None] = {}

    def rewrite_For(self, node: For) -> Stmt:
        node = node.replace(body=self(node.body))
        if TAIL_SPECIALIZATION not in node.annotations:
            return node
        rows = _number(node)
        rest = {key: value for key, value in node.annotations.items() if key != TAIL_SPECIALIZATION}
        node = node.replace(annotations=rest)
        result = self._last(node, rows)
        if result is None:
            self.whole[node.loop_var.name] = None
            return node
        exists, missing = result
        short = Instantiate(dict.fromkeys(missing, const(False, "bool")))(node.body)
        return node.replace(body=S.IfThenElse(exists, node.body, short))

    def _last(self, node: For, rows: int) -> tuple[Expr, list[Node]] | None:
        """The weakest condition of the last rows, and all conditions of these rows.

        Conditions `t * 6 + r < n` differ by a known distance, which orders the rows.
        """
        first: Expr | None = None
        ahead: dict[int, list[Expr]] = {}
        for test in _tests(node, self.analyzer):
            room = room_of(self.analyzer, test)
            assert room is not None
            first = room if first is None else first
            distance = const_int(self.analyzer.simplify(sub(room, first)))
            if distance is not None:
                ahead.setdefault(distance, []).append(test)
        if len(ahead) < rows:
            return None
        last = sorted(ahead)[:rows]
        return ahead[last[-1]][0], [test for distance in last for test in ahead[distance]]


def _tests(node: For, analyzer: Analyzer) -> list[Expr]:
    """Conditions on the loop variable that guard statements and that the body cannot change."""
    result = dict[Expr, None]()
    for inner in walk_code(node.body):
        if isinstance(inner, S.IfThenElse):
            for test in conjuncts(inner.condition):
                if room_of(analyzer, test) is not None and uses_var(test, node.loop_var):
                    result[test] = None
    own = {n.loop_var for n in walk_code(node.body) if isinstance(n, For)}
    own |= {n.var for n in walk_code(node.body) if isinstance(n, S.LetStmt)}
    return [test for test in result if not uses_var(test, own) and not reads_memory(test)]


def _number(node: For) -> int:
    value = node.annotations[TAIL_SPECIALIZATION]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BuildError(
            f"loop {node.loop_var.name}: {TAIL_SPECIALIZATION!r} must be a positive number of "
            f"rows, not {value!r}",
            code="BW636",
            help="remove the annotation, or set it to the number of rows that the last tile "
            "may lack",
        )
    return value
