"""Load the model that a command-line argument names.

model.onnx              an ONNX model; loading it needs onnx
model.pt2               an exported program saved by torch.export.save; loading it needs torch
package.module:name     an exported program or IR module, or a function that returns one
script.py[:name]        an `@I.ir_module` defined by a script, which is executed
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

from blockwright.support import BlockwrightError, OptionError

_SPEC = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*\Z")
_SCRIPT = re.compile(r"(?P<path>.+\.py)(:(?P<name>[^\W\d]\w*))?\Z", re.DOTALL)
Made = TypeVar("Made")
KINDS = "an .onnx or .pt2 file, package.module:name, or script.py"


def load_model(text: str) -> Any:
    """Load the model that `text` names: an exported program, the path of an ONNX model, an IR
    module or a graph function.

    Raises: OptionError: BW902 unknown kind of model, BW910 file not found, BW911 torch not
    installed, BW912 unknown name in the module, BW913 not exactly one module in the script, BW914
    no graph function "main", BW918 loading failed.
    """
    script = _SCRIPT.match(text)
    if script is not None:
        model = _from_script(_existing(script["path"]), script["name"])
    elif _SPEC.match(text):
        model = _from_spec(text)
    elif text.endswith(".pt2"):
        model = _from_export(_existing(text))
    elif text.endswith(".onnx"):
        model = _existing(text)
    elif text.endswith(".bwx"):
        raise OptionError(
            f"{text} is already compiled",
            code="BW902",
            help=f"give the source model: {KINDS}",
        )
    else:
        raise OptionError(f"{text!r} is not a model", code="BW902", help=f"give {KINDS}")
    return _checked(model, text)


def _existing(name: str) -> Path:
    path = Path(name)
    if not path.is_file():
        what = "is a directory" if path.is_dir() else "does not exist"
        raise OptionError(f"{name} {what}", code="BW910", help=f"give {KINDS}")
    return path


def _from_export(path: Path) -> Any:
    if importlib.util.find_spec("torch") is None:
        raise OptionError(
            f"loading {path} needs torch, which is not installed",
            code="BW911",
            help='pip install "blockwright[torch]"; compiled models (.bwx) run without it',
        )
    import torch

    return _guarded(
        lambda: torch.export.load(path), f"{path} cannot be read as an exported program"
    )


def _from_spec(text: str) -> Any:
    name, _, attribute = text.partition(":")
    if os.getcwd() not in sys.path:
        # Console scripts lack the working directory in sys.path; `python -m` adds it.
        sys.path.insert(0, os.getcwd())
    module = _guarded(lambda: importlib.import_module(name), f"{name} cannot be imported")
    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise OptionError(
                f"{name} has no {attribute!r}", code="BW912", help="give package.module:name"
            )
        value = getattr(value, part)
    return _made(value, text)


def _from_script(path: Path, name: str | None) -> Any:
    from blockwright import ir

    module = _guarded(lambda: _run_script(path), f"{path} cannot be run")
    result = {n: v for n, v in vars(module).items() if not n.startswith("__")}
    if name is not None:
        if name not in result:
            raise OptionError(
                f"{path} does not define {name!r}",
                code="BW912",
                help=f"names: {', '.join(result) or 'none'}",
            )
        return _made(result[name], f"{path}:{name}")
    modules = {n: v for n, v in result.items() if isinstance(v, ir.IRModule)}
    if len({id(v) for v in modules.values()}) == 1:
        return next(iter(modules.values()))
    if not modules:
        raise OptionError(
            f"{path} defines no @I.ir_module",
            code="BW913",
            help=f"to call a function that returns one, give {path}:name",
        )
    raise OptionError(
        f"{path} defines several modules: {', '.join(modules)}",
        code="BW913",
        help=f"choose one: {path}:{next(iter(modules))}",
    )


def _run_script(path: Path) -> ModuleType:
    """Run the script as a module, with its directory in `sys.path` as when Python runs it."""
    name = f"blockwright_script_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    spec.loader.exec_module(module)
    return module


def _made(value: Any, text: str) -> Any:
    """Return the value, or the result of calling it if it is a function or class."""
    if inspect.isroutine(value) or isinstance(value, (type, functools.partial)):
        return _guarded(cast("Callable[[], Any]", value), f"calling {text} failed")
    return value


def _guarded(action: Callable[[], Made], what: str) -> Made:
    """Run user code; an exception becomes an OptionError with the source location."""
    try:
        return action()
    except BlockwrightError:
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise OptionError(
            f"{what}: {type(error).__name__}: {error}",
            code="BW918",
            notes=[f"raised at {last.filename}:{last.lineno}"],
            help="--debug shows the whole traceback",
        ) from error


def _checked(model: Any, text: str) -> Any:
    from blockwright import ir

    if isinstance(model, ir.IRModule):
        main = model.functions.get("main")
        if not isinstance(main, ir.GraphFunction):
            names = ", ".join(model.functions) or "none"
            raise OptionError(
                f'the module of {text} has no graph function "main"',
                code="BW914",
                help=f"compile starts there; functions: {names}",
            )
    return model
