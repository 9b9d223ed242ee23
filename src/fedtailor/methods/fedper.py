"""FedPer: a shared body below a personal head, trained together.

Arivazhagan et al., "Federated Learning with Personalization Layers", 2019.

    client i: (body, own head): E epochs of SGD on both                           Alg. 1
    body <- sum_i n_i / n * body_i

Deviations: (1) the personalisation layers are the last linear layer; the paper lets their number vary.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedtailor.arch import Arch
from fedtailor.method import Method, require
from fedtailor.registry import register


def body_and_head(method: str, arch: Arch) -> frozenset[str]:
    """The head's names, of a model that has a body as well."""
    require(
        bool(arch.head), method,
        "the model's last layer has no trained tensor of its own to be its head (it is frozen, or tied to another "
        "layer), so nothing would be personal; choose a model that has one, such as dnn",
    )  # fmt: skip
    require(
        bool(arch.trainable - arch.head), method,
        "the model is a single layer, so nothing would be shared; "
        "choose one with a body below its last layer, such as dnn",
    )  # fmt: skip
    return arch.head


@register("method", "FedPer")
@dataclass(frozen=True, repr=False)
class FedPer(Method):
    """FedAvg with a private last layer."""

    paper = "Arivazhagan et al., 2019"
    citation = """@article{arivazhagan2019federated,
  title   = {Federated Learning with Personalization Layers},
  author  = {Arivazhagan, Manoj Ghuhan and Aggarwal, Vinay and Singh, Aaditya Kumar and Choudhary, Sunav},
  journal = {arXiv preprint arXiv:1912.00818},
  year    = {2019}
}"""

    def personal(self, arch: Arch) -> frozenset[str]:
        return body_and_head("FedPer", arch)
