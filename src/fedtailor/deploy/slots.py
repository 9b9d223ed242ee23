"""Room for the uploads of one exchange: each lies from the start where their stack needs it.

Uploads are as large as models, and a method aggregates their stack. With every upload in its own slot of one tensor,
the stack is there as soon as the last has come, and nothing is in memory twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from fedtailor import tree
from fedtailor.deploy.wire import Room, anywhere
from fedtailor.tree import State, Tree

MODEL = "upload/model/"


class Slots:
    """A slot for the upload of each of some sites, for models such as `example`; made when the first value comes."""

    def __init__(self, numbers: Iterable[int], example: Tree):
        self.places = {number: place for place, number in enumerate(sorted(numbers))}
        self.example = example
        self.whole: Tree = {}

    def of(self, number: int) -> Room:
        """Where the tensors of a site's answer go; what is no part of a model goes anywhere."""

        def room(path: str, kind: torch.dtype, shape: tuple[int, ...]) -> Tensor:
            name = path.removeprefix(MODEL)
            like = self.example.get(name) if path.startswith(MODEL) else None
            if number not in self.places or like is None or like.dtype is not kind or like.shape != shape:
                return anywhere(path, kind, shape)
            if name not in self.whole:
                self.whole[name] = torch.empty(len(self.places), *shape, dtype=kind)
            return self.whole[name][self.places[number]]

        return room


def stack(states: Sequence[State]) -> State:
    """As `tree.stack`, without a copy of those tensors that lie in slots one after the other."""
    flat = [tree.flatten(state) for state in states]
    return tree.unflatten({name: _together([one[name] for one in flat]) for name in flat[0]})


def _together(tensors: Sequence[Tensor]) -> Tensor:
    first = tensors[0]
    start, step = first.storage_offset(), first.numel()
    if all(
        one.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        and one.storage_offset() == start + place * step
        and one.is_contiguous()
        and (one.dtype, one.shape) == (first.dtype, first.shape)
        for place, one in enumerate(tensors)
    ):
        return first.as_strided((len(tensors), *first.shape), (step, *first.stride()), start)
    return torch.stack(list(tensors))


def outlines_of(model: Mapping[str, Tensor]) -> Tree:
    """The shapes and types of a model, without its values."""
    return {name: tensor.to("meta") for name, tensor in model.items()}
