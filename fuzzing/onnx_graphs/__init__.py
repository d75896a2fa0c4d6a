"""Random ONNX graphs, each node of which ONNX Runtime computes by itself as the reference.

`draw` makes a graph from a seed, `judge` imports and compiles it and compares compiled code and the
interpreter with the reference at several sizes, and `campaign` runs many seeds.
"""
