"""How much more than its share the fullest of M machines has of S drawn devices: the table of docs/machines.md."""

import numpy as np


def excess(sample: int, machines: int, draws: int = 2000) -> float:
    """The mean of the fullest machine's number of devices over the even share, less one."""
    counts = np.random.default_rng(0).multinomial(sample, [1 / machines] * machines, draws)
    return float(counts.max(1).mean() / (sample / machines) - 1)


if __name__ == "__main__":
    for sample in (10, 100, 1000, 10000):
        print(sample, *(f"{excess(sample, machines):.0%}" for machines in (2, 4, 16)))
