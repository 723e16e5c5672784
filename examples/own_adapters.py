"""Low-rank adapters on a frozen transformer, in PyTorch: each device trains, keeps and sends the adapters alone."""

import torch
from torch import nn

import fedbc

ALPHABET, WINDOW, WIDTH, RANK = 16, 12, 32, 2


class Adapted(nn.Module):
    """A frozen linear layer W with a low-rank correction: W x + B A x."""

    def __init__(self, frozen):
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(RANK, frozen.in_features) / frozen.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(frozen.out_features, RANK))

    def forward(self, x):
        return self.frozen(x) + x @ self.a.T @ self.b.T


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mixed, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.inner = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        n, time, _ = x.shape
        q, k, v = self.mixed(self.first(x)).view(n, time, 3, 4, WIDTH // 4).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(n, time, WIDTH))
        return x + self.inner(self.second(x))


class Transformer(nn.Module):
    """Predicts the next letter."""

    def __init__(self):
        super().__init__()
        self.letters, self.places = nn.Embedding(ALPHABET, WIDTH), nn.Parameter(0.1 * torch.randn(WINDOW, WIDTH))
        self.blocks = nn.Sequential(Block(), Block())
        self.last = nn.Linear(WIDTH, ALPHABET)

    def forward(self, x):
        return self.last(self.blocks(self.letters(x) + self.places)[:, -1])


def with_adapters(network):
    """The network frozen, with adapters in its attention, and its last layer trained."""
    network.requires_grad_(False)
    for block in network.blocks:
        block.mixed = Adapted(block.mixed)
    network.last.requires_grad_(True)
    return network


def letters(device, generator, examples=120):
    """A device's texts go round the alphabet with a step of its own."""
    start = torch.randint(ALPHABET, (examples,), generator=generator)
    texts = (start[:, None] + (1 + device % 3) * torch.arange(WINDOW + 1)) % ALPHABET
    return texts[:, :-1].numpy(), texts[:, -1].numpy()


def main(rounds=30):
    generator = torch.Generator().manual_seed(0)
    federation = fedbc.data.federation(
        [letters(i, generator) for i in range(6)], [letters(i, generator, 40) for i in range(6)], classes=ALPHABET
    )
    torch.manual_seed(0)
    network = Transformer()  # where there is a trained one, its weights are loaded here
    every = sum(p.numel() for p in network.parameters())
    model = fedbc.torch.model(with_adapters(network))
    result = fedbc.simulate(fedbc.FedBC(lr=0.1, momentum=0.9), model, federation, rounds=rounds, seed=1)
    trained = sum(array.size for array in result.global_model.values())
    print(f"{trained} of {every + trained - network.last.weight.numel() - ALPHABET} parameters are trained and sent")
    print(result.history[["round", "global_accuracy", "local_accuracy"]].tail(1).to_string(index=False))
    return result


if __name__ == "__main__":
    main()
