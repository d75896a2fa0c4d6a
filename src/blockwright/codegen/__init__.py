"""Generate native code from flat loops: LLVM text, objects, shared libraries, artefacts."""
