"""Schedule primitives, one file each: every record that a file here defines is a primitive."""

from blockwright.schedule.engine.record import Primitive, records

PRIMITIVES: tuple[type[Primitive], ...] = records(__name__, __path__)
