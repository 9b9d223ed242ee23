"""FedRep: first the personal head on a fixed body, then the shared body under the fixed head.

Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", ICML 2021.

    client i: head_i <- E_h epochs of SGD, body fixed                             Alg. 1 lines 6-8
              body_i <- E epochs of SGD, head fixed                               line 9
    body <- sum_i n_i / n * body_i                                                line 12

Deviations: (1) the batches of the two phases are drawn independently. (2) Running statistics of batch norm follow the
forward passes of both phases. (3) Clients are weighted by size; the paper's are of equal size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fedtailor.arch import Arch
from fedtailor.local import Client, descend
from fedtailor.method import Fitted, Method, Received, require, worth_trying
from fedtailor.methods.fedper import body_and_head
from fedtailor.registry import register
from fedtailor.tree import State, Tree


@register("method", "FedRep")
@dataclass(frozen=True, repr=False)
class FedRep(Method):
    """Head epochs on a fixed body, then body epochs under the fixed head; the body is shared."""

    head_epochs: int = 1  # E_h; the paper's experiments use 10

    grid = worth_trying(head_epochs=(1, 3, 10))
    paper = "Collins et al., ICML 2021"
    citation = """@inproceedings{collins2021exploiting,
  title     = {Exploiting Shared Representations for Personalized Federated Learning},
  author    = {Collins, Liam and Hassani, Hamed and Mokhtari, Aryan and Shakkottai, Sanjay},
  booktitle = {International Conference on Machine Learning (ICML)},
  year      = {2021}
}"""

    def __post_init__(self) -> None:
        require(self.head_epochs >= 0, "FedRep", f"head_epochs={self.head_epochs} must be 0 or more")

    def notes(self, arch: Arch, n: int) -> Iterator[str]:
        if self.head_epochs == 0:
            yield "FedRep: with head_epochs=0 no head is ever trained; every client keeps the first one"

    def personal(self, arch: Arch) -> frozenset[str]:
        return body_and_head("FedRep", arch)

    def fit(self, client: Client, state: State, model: Tree, got: Received) -> Fitted:
        head = client.arch.head
        model = descend(client, model, only=head, epochs=self.head_epochs, stream=1).theta
        return Fitted(descend(client, model, only=client.arch.trainable - head).theta, state)
