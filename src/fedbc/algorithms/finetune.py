"""Fine-tuning: a few local steps from a model before it is evaluated (the paper's FedBC-FineTune).

    theta_i = w_i - lr ∇f_i(w_i; one batch),  `steps` times, on batches of the device's own data;   w_i = x_i or z

It is an act of evaluation: nothing that it computes goes back into training. By default the batches are training
data. The paper's experiments took one step on a batch of *test* data and then tested on the whole test set, which leaks
test data into the model; `on="test"` does that for the reference protocol, and every table then says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedbc import checks


@dataclass(frozen=True)
class FineTune:
    """Adapt each device's model by a few steps on its own data before it is evaluated.

    steps: how many steps; lr: their rate; batch_size: examples per step.
    on: "train", or "test" (leaks test data; for the reference protocol only).
    of: which model is adapted, "local" (x_i) or "global" (z).
    """

    steps: int = 1
    lr: float = 0.01
    batch_size: int = 20
    on: str = "train"
    of: str = "local"

    def __post_init__(self) -> None:
        checks.integer("fine_tune steps", self.steps, at_least=1)
        checks.number("fine_tune lr", self.lr, above=0)
        checks.integer("fine_tune batch_size", self.batch_size, at_least=1)
        checks.choice("fine_tune on", self.on, ["train", "test"])
        checks.choice("fine_tune of", self.of, ["local", "global"])

    @property
    def column(self) -> str:
        """The column of history; its name says where test data were used."""
        return "finetuned_accuracy" if self.on == "train" else "finetuned_on_test_accuracy"
