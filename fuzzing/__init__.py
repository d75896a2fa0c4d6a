"""Long-running checks of the compiler, kept out of the installed package.

`schedules`: random schedules of random programs against the interpreter, lowering and native code.
`modules`: random PyTorch modules against eager mode. `annotations`: mutated graph modules.
`conformance`: PyTorch's own operator samples. `proofs`: random steps through the verifier.
`mutation`: faults injected into the compiler, to measure which checks find them.
"""
