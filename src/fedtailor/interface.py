"""What `import fedtailor` offers."""

from __future__ import annotations

from fedtailor import methods
from fedtailor.arch import Arch
from fedtailor.contract import check_method
from fedtailor.data import load
from fedtailor.data.federation import Dataset, Federation
from fedtailor.driver import Callback, Diverged, Driver
from fedtailor.local import SGD, Adam, Batch, Client, Descent, descend
from fedtailor.method import Fed, Fitted, Method, Payload, Received, Wrapper
from fedtailor.methods import *  # noqa: F403
from fedtailor.registry import WrongInput, register
from fedtailor.rounds import Run, federate, resume
from fedtailor.spec import RunSpec

__all__ = [
    "SGD", "Adam", "Arch", "Batch", "Callback", "Client", "Dataset", "Descent", "Diverged", "Driver", "Fed",
    "Federation", "Fitted", "Method", "Payload", "Received", "Run", "RunSpec", "Wrapper", "WrongInput", "check_method",
    "descend", "federate", "load", "register", "resume",
]  # fmt: skip
__all__ += methods.__all__
