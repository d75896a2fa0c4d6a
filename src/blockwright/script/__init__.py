"""TVMScript front end; `from blockwright.script import tir as T, relax as R, ir as I`."""
