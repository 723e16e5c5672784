"""The FedBC paper reproduced: every table and figure from specifications, runs and results, beside its own numbers."""
