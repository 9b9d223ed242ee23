"""What a network takes: samples of one shape."""

from __future__ import annotations

from torch import Tensor, nn

from fedtailor.registry import WrongInput


class Input(nn.Module):
    """The first layer of every network here: refuses samples of another shape, changes nothing."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = tuple(shape)

    def forward(self, x: Tensor) -> Tensor:
        if tuple(x.shape[1:]) != self.shape:
            raise WrongInput(
                f"samples of shape {tuple(x.shape[1:])} were given to a model for samples of shape "
                f"{self.shape}; give it a batch of those, or make the model again with the shape of the data"
            )
        return x

    def extra_repr(self) -> str:
        return f"shape={self.shape}"


class Tokens(Input):
    """As `Input`, for samples that are numbers of words."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype.is_floating_point:
            raise WrongInput(
                "the model takes texts as the numbers of their words, and the samples are measurements; "
                "use mlr, dnn or gru for them"
            )
        return super().forward(x)


def check_sizes(model: str, classes: int, shape: tuple[int, ...]) -> None:
    """At least one output, and a shape with at least one number in it."""
    if classes < 1:
        raise WrongInput(f"{model} cannot have {classes} outputs; classes must be at least 1")
    if not shape or min(shape) < 1:
        raise WrongInput(f"{model} cannot take samples of shape {tuple(shape)}; give sizes from 1 on, such as (60,)")


def check_image(model: str, shape: tuple[int, ...], smallest: int) -> None:
    """(channels, height, width), large enough for the convolutions."""
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise WrongInput(
            f"{model} takes images of shape (channels, height, width) of {smallest} x {smallest} pixels or "
            f"more, but the samples have shape {tuple(shape)}; use mlr or dnn for them"
        )


def check_rgb(model: str, shape: tuple[int, ...]) -> None:
    """Weights of ImageNet are for three channels."""
    if shape[0] != 3:
        raise WrongInput(
            f"{model}(pretrained=...) takes pictures with three channels, red, green and blue, but the samples have "
            f"shape {tuple(shape)}; leave pretrained out"
        )
