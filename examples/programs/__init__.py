"""Programs that are not einsums, assembled from fragments that Python functions emit."""
