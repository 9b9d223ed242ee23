"""FedBN: everything is averaged but the normalisation layers, which stay on the client.

Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", ICLR 2021.

    client i: w_i <- (w without norms, own norms), E epochs of SGD                Alg. 1
    w without norms <- mean of the clients'

Private are the weights, biases and running statistics of the norms, found by module type (law 7).
Deviations: (1) clients are weighted by size, as in FedAvg; the paper's benchmark has clients of equal size and takes
the plain mean (`weighting=uniform`).
"""

from __future__ import annotations

from dataclasses import dataclass

from fedtailor.arch import Arch
from fedtailor.method import Method, require
from fedtailor.registry import register


@register("method", "FedBN")
@dataclass(frozen=True, repr=False)
class FedBN(Method):
    """FedAvg with private normalisation layers."""

    paper = "Li et al., ICLR 2021"
    citation = """@inproceedings{li2021fedbn,
  title     = {{FedBN}: Federated Learning on Non-{IID} Features via Local Batch Normalization},
  author    = {Li, Xiaoxiao and Jiang, Meirui and Zhang, Xiaofei and Kamp, Michael and Dou, Qi},
  booktitle = {International Conference on Learning Representations (ICLR)},
  year      = {2021}
}"""

    def personal(self, arch: Arch) -> frozenset[str]:
        require(
            bool(arch.norm), "FedBN",
            "the model has no normalisation layer, so this would be FedAvg under another name; "
            "choose one that has, such as lenet_bn",
        )  # fmt: skip
        return arch.norm
