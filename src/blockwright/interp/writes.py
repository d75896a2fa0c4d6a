"""Which parameter buffers a tensor program may write, also through the functions that it calls."""

from __future__ import annotations

from blockwright.interp.memories import Memories
from blockwright.ir import Buffer, Call, IRModule, PrimFunc, StringImm


def written_buffers(func: PrimFunc, module: IRModule | None) -> set[Buffer]:
    """Parameter buffers that the body may write, including through views, addresses and calls."""
    return _Writes(module).of(func)


class _Writes:
    """Buffers that the functions of a module may write: the least solution, if calls are cyclic."""

    def __init__(self, module: IRModule | None) -> None:
        self.module = module
        self.known: dict[PrimFunc, set[Buffer]] = {}
        self._begun: set[PrimFunc] = set()
        self._is_cyclic = False

    def of(self, func: PrimFunc) -> set[Buffer]:
        while True:
            before = dict(self.known)
            self._begun.clear()
            self._visit(func)
            if not self._is_cyclic or self.known == before:
                return self.known[func]

    def _visit(self, func: PrimFunc) -> set[Buffer]:
        if func in self._begun:
            self._is_cyclic = True
            return self.known.get(func, set())
        self._begun.add(func)
        memories = Memories(func)

        def called(call: Call) -> list[Buffer]:
            return self._by(call, memories)

        touched = memories.touched(func.body, called)
        self.known[func] = {b for b, writes in touched.items() if writes} & set(func.buffers)
        return self.known[func]

    def _by(self, call: Call, memories: Memories) -> list[Buffer]:
        """Buffers that a call of a module function may write."""
        if self.module is None or not isinstance(call.args[0], StringImm):
            return memories.passed(call)
        callee = self.module.functions.get(call.args[0].value)
        if not isinstance(callee, PrimFunc):
            return memories.passed(call)
        inner = self._visit(callee)
        pairs = zip(callee.buffers, call.args[1:], strict=False)
        return [b for formal, arg in pairs if formal in inner for b in memories.passed(arg)]
