"""The methods, one paper per file. Importing this package registers them all."""

from __future__ import annotations

from fedtailor.methods.alone import Local
from fedtailor.methods.centralised import Centralised
from fedtailor.methods.ditto import Ditto
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.fedbn import FedBN
from fedtailor.methods.fedper import FedPer
from fedtailor.methods.fedrep import FedRep
from fedtailor.methods.fedsgd import FedSGD
from fedtailor.methods.proximal import FedProx, Proximal
from fedtailor.methods.scaffold import SCAFFOLD

__all__ = [
    "SCAFFOLD",
    "Centralised",
    "Ditto",
    "FedAvg",
    "FedBN",
    "FedPer",
    "FedProx",
    "FedRep",
    "FedSGD",
    "Local",
    "Proximal",
]
