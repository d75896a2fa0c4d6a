"""PyTorch front end: import of `torch.export` programs and modules."""

from blockwright.frontend.torch.importer import from_exported_program, from_exported_programs
from blockwright.frontend.torch.training import warn_of_training

__all__ = ["from_exported_program", "from_exported_programs", "warn_of_training"]
