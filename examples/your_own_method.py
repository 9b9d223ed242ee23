"""A new idea in personalised federated learning: start each round between one's own last model and the global one.

    python examples/your_own_method.py
    fedtailor compare --plugin examples/your_own_method.py --method fedavg --method "Blend(share=0.7)"
"""

from dataclasses import dataclass

import fedtailor as ft
from fedtailor import tree


@ft.register("method", "Blend")
@dataclass(frozen=True, repr=False)
class Blend(ft.Method):
    """Start each round between one's own last model and the global one."""

    share: float = 0.5  # of the global model

    def init_client(self, fed, model):
        return {"own": model}

    def start(self, client, state, got):
        return tree.lerp(state["own"], got.model, self.share), state

    def fit(self, client, state, model, got):
        trained = ft.descend(client, model).theta
        return ft.Fitted(trained, {**state, "own": trained})


if __name__ == "__main__":
    print("keeps the laws:", ", ".join(ft.check_method(Blend())))
    federation = ft.load("digits")
    for method in (ft.Local(), ft.FedAvg(), Blend()):
        print(ft.federate(ft.RunSpec.of(federation, method, rounds=20, eval_every=20), federation).table())
