"""A network for texts, whose samples are the numbers of their words."""

from __future__ import annotations

from torch import Tensor, nn

from fedtailor.nn.shape import Tokens, check_sizes
from fedtailor.registry import WrongInput, register

WIDTH = 32


class FastText(nn.Module):
    """The mean of the words' vectors, and two linear layers with nothing between them, as in FedALA's count and code.

    The mean is over all positions: a word numbered 0 is padding, whose vector is and stays zero.
    """

    def __init__(self, classes: int, shape: tuple[int, ...], vocabulary: int) -> None:
        super().__init__()
        self.input = Tokens(shape)
        self.embedding = nn.Embedding(vocabulary, WIDTH, padding_idx=0)
        self.fc1 = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.fc1(self.embedding(self.input(x)).mean(1)))
        return out


@register("model", "fasttext")
def fasttext(*, classes: int, shape: tuple[int, ...], vocabulary: int = 98_635) -> nn.Module:
    """fastText (Joulin et al., 2017) with vectors of 32 numbers: FedALA's network for AG News."""
    check_sizes("fasttext", classes, shape)
    if len(shape) != 1:
        raise WrongInput(
            f"fasttext takes texts of shape (words,), but the samples have shape {tuple(shape)}; "
            "use mlr or dnn for them"
        )
    if vocabulary < 2:
        raise WrongInput(f"fasttext cannot have vocabulary={vocabulary}; give padding and one word at least")
    return FastText(classes, tuple(shape), vocabulary)
