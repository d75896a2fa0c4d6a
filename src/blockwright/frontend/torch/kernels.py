"""Other implementations of PyTorch's composite operators, while it traces programs."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced_composites(kernels: Mapping[Any, Callable[..., Any]]) -> Generator[None]:
    """Meanwhile, tracing an overload of a composite operator calls a function instead."""
    from torch._C import DispatchKey  # pyright: ignore[reportPrivateUsage]

    keys = (DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd)
    saved: list[tuple[Any, dict[Any, Any]]] = []
    try:
        for overload, kernel in kernels.items():
            saved.append((overload, dict(overload.py_kernels)))
            overload.py_kernels.update(dict.fromkeys(keys, kernel))
            overload._dispatch_cache.clear()
        yield
    finally:
        for overload, before in saved:
            overload.py_kernels.clear()
            overload.py_kernels.update(before)
            overload._dispatch_cache.clear()
