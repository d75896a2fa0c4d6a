"""PyTorch's own samples of every operator, compiled and compared with PyTorch.

    python -m fuzzing.conformance --ops add,softmax --dtypes float32

The samples are those of `torch.testing._internal.common_methods_invocations` (OpInfo), a few per
operator and type, and variants of them: special values, strides, axes of size 0, in place, sizes
that are symbols. Many samples are compiled as one module; a module that fails is split until the
samples that fail are alone. `docs/conformance.md` says what comes out.
"""
