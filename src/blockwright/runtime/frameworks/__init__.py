"""Python frameworks whose operators compiled code calls where it has none of its own.

`torch.ops.aten.mode.default` is the FFI function under which compiled code calls PyTorch's
`torch.ops.aten.mode.default`, and `onnxruntime.NonMaxSuppression` one that runs nodes of that kind.
A framework is imported when the first model that needs it is compiled or loaded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from importlib import metadata

import msgspec

from blockwright.runtime.ffi import loaded_function, tvm_ffi
from blockwright.runtime.frameworks import onnx_operators, torch_operators
from blockwright.support import ArtefactError


class Framework(msgspec.Struct, frozen=True):
    """A framework.

    Attributes:
        name: begins the names of its functions, as in `torch.ops.…`.
        package: the Python distribution that holds it.
        title: its name in messages.
        find: symbol → the Python function that compiled code calls; None if there is no operator
            of that name. Raises ImportError if the framework cannot be imported.
        missing: what to do where there is none.
    """

    name: str
    package: str
    title: str
    find: Callable[[str], Callable[..., object] | None]
    missing: str


FRAMEWORKS = {
    row.name: row
    for row in (
        Framework(
            "torch",
            "torch",
            "PyTorch",
            torch_operators.find,
            "import the module that registers the operator before",
        ),
        Framework(
            "onnxruntime",
            "onnxruntime",
            "ONNX Runtime",
            onnx_operators.find,
            "install a version of ONNX Runtime that has the operator",
        ),
    )
}

_lock = threading.RLock()  # a framework may call compiled code while it is imported


def of_function(name: str) -> tuple[Framework, str] | None:
    """The framework and the symbol of a function that compiled code calls; None for others."""
    of, _, symbol = name.partition(".")
    return (FRAMEWORKS[of], symbol) if of in FRAMEWORKS and symbol else None


def installed_version(framework: Framework) -> str:
    """The version that is installed. Raises: ArtefactError BW808 if there is none."""
    try:
        return metadata.version(framework.package)
    except metadata.PackageNotFoundError:
        raise _unavailable(framework, "is not installed") from None


def bind(framework: Framework, symbols: Iterable[str]) -> None:
    """Register the functions of a framework that compiled code calls.

    Raises: ArtefactError BW808 if the framework cannot be imported, or has no such operator.
    """
    for symbol in symbols:
        name = f"{framework.name}.{symbol}"
        with _lock:
            if loaded_function(name) is not None:
                continue
            try:
                function = framework.find(symbol)
            except ImportError as error:
                raise _unavailable(framework, f"cannot be imported: {error}") from error
            if function is None:
                raise ArtefactError(
                    f"{framework.title} has no operator {symbol.removeprefix('ops.')}",
                    code="BW808",
                    help=framework.missing,
                )
            tvm_ffi().register_global_func(name, function, override=True)


def _unavailable(framework: Framework, why: str) -> ArtefactError:
    return ArtefactError(
        f"{framework.title}, which computes operators of the model, {why}",
        code="BW808",
        help=f"pip install {framework.package}; or compile the model without operators that the "
        'importer does not cover: options={"fallback": "error"} lists them',
    )
