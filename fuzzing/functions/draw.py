"""Draw modules of graph functions by seed."""

from __future__ import annotations

import re

import msgspec

from fuzzing.functions import closures, conditions, loops, run_time_sizes, structures, updates
from fuzzing.functions.scope import Outer
from fuzzing.graphs.draw import parameters_of, with_calls
from fuzzing.graphs.program import CALLEES, Graph

__all__ = [
    "Module",
    "closures",
    "conditions",
    "draw",
    "loops",
    "run_time_sizes",
    "structures",
    "updates",
]  # these register structures

APPLY = """    @R.function(private=True)
    def apply(f: R.Callable, x: R.Tensor):
        return R.invoke_closure(f, (x,), sinfo_args=R.Tensor)
"""


class Module(Graph, frozen=True):
    """A graph function `main`, and the functions that it calls.

    Attributes:
        functions: names and texts of the other functions, not all of which are used.
        native: whether to call compiled code too.
    """

    functions: tuple[tuple[str, str], ...] = ()
    native: bool = True

    @property
    def callees(self) -> str:
        """Only what `main` needs, directly or through others."""
        known = dict(self.functions)
        text = "\n".join(b.text for b in self.bindings)
        needed: dict[str, None] = {}
        waiting = [text]
        while waiting:
            for name in re.findall(r"\bcls\.(f\d+)\b", waiting.pop()):
                if name not in needed:
                    needed[name] = None
                    waiting.append(known[name])
        parts = [CALLEES, *([APPLY] if "cls.apply" in "".join(known.values()) + text else [])]
        parts += [p for name, (p, _) in updates.PROGRAMS.items() if f"cls.{name}" in text]
        for name in needed:
            parts.append("".join(f"    {line}\n" for line in known[name].split("\n")))
        return "\n".join(parts)


def draw(seed: int, steps: int = 10) -> Module:
    """The module of a seed."""
    d = Outer(seed)
    parameters = parameters_of(d)
    d.steps(steps, d.chance.choice((0.0, 0.2, 0.4)))
    results = [value.name for value in d.values if value not in parameters]
    while not results:
        d.steps(1, 0)
        results = [value.name for value in d.values if value not in parameters]
    outputs = d.chance.sample(results, min(4, len(results)))
    sizes = {name: d.run.sizes[name] for name in ("n", "m")}
    first = (sizes, tuple(d.run[p.name] for p in parameters))
    functions = tuple(d.functions.items())
    module = Module(parameters, tuple(d.bindings), tuple(outputs), (first,), False, functions)
    graph = with_calls(module, d)
    return msgspec.structs.replace(module, calls=graph.calls, native=d.chance.random() < 0.5)
