"""One module a contestant, run in the contestant's own environment; see `protocol`."""
