"""A network for sequences of measurements, of shape (steps, features)."""

from __future__ import annotations

from torch import Tensor, nn

from fedtailor.nn.shape import Input, check_sizes
from fedtailor.registry import WrongInput, register


class Recurrent(nn.Module):
    """Two recurrent layers, the second of which hands its last state to a linear one.

    They are two modules, so that whatever works layer by layer sees two.
    """

    def __init__(self, classes: int, shape: tuple[int, ...], hidden: int) -> None:
        super().__init__()
        self.input = Input(shape)
        self.gru1 = nn.GRU(shape[1], hidden, batch_first=True)
        self.gru2 = nn.GRU(hidden, hidden, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.gru1(self.input(x))
        states, _ = self.gru2(states)
        out: Tensor = self.head(states[:, -1])
        return out


@register("model", "gru")
def gru(*, classes: int, shape: tuple[int, ...], hidden: int = 128) -> nn.Module:
    """Two GRU layers of 128 units and one linear layer on the last state: FedHAM's network for air quality."""
    check_sizes("gru", classes, shape)
    if len(shape) != 2:
        raise WrongInput(
            f"gru takes sequences of shape (steps, features), but the samples have shape {tuple(shape)}; "
            "use mlr or dnn for them"
        )
    if hidden < 1:
        raise WrongInput(f"gru cannot have hidden={hidden}; give at least one unit, such as hidden=128")
    return Recurrent(classes, tuple(shape), hidden)
