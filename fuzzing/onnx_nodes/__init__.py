"""Run the node tests of the ONNX package: one small model for each case of an operator.

    python -m fuzzing.onnx_nodes                    all tests; goes on where it stopped
    python -m fuzzing.onnx_nodes --tests 'test_conv*' --fresh

Each test is compiled and run in a process of its own; interpreted tests (--interpret) share one. An
input that decides the program is fixed to the test's value, as the refusal asks (BW523); records
list such inputs.
"""
