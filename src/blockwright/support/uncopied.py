"""Base class of objects that hold loaded code: not picklable, and copied by reference."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from blockwright.support.errors import BlockwrightError


class Uncopied:
    """Base class that rejects pickling and deep copies; a shallow copy is the object itself."""

    __slots__ = ()
    instead: ClassVar[str] = "save the model, and load it where it is needed: model.save, bw.load"

    def __copy__(self) -> Self:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise BlockwrightError(
            f"loaded code ({type(self).__name__}) can be neither pickled nor copied",
            code="BW929",
            help=self.instead,
        )
