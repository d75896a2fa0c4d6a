"""What statements read and write: accesses, regions, and where blocks run."""
