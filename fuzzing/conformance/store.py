"""Store records of operators in files, so that a run can continue an earlier one."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import msgspec
import torch

import blockwright
from fuzzing.conformance.operator import Record


def source_digest() -> str:
    """Hash of everything that affects results: the package, this check, PyTorch's version."""
    package, here = Path(blockwright.__file__).parent, Path(__file__).parents[1]
    digest = hashlib.sha256(torch.__version__.encode())
    for root in (package, here / "conformance", here / "eager"):
        for path in sorted(root.rglob("*.py")):
            if "testing" not in path.parts:
                digest.update(path.relative_to(root).as_posix().encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


class Store:
    """A folder with one file per operator."""

    def __init__(self, folder: Path, setting: str) -> None:
        self.folder = folder
        self.digest = f"{source_digest()} {setting}"
        folder.mkdir(parents=True, exist_ok=True)

    def _path(self, operator: str) -> Path:
        return self.folder / f"{re.sub(r'[^A-Za-z0-9_.]', '_', operator)}.json"

    def get(self, operator: str, any_digest: bool = False) -> Record | None:
        """The record of an operator, if made from the current sources.

        With `any_digest`, the sources may differ, but not the setting.
        """
        try:
            record = msgspec.json.decode(self._path(operator).read_bytes(), type=Record)
        except (FileNotFoundError, msgspec.DecodeError):
            return None
        same = self._setting(record.digest) == self._setting(self.digest)
        return record if record.digest == self.digest or (any_digest and same) else None

    @staticmethod
    def _setting(digest: str) -> str:
        return digest.partition(" ")[2]

    def put(self, record: Record) -> None:
        path = self._path(record.operator)
        part = path.with_suffix(".part")
        part.write_bytes(msgspec.json.format(msgspec.json.encode(record)))
        part.replace(path)

    def clear(self) -> None:
        for path in self.folder.glob("*.json"):
            path.unlink()
