"""Run-time support compiled into libraries: thread pool, result allocation."""
