"""Unsafe primitives, which may change the meaning of a program, one file each.

They are written `sch.unsafe.<step>(...)`, also in traces, so that a reader sees which steps are
unchecked. The docstring of each states what the caller must guarantee. They still reject
steps that would make the program ill-formed.
"""

from blockwright.schedule.engine.record import Primitive, records

UNSAFE_PRIMITIVES: tuple[type[Primitive], ...] = records(__name__, __path__)
