"""Run compiled code: libraries, calls, threads, artefacts. Does not import the compiler."""
