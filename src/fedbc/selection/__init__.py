"""Choosing settings on validation data: the balance of global and local accuracy, and hyper-parameters."""
