"""Front ends: import models of other frameworks as graph functions. Each needs its own extra."""
