"""Front ends: models of other frameworks become graph functions. Each needs its own extra."""
