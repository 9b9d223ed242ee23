"""Rules for recurrent layers: the cells of all clients are one batched product a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fedtailor.lanes.layers import dropout
from fedtailor.lanes.rules import unknown
from fedtailor.lanes.value import Function, is_lanes, lanes, raw, register, stacks, wrapped

Weights = Sequence[Tensor]  # [lanes, gates * hidden, ...]: of the input, of the state, and their biases where there are


def recurrent(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """torch.gru, lstm, rnn_tanh and rnn_relu on whole sequences of one length, as the modules call them."""
    if kwargs or len(args) != 9 or not isinstance(args[2], list | tuple) or not is_lanes(args[0]):
        return unknown(func, args, kwargs)
    x, begin, flat, has_biases, layers, p, training, both_ways, batch_first = args
    begin = list(begin) if func is torch.lstm else [begin]
    per_layer = 4 if has_biases else 2
    ways = 2 if both_ways else 1
    if len(flat) != per_layer * ways * layers:  # an LSTM with projections
        return unknown(func, args, kwargs)
    own = [value for value in (x, *begin, *flat) if is_lanes(value)]
    count = len(raw(own[0]))
    cut = iter(stacks(*own))
    x, *rest = [next(cut) if is_lanes(v) else v.expand(count, *v.shape) for v in (x, *begin, *flat)]
    first, weights = rest[: len(begin)], rest[len(begin) :]
    steps = x.unbind(2 if batch_first else 1)
    ends: list[list[Tensor]] = [[] for _ in first]
    for layer in range(layers):
        seen: list[list[Tensor]] = []
        for way in range(ways):
            place = layer * ways + way
            own_weights = weights[place * per_layer : (place + 1) * per_layer]
            state = [value[:, place] for value in first]
            found, state = run(func, steps[:: -1 if way else 1], state, own_weights)
            seen.append(found[:: -1 if way else 1])
            for end, value in zip(ends, state, strict=True):
                end.append(value)
        steps = tuple(torch.cat(pair, 2) if both_ways else pair[0] for pair in zip(*seen, strict=True))
        if p and training and layer < layers - 1:  # as torch draws it: steps first
            steps = raw(dropout(func, (lanes(torch.stack(steps, 1)), p, True), {})).unbind(1)
    out = torch.stack(steps, 2 if batch_first else 1)
    return (wrapped(out), *(wrapped(torch.stack(end, 1)) for end in ends))


def run(func: Function, steps: Weights, state: list[Tensor], weights: Weights) -> tuple[list[Tensor], list[Tensor]]:
    """One layer in one direction: the outputs of all steps, and the last state."""
    of_input, of_state, *biases = weights
    rows = torch.cat(tuple(steps), 1)  # the products with the inputs do not wait for each other
    ahead = torch.baddbmm(biases[0].unsqueeze(1), rows, of_input.mT) if biases else torch.bmm(rows, of_input.mT)
    found = []
    for now in torch.split(ahead, steps[0].shape[1], 1):
        h = state[0]
        back = torch.baddbmm(biases[1].unsqueeze(1), h, of_state.mT) if biases else torch.bmm(h, of_state.mT)
        state = CELLS[func](now, back, state)
        found.append(state[0])
    return found, state


def gru_cell(now: Tensor, back: Tensor, state: list[Tensor]) -> list[Tensor]:
    [h] = state
    width = h.shape[-1]
    (gates, fresh), (gates_back, fresh_back) = (torch.split(part, [2 * width, width], -1) for part in (now, back))
    reset, keep = torch.chunk((gates + gates_back).sigmoid(), 2, -1)
    new = torch.addcmul(fresh, reset, fresh_back).tanh()
    return [torch.lerp(new, h, keep)]


def lstm_cell(now: Tensor, back: Tensor, state: list[Tensor]) -> list[Tensor]:
    take, forget, new, give = torch.chunk(now + back, 4, -1)
    c = forget.sigmoid() * state[1] + take.sigmoid() * new.tanh()
    return [give.sigmoid() * c.tanh(), c]


CELLS: dict[Any, Callable[[Tensor, Tensor, list[Tensor]], list[Tensor]]] = {
    torch.gru: gru_cell,
    torch.lstm: lstm_cell,
    torch.rnn_tanh: lambda now, back, state: [(now + back).tanh()],
    torch.rnn_relu: lambda now, back, state: [(now + back).relu()],
}
register(recurrent, *CELLS)
