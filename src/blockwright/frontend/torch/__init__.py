"""PyTorch front end: import of `torch.export` programs and modules."""

from blockwright.frontend.torch.importer import from_exported_program
from blockwright.frontend.torch.training import warn_of_training

__all__ = ["from_exported_program", "warn_of_training"]
