"""PyTorch front end: `torch.export` programs and modules."""

from blockwright.frontend.torch.importer import from_exported_program

__all__ = ["from_exported_program"]
