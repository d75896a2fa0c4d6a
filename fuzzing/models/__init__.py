"""Survey of model architectures: small configurations with random weights, beside PyTorch.

    python -m fuzzing.models                         # all that is left
    python -m fuzzing.models --models "llama*,t5"    # some
    python -m fuzzing.models --page docs/model-coverage.md

Each architecture is compiled by three routes: exported for fixed sizes, exported for any batch and
length or image size, and through ONNX (`torch.onnx.export`). Results are compared with the model's
own at two sizes. Architectures run in a process each; records are kept, and a run continues where
the last one ended. Needs `requirements/models.txt` on top of the development environment.
"""
