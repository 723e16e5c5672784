"""PyTorch for these tests: imported without its own warnings, on one thread."""

import warnings

with warnings.catch_warnings():  # PyTorch's own imports warn
    warnings.simplefilter("ignore")
    import torch

torch.set_num_threads(1)  # its threads wait for one another when other tests run beside it
