"""Names of an exported program's operators, and the model's source lines of its nodes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_IN_PLACE = re.compile(r"(?<=[a-z0-9])_\.")
_LIBRARY = re.compile(r"[/\\]torch[/\\](nn|_\w+|\w+\.py)")
_LINE = re.compile(r'File "(?P<file>.+)", line (?P<line>\d+)')


def target_name(target: Any) -> str:
    """`aten.add.Tensor` for an overload, `operator.mul` for a Python function.

    `aten.add_.Tensor` has the same name: in-place operators whose side effect matters are gone by
    then.
    """
    text = getattr(target, "name", None)
    if callable(text):
        base = str(target)
        return _IN_PLACE.sub(".", base) if "." in base else f"aten.{base}"
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__name__', target)}".lstrip("_")


def is_overload(target: Any) -> bool:
    """Whether the target of a node is an operator of PyTorch, or a registered one."""
    return hasattr(target, "overloadpacket")


def origin(node: Any) -> str:
    """Origin of a node in the model: its module path, file and source line."""
    stack: dict[str, tuple[Any, ...]] | None = node.meta.get("nn_module_stack")
    path = str(list(stack.values())[-1][0]) if stack else ""
    trace = [t.strip() for t in str(node.meta.get("stack_trace") or "").splitlines() if t.strip()]
    frames = [(result, k) for k, t in enumerate(trace) if (result := _LINE.search(t))]
    own = [frame for frame in frames if not _LIBRARY.search(frame[0]["file"])] or frames
    where, position = own[-1] if own else (None, -2)
    place = f"{Path(where['file']).name}:{where['line']}: " if where else ""
    line = trace[position + 1] if position + 1 < len(trace) and trace else ""
    return f"{node.name} in {path or 'the model'}: {place}{line}".rstrip(": ")
