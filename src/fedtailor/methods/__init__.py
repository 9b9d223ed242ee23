"""The methods, one paper per file. Importing this package registers them all."""

from __future__ import annotations

from fedtailor.methods.alone import Local
from fedtailor.methods.apple import APPLE
from fedtailor.methods.centralised import Centralised
from fedtailor.methods.ditto import Ditto
from fedtailor.methods.fedala import AdaptiveLocalAggregation, FedALA
from fedtailor.methods.fedamp import FedAMP, HeurFedAMP
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.fedbabu import FedBABU
from fedtailor.methods.fedbn import FedBN
from fedtailor.methods.fedfomo import FedFomo
from fedtailor.methods.fedham import FedHAM
from fedtailor.methods.fedhealth import FedHealth
from fedtailor.methods.fedper import FedPer
from fedtailor.methods.fedphp import FedPHP
from fedtailor.methods.fedrep import FedRep
from fedtailor.methods.fedsgd import FedSGD
from fedtailor.methods.finetuned import FTL, FedAvgC, FedAvgFT, FedProxC, TunedStart
from fedtailor.methods.local_attention import LocalAttention, pFedLA
from fedtailor.methods.mcsa import ComponentAttention, FedMCSA, FedMCSAWithoutAttention
from fedtailor.methods.partialfed import PartialFedAdaptive, PartialFedFix
from fedtailor.methods.perfedavg import PerFedAvg
from fedtailor.methods.pfedme import pFedMe
from fedtailor.methods.proximal import FedProx, Proximal
from fedtailor.methods.scaffold import SCAFFOLD

__all__ = [
    "APPLE",
    "FTL",
    "SCAFFOLD",
    "AdaptiveLocalAggregation",
    "Centralised",
    "ComponentAttention",
    "Ditto",
    "FedALA",
    "FedAMP",
    "FedAvg",
    "FedAvgC",
    "FedAvgFT",
    "FedBABU",
    "FedBN",
    "FedFomo",
    "FedHAM",
    "FedHealth",
    "FedMCSA",
    "FedMCSAWithoutAttention",
    "FedPHP",
    "FedPer",
    "FedProx",
    "FedProxC",
    "FedRep",
    "FedSGD",
    "HeurFedAMP",
    "Local",
    "LocalAttention",
    "PartialFedAdaptive",
    "PartialFedFix",
    "PerFedAvg",
    "Proximal",
    "TunedStart",
    "pFedLA",
    "pFedMe",
]
