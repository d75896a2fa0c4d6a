"""Choice of tensor layouts."""
