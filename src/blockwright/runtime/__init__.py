"""Running compiled code: libraries, calls, threads, artefacts. Imports no compiler room."""
