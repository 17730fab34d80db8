"""A language model of LSTM layers (Zaremba et al. 2014, section 3, without its dropout)."""

import torch
from torch import Tensor, nn

INITIAL = 0.1
"""All parameters start within ± this number (section 4.1, the network of 200 units)."""


class WordLSTM(nn.Module):
    """What comes after each token of some windows of text, and the state behind them.

    With 10,000 tokens, 200 numbers for each and 2 layers of 200 units it has 4,653,200 parameters,
    1,600 of them in torch's second bias.
    """

    def __init__(self, tokens: int, *, embedding: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, embedding)
        self.lstm = nn.LSTM(embedding, width, layers)
        self.output = nn.Linear(width, tokens)

    def forward(self, windows: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (T, streams, tokens) of what follows each token of windows (T, streams), and the
        state (2, layers, streams, width), hidden and cell, that the next windows begin with; it has
        no gradient."""
        seen, after = self.lstm(self.embedding(windows), (state[0], state[1]))
        # Or autocast would let the windows hand on a state in bfloat16.
        return self.output(seen), torch.stack(after).detach().to(state.dtype)


def start_uniformly(model: nn.Module, *, seed: int) -> None:
    """Start all parameters U(-0.1, 0.1), by the seed alone (Zaremba et al. 2014, section 4.1)."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -INITIAL, INITIAL, generator=generator)
