"""FedAvg: clients train the server's model on their own data; the server averages the results.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.

    server sends w to the cohort                      Alg. 1
    client i: w_i <- w, E epochs of SGD on f_i        ClientUpdate
    w <- sum_i n_i / n * w_i                          over the cohort

Deviations: none. Every hook is the default of `Method`, which is why this class is empty.

    >>> federate(RunSpec.of(federation, FedAvg()), federation)
"""

from __future__ import annotations

from dataclasses import dataclass

from fedtailor.method import Method
from fedtailor.registry import register


@register("method", "FedAvg")
@dataclass(frozen=True, repr=False)
class FedAvg(Method):
    """One global model: the size-weighted mean of the clients' models."""

    paper = "McMahan et al., AISTATS 2017"
    citation = """@inproceedings{mcmahan2017communication,
  title     = {Communication-Efficient Learning of Deep Networks from Decentralized Data},
  author    = {McMahan, Brendan and Moore, Eider and Ramage, Daniel and Hampson, Seth and Ag{\\"u}era y Arcas, Blaise},
  booktitle = {International Conference on Artificial Intelligence and Statistics (AISTATS)},
  year      = {2017}
}"""
