"""Objects that hold loaded code: they cannot be pickled, and a copy would be the object itself."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from blockwright.support.errors import BlockwrightError


class Uncopied:
    """Base of classes whose objects are neither pickled nor copied in depth."""

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
