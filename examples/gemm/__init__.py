"""A matrix product, from three loops to near the machine's peak, one schedule step at a time."""
