"""Print a program as a Python script that fails as long as the fault exists."""

from __future__ import annotations

from typing import Any, cast

import torch

from fuzzing.eager.outcome import Outcome
from fuzzing.modules.program import ModuleCall, ModuleProgram, Ref, Size

_TEXT = '''"""{symptom}: {words}

Found with seed {seed} by fuzzing.modules.
"""

import torch
from torch import Tensor, inf, nan
from torch.nn import functional as F

import blockwright as bw


class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
{buffers}
    def forward(self{params}):
{body}
        return {outputs}


inputs = ({inputs})
module = Module().eval()
dynamic = {dynamic}
program = torch.export.export(module, inputs, dynamic_shapes=dynamic)
compiled = bw.compile(program, options={{"fallback": "error"}})
for _ in range(3 if compiled.state else 1):
    expected = [y.clone() for y in module(*[x.clone() for x in inputs])]
    actual = compiled(*[x.clone() for x in inputs])
    for x, y in zip(actual, expected, strict=True):
        torch.testing.assert_close(x, y, equal_nan=True)
    for name, x in compiled.state.items():
        torch.testing.assert_close(x, module.get_buffer(name), equal_nan=True)
'''


def as_script(program: ModuleProgram, verdict: Outcome, seed: int) -> str:
    """The script, written with PyTorch's public names and `bw.compile`."""
    count = len(program.inputs)
    given = [i for i in range(count) if i not in program.buffers]
    buffers = "".join(
        f'        self.register_buffer("v{i}", {_tensor(program.inputs[i])})\n'
        for i in sorted(program.buffers)
    )
    names = {i: f"self.v{i}" if i in program.buffers else f"v{i}" for i in range(count)}
    lines: list[str] = []
    for number, call in enumerate(program.calls):
        names[count + number] = f"v{count + number}"
        lines += _lines(call, f"v{count + number}", names)
    automatic = "{axis: torch.export.Dim.AUTO for axis, n in enumerate(x.shape) if n > 1}"
    return _TEXT.format(
        symptom=verdict.symptom,
        words=verdict.words.replace('"""', "'''"),
        seed=seed,
        buffers=buffers,
        params="".join(f", v{i}" for i in given),
        body="\n".join(f"        {line}" for line in lines),
        outputs=", ".join(names[i] for i in program.outputs) + ",",
        inputs="".join(f"{_tensor(program.inputs[i])}, " for i in given),
        dynamic=f"tuple({automatic} for x in inputs)" if program.dynamic else "None",
    )


def _lines(call: ModuleCall, name: str, names: dict[int, str]) -> list[str]:
    args = [_text(a, names) for a in call.args]
    if call.fn == "operator.getitem":
        return [f"{name} = {args[0]}[{_index(call.args[1], names)}]"]
    if call.fn == "operator.setitem":
        return [f"{args[0]}[{_index(call.args[1], names)}] = {args[2]}", f"{name} = {args[0]}"]
    args += [f"{key}={_text(value, names)}" for key, value in call.kwargs.items()]
    part = "" if call.part is None else f"[{call.part}]"
    return [f"{name} = {call.fn}({', '.join(args)}){part}"]


def _index(index: Any, names: dict[int, str]) -> str:
    parts = cast("tuple[Any, ...]", index if isinstance(index, tuple) else (index,))
    return ", ".join(_slice(p) if isinstance(p, slice) else _text(p, names) for p in parts)


def _slice(part: Any) -> str:
    first, last, step = ("" if n is None else str(n) for n in (part.start, part.stop, part.step))
    return f"{first}:{last}" + (f":{step}" if step else "")


def _text(arg: Any, names: dict[int, str]) -> str:
    if isinstance(arg, Ref):
        return names[arg.index]
    if isinstance(arg, Size):
        size = f"{names[arg.index]}.shape[{arg.axis}]"
        return size if arg.over is None else f"({size} > {arg.over})"
    if isinstance(arg, (list, tuple)):
        items = ", ".join(_text(a, names) for a in cast("list[Any]", arg))
        if isinstance(arg, list):
            return f"[{items}]"
        return f"({items},)" if len(cast("list[Any]", arg)) == 1 else f"({items})"
    return "..." if arg is ... else repr(arg)


def _tensor(tensor: torch.Tensor) -> str:
    dtype = str(tensor.dtype)
    if not tensor.numel():
        return f"torch.zeros({tuple(tensor.shape)}, dtype={dtype})"
    words = ", ".join(repr(x.item()) for x in tensor.flatten())
    return f"torch.tensor([{words}], dtype={dtype}).reshape({tuple(tensor.shape)})"
