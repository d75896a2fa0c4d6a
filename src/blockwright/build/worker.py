"""A compile worker: LLVM text in on standard input, objects out on standard output.

LLVM's binding holds a global lock, so threads gain nothing; processes do. They are started as
`python -m blockwright.build.worker`, without fork, and end when their input ends.
"""

from __future__ import annotations

import os
import signal
import struct
import sys
from typing import BinaryIO

import msgspec

from blockwright.codegen import llvm
from blockwright.support import BlockwrightError

_LENGTH = struct.Struct("<Q")


class Job(msgspec.Struct, frozen=True, array_like=True):
    """One module to compile; `what` names it in errors."""

    what: str
    text: str
    triple: str
    cpu: str
    features: str
    pipeline: llvm.Pipeline


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """An object, or the message and code of an error."""

    data: bytes
    message: str = ""
    code: str = ""


def run_job(job: Job) -> bytes:
    """Compiles in this process."""
    return llvm.compile_object(job.text, job.triple, job.cpu, job.features, job.pipeline, job.what)


def read_message(stream: BinaryIO) -> bytes | None:
    """One length-prefixed message, or None at the end."""
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
    """Serves jobs until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    # What a library prints must not get between the messages.
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    decode = msgspec.msgpack.Decoder(Job).decode
    while (body := read_message(sys.stdin.buffer)) is not None:
        job = decode(body)
        try:
            answer = Answer(run_job(job))
        except BlockwrightError as error:
            answer = Answer(b"", error.message, error.code)
        write_message(output, msgspec.msgpack.encode(answer))


if __name__ == "__main__":
    main()
