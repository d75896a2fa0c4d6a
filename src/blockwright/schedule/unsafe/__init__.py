"""The list of unsafe primitives, which may change the meaning of a program, one file each.

They are written `sch.unsafe.<step>(...)`, also in traces, so that a reader sees which steps are
unchecked. The docstring of each states what the caller must guarantee. They still reject
steps that would make the program ill-formed.
"""

from blockwright.schedule.engine.record import UnsafePrimitive
from blockwright.schedule.unsafe.annotate_buffer_access import AnnotateBufferAccess
from blockwright.schedule.unsafe.assume_independent import AssumeIndependent
from blockwright.schedule.unsafe.drop_predicate import DropPredicate
from blockwright.schedule.unsafe.hide_buffer_access import HideBufferAccess
from blockwright.schedule.unsafe.set_dtype import SetDtype

UNSAFE_PRIMITIVES: tuple[type[UnsafePrimitive], ...] = (
    AnnotateBufferAccess,
    AssumeIndependent,
    DropPredicate,
    HideBufferAccess,
    SetDtype,
)
