"""A language model of LSTM layers (Zaremba et al. 2014, section 3, without its dropout)."""

import torch
from torch import Tensor, nn

from lsgd.errors import UsageError

INIT_BOUND = 0.1
"""The bound of the uniform initialisation (section 4.1, the network of 200 units)."""


class LSTMLanguageModel(nn.Module):
    """An LSTM network that predicts the next token at each position of windows of text.

    With 10,000 tokens, 200 numbers for each and 2 layers of 200 units it has 4,653,200 parameters,
    1,600 of them in torch's second bias.
    """

    def __init__(self, vocabulary_size: int, *, embedding: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, embedding)
        self.lstm = nn.LSTM(embedding, width, layers)
        self.output = nn.Linear(width, vocabulary_size)

    def forward(self, windows: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of the next tokens, and the LSTM's state after these windows.

        The logits have shape (T, streams, tokens) for windows (T, streams). The state, hidden and
        cell, has shape (2, layers, streams, width) and no gradient; the next windows start from it.
        """
        seen, after = self.lstm(self.embedding(windows), (state[0], state[1]))
        # Under autocast the new state would be in its dtype.
        return self.output(seen), torch.stack(after).detach().to(state.dtype)


def check_autocast(model: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Raise UsageError if a model has an LSTM and this device does not support it in a dtype.

    Processors without instructions for bfloat16 or float16 do not.
    """
    if not any(isinstance(module, nn.LSTM) for module in model.modules()):
        return
    try:
        with torch.autocast(device.type, dtype):
            nn.LSTM(1, 1, device=device)(torch.zeros(1, 1, 1, device=device))
    except RuntimeError as error:
        name = str(dtype).removeprefix("torch.")
        raise UsageError(
            f"precision={name} is not supported by the LSTM of this network on this "
            f"{device.type} ({str(error).splitlines()[0]}); write precision=float32",
            is_local=True,
        ) from None


def initialise_uniformly(model: nn.Module, *, seed: int) -> None:
    """Draw all parameters of a model from U(-0.1, 0.1) by the seed (Zaremba et al. 2014)."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -INIT_BOUND, INIT_BOUND, generator=generator)
