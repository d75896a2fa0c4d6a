"""Prove the schedules of a compilation: each scheduled program against the unscheduled one."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping

import msgspec

from blockwright import ir
from blockwright.build.worker import ProofJob, Proved
from blockwright.build.workers import POOL
from blockwright.ir.attributes import LOWER_BOUND, UPPER_BOUND
from blockwright.passes import PassContext
from blockwright.support import BuildError

_BOUNDS = (LOWER_BOUND, UPPER_BOUND)
"""What a program is proved under; its other attributes say nothing of what it computes."""
"""Attributes that a proof depends on; the others do not affect what a program computes."""
