"""GPU execution in the interpreter: thread blocks, warps, asynchronous copies, races."""
