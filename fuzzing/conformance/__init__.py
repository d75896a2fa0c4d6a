"""Compile PyTorch's own samples of every operator and compare the results with PyTorch.

    python -m fuzzing.conformance --ops add,softmax --dtypes float32

The samples are those of `torch.testing._internal.common_methods_invocations` (OpInfo), a few per
operator and type, and variants of them: special values, strides, axes of size 0, in-place
operators, symbolic sizes. Many samples are compiled as one module; a module that fails is split to
isolate the failing samples. `docs/conformance.md` holds the results.
"""
