"""The unsafe namespace: steps that may change what the program means, one file each.

They are written `sch.unsafe.<step>(...)`, in a trace too, so that a reader sees where a schedule
stopped being checked. Each says in its docstring what the caller vouches for. They still refuse
what would leave no well-formed program.
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
