"""FedSGD: one full-batch gradient step a round.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.

    client i: w_i <- w - eta * grad f_i(w)            on its whole local set
    w <- sum_i n_i / n * w_i                          = w - eta * sum_i n_i / n * grad f_i(w)

Deviations: none; the client sends the stepped model rather than the gradient, which is the same to the server.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedtailor.local import Client, descend
from fedtailor.method import Fitted, Method, Received
from fedtailor.registry import register
from fedtailor.tree import State, Tree


@register("method", "FedSGD")
@dataclass(frozen=True, repr=False)
class FedSGD(Method):
    """One step a round on the gradient of the whole local set."""

    paper = "McMahan et al., AISTATS 2017"
    citation = """@inproceedings{mcmahan2017communication,
  title     = {Communication-Efficient Learning of Deep Networks from Decentralized Data},
  author    = {McMahan, Brendan and Moore, Eider and Ramage, Daniel and Hampson, Seth and Ag{\\"u}era y Arcas, Blaise},
  booktitle = {International Conference on Artificial Intelligence and Statistics (AISTATS)},
  year      = {2017}
}"""

    def fit(self, client: Client, state: State, model: Tree, got: Received) -> Fitted:
        return Fitted(descend(replace(client, batch=0), model, steps=1).theta, state)
