"""Any PyTorch module is an embedding: VAFL with a network at each client and a head at the server.

    python examples/a_user_module.py          needs the extra `deep`

The server holds the labels and learns every embedding; the clients learn derivatives, which give labels away. The run
record says so; `label_dp_epsilon` and `private` are what can be done about it.
"""

import numpy as np
import torch
from torch import nn

from offbeat.algorithms import vafl
from offbeat.learning.embeddings import Adam
from offbeat.learning.networks import TorchEmbedding, TorchHead, mlp
from offbeat.runtime.simulator import CostModel, Simulator

ROWS, WIDTH = 1200, 6


class Mine(nn.Module):
    """Whatever you like: VAFL asks only for a forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(torch.tanh(self.inner(x)))


def main() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, 2 * WIDTH)).astype(np.float32)
    labels = (x[:, 0] * x[:, 1] + x[:, WIDTH] * x[:, WIDTH + 1] > 0).astype(int)  # nothing a linear model could learn
    features = {"left": x[:, :WIDTH], "right": x[:, WIDTH:]}
    train, test = slice(0, 1000), slice(1000, ROWS)

    torch.manual_seed(0)
    server, clients = vafl.build(
        {name: rows[train] for name, rows in features.items()},
        vafl.one_hot(labels[train], 2),
        {name: TorchEmbedding(Mine(), example=(WIDTH,)) for name in features},
        TorchHead(mlp(8, 2), (4, 4), 2),
        vafl.Vafl(passes=60, batch=50, optimiser=Adam(0.01), head_optimiser=Adam(0.01)),
        test_features={name: rows[test] for name, rows in features.items()},
        test_targets=vafl.one_hot(labels[test], 2),
    )
    outcome = Simulator(costs=CostModel(slow={"right": 4.0})).run([server, *clients])
    print(outcome.finished["server"].reason)
    for _, party, name, value in outcome.observations:
        if party == "server" and name == "test_accuracy":
            print(f"accuracy on {ROWS - 1000} unseen rows: {value:.3f}")
    print(vafl.what_clients_learn(server.head, server.options))


if __name__ == "__main__":
    main()
