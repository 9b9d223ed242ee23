"""FedBABU: only the body is ever trained in the federation, under a head that stays as it was drawn.

Oh, Kim and Yun, "FedBABU: Toward Enhanced Representation for Federated Image Classification", ICLR 2022.

    the head is drawn once, the same for all
    client i: body_i <- body, E epochs of SGD on the body, head fixed             Alg. 1
    body <- sum_i n_i / n * body_i
    tested: a copy, fine-tuned for ft_epochs on the client's own data             section 5.2

Deviations: (1) the head is the last linear layer, and is not sent, as every client holds the same one. (2) Names that
stay private under a plug-in are trained with the body.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from fedtailor.arch import Arch
from fedtailor.local import Client, descend
from fedtailor.method import Fitted, Method, Received, require, worth_trying
from fedtailor.methods.fedper import body_and_head
from fedtailor.registry import register
from fedtailor.tree import State, Tree


@register("method", "FedBABU")
@dataclass(frozen=True, repr=False)
class FedBABU(Method):
    """A shared body trained under one fixed head; each client fine-tunes a copy for testing."""

    ft_epochs: int = 5
    ft_part: Literal["full", "head", "body"] = "full"  # full is the paper's best

    grid = worth_trying(ft_epochs=(1, 5, 10))
    point = "adapted"
    paper = "Oh et al., ICLR 2022"
    citation = """@inproceedings{oh2022fedbabu,
  title     = {{FedBABU}: Toward Enhanced Representation for Federated Image Classification},
  author    = {Oh, Jaehoon and Kim, Sangmook and Yun, Se-Young},
  booktitle = {International Conference on Learning Representations (ICLR)},
  year      = {2022}
}"""

    def __post_init__(self) -> None:
        require(self.ft_epochs >= 0, "FedBABU", f"ft_epochs={self.ft_epochs} must be 0 or more")
        allowed = ("full", "head", "body")
        require(self.ft_part in allowed, "FedBABU", f"ft_part={self.ft_part!r} must be one of {', '.join(allowed)}")

    def notes(self, arch: Arch, n: int) -> Iterator[str]:
        if self.ft_epochs == 0:
            yield "FedBABU: with ft_epochs=0 the model tested has a head that was never trained"

    def personal(self, arch: Arch) -> frozenset[str]:
        return body_and_head("FedBABU", arch)

    def fit(self, client: Client, state: State, model: Tree, got: Received) -> Fitted:
        return Fitted(descend(client, model, only=client.arch.trainable - client.arch.head).theta, state)

    def personalised(self, client: Client, state: State, got: Received) -> Tree:
        arch = client.arch
        part = {"full": arch.trainable, "head": arch.head, "body": arch.trainable - arch.head}[self.ft_part]
        return descend(client, got.model, only=part, epochs=self.ft_epochs).theta
