"""docs/pytorch.md's snippet runs, and learns."""

import re
from pathlib import Path

import torch
from torch import nn

PAGE = (Path(__file__).parents[2] / "docs" / "pytorch.md").read_text()


def test_snippet():
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict = {}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        exec(compile(snippet, "pytorch.md", "exec"), names)
    x, y = (torch.tensor(part) for part in (names["fed"].test.x, names["fed"].test.y))
    assert float(nn.functional.cross_entropy(names["module"](x), y.long()).detach()) < 2
    assert all(state.multiplier > 0 for state in names["states"].values())
