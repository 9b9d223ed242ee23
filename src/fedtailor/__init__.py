"""Fedtailor: personalised federated learning, from a first experiment to a real federation."""

from __future__ import annotations

__version__ = "0.1.0"

from fedtailor.arch import Arch
from fedtailor.contract import check_method
from fedtailor.data import load
from fedtailor.data.federation import Dataset, Federation
from fedtailor.driver import Callback, Diverged, Driver
from fedtailor.local import SGD, Adam, Batch, Client, Descent, descend
from fedtailor.method import Fed, Fitted, Method, Payload, Received, Wrapper
from fedtailor.methods import (
    SCAFFOLD,
    Centralised,
    Ditto,
    FedAvg,
    FedBN,
    FedPer,
    FedProx,
    FedRep,
    FedSGD,
    Local,
    Proximal,
)
from fedtailor.registry import WrongInput, register
from fedtailor.rounds import Run, federate, resume
from fedtailor.spec import RunSpec

__all__ = [
    "SCAFFOLD", "SGD", "Adam", "Arch", "Batch", "Callback", "Centralised", "Client", "Dataset", "Descent", "Ditto",
    "Diverged", "Driver", "Fed", "FedAvg", "FedBN", "FedPer", "FedProx", "FedRep", "FedSGD", "Federation", "Fitted",
    "Local", "Method", "Payload", "Proximal", "Received", "Run", "RunSpec", "Wrapper", "WrongInput", "check_method",
    "descend", "federate", "load", "register", "resume",
]  # fmt: skip
