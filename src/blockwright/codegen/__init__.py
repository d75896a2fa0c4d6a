"""From flat loops to native code: LLVM text, objects, shared libraries, artefacts."""
