"""PartialLibraryLowering: calls of libraries in place of parts of the graph, where asked for.

With `options={"libraries": ["openblas"]}`, `y = R.linear(x, w, b)` becomes
`gemm = R.call_dps_library("openblas.gemm", (x, w), …)` and `y = R.add(gemm, b)`. Without the
option, every program stays as it is.

Before::

    @R.function
    def main(x: R.Tensor((4, 8), "float32"), w: R.Tensor((8, 2), "float32")):
        y = R.matmul(x, w)
        return y

The patterns of a library are tried in order at each value, from the last to the first. Everything
else is compiled.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.graph.pattern import Match, rewrite
from blockwright.passes.context import PassContext, graph_pass
from blockwright.passes.library.registry import Library, LibraryPattern, chosen_patterns
from blockwright.passes.rewrite import graph_functions

NAME = "lower_to_libraries"


@graph_pass
def lower_to_libraries(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Replace the matches of the patterns that `options["libraries"]` names."""
    chosen = chosen_patterns(ctx.options.get("libraries", ()))
    if not chosen:
        return module
    lines = ctx.decisions.setdefault(NAME, [])
    refused = {library.why_not(ctx.target) for library, _ in chosen}
    lines += sorted(why for why in refused if why)
    chosen = [(library, pattern) for library, pattern in chosen if not library.why_not(ctx.target)]
    functions = dict(module.functions)
    for name, function in graph_functions(module):
        functions[name] = _lowered(function, module, chosen, lines)
    return module.replace(functions=functions)


def _lowered(
    function: ir.GraphFunction,
    module: ir.IRModule,
    chosen: list[tuple[Library, LibraryPattern]],
    lines: list[str],
) -> ir.GraphFunction:
    taken: dict[str, str] = {}
    reasons: dict[str, list[str]] = {}
    result = function
    for library, pattern in chosen:
        for candidate in pattern.pattern.explain(result, module).candidates:
            if not candidate.matched:
                why = f"{library.name}.{pattern.name}: {candidate.why}"
                reasons.setdefault(candidate.text, []).append(why)

        def replace(match: Match, row: LibraryPattern = pattern, of: str = library.name) -> object:
            new = row.replace(match)
            if new is not None:
                taken[match.text] = f"{match.text}: {of}.{row.name}"
            return new

        result = rewrite(result, pattern.pattern, replace, module)  # pyright: ignore[reportArgumentType]
    lines += taken.values()
    lines += [
        f"{text}: compiled; {'; '.join(why)}" for text, why in reasons.items() if text not in taken
    ]
    return result
