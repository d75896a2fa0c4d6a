"""A compile worker: reads jobs from standard input, writes results to standard output.

Jobs are LLVM modules to compile, schedules to prove, and compilation steps. LLVM's Python binding
holds a global lock, so compiling in parallel needs processes instead of threads. Workers are
started as `python -m blockwright.build.worker`, without fork, and exit at end of input.
"""

from __future__ import annotations

import os
import signal
import struct
import sys
import time
from typing import BinaryIO

import msgspec

from blockwright.codegen.llvm import binding as llvm
from blockwright.support import BlockwrightError, BuildError

_LENGTH = struct.Struct("<Q")


class CompileJob(msgspec.Struct, frozen=True, array_like=True, tag="compile"):
    """One module to compile; `what` names it in errors."""

    what: str
    text: str
    triple: str
    cpu: str
    features: str
    pipeline: llvm.Pipeline

    @property
    def weight(self) -> int:
        """Estimated cost relative to other jobs."""
        return len(self.text)

    def run(self) -> bytes:
        """Compile in this process; returns the object file."""
        return llvm.compile_object(
            self.text, self.triple, self.cpu, self.features, self.pipeline, self.what
        )


class ProofJob(msgspec.Struct, frozen=True, array_like=True, tag="prove"):
    """A schedule to verify: a program before and after scheduling, as text.

    `hashes` are the structural hashes of the original programs; they detect an incorrect round
    trip through the text.
    """

    what: str
    before: str
    after: str
    hashes: tuple[int, int]

    @property
    def weight(self) -> int:
        """Estimated cost relative to other jobs."""
        return len(self.before) + len(self.after)

    def run(self) -> bytes:
        """Verify in this process; returns the encoded verdict."""
        from blockwright.ir import structural_hash
        from blockwright.script.ir import from_source
        from blockwright.verify import verify

        programs = [from_source(text, name=self.what) for text in (self.before, self.after)]
        if tuple(map(structural_hash, programs)) != self.hashes:
            raise BuildError(
                f"the text of {self.what} does not parse back to the same program",
                code="BW642",
                help="please report the program",
            )
        started = time.perf_counter()
        result = verify(*programs)
        seconds = time.perf_counter() - started
        return msgspec.msgpack.encode(Proved(result.verdict, result.why, seconds))


class StepJob(msgspec.Struct, frozen=True, array_like=True, tag="step"):
    """A compilation step: `function` ("module:name") and its pickled `arguments`, a program, a
    target and options (see `blockwright.build.steps`)."""

    what: str
    function: str
    arguments: bytes

    @property
    def weight(self) -> int:
        """Estimated cost relative to other jobs."""
        return len(self.arguments)

    def run(self) -> bytes:
        """The serialized result; empty when the step fails or its result cannot be pickled."""
        from blockwright.build.steps import run_step

        return run_step(self.function, self.arguments)


Job = CompileJob | ProofJob | StepJob


class Proved(msgspec.Struct, frozen=True, array_like=True):
    """A verdict (see `blockwright.verify`) and the seconds it took."""

    verdict: str
    why: str
    seconds: float


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """The result of a job, or the message and code of an error."""

    data: bytes
    message: str = ""
    code: str = ""


def read_message(stream: BinaryIO) -> bytes | None:
    """Read one length-prefixed message; None at the end of the stream."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack(head)
    body = stream.read(size)
    return body if len(body) == size else None


def write_message(stream: BinaryIO, body: bytes) -> None:
    stream.write(_LENGTH.pack(len(body)))
    stream.write(body)
    stream.flush()


def main() -> None:
    """Serve jobs until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles interrupts
    # Keep output of libraries out of the message stream: redirect stdout to stderr.
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    decode = msgspec.msgpack.Decoder(Job).decode
    while (body := read_message(sys.stdin.buffer)) is not None:
        job = decode(body)
        try:
            answer = Answer(job.run())
        except BlockwrightError as error:
            answer = Answer(b"", error.message, error.code)
        write_message(output, msgspec.msgpack.encode(answer))


if __name__ == "__main__":
    main()
