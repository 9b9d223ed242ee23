"""FedPHP: a personal model inherits from round to round, and teaches the local model that it will inherit from.

Li et al., "FedPHP: Federated Personalization with Inherited Private Models", ECML PKDD 2021.

    client i: w_i <- w; E epochs on (1 - lambda_r) CE(w_i) + lambda_r R(w_i, p_i), p_i frozen
              R: MMD with Gaussian kernels between the inputs of their last layers, or distillation from p_i
              p_i <- mu_t p_i + (1 - mu_t) w_i,  mu_t = min(mu_max, mu_max c_i / max(1, rho T))
    w <- sum_i n_i / n * w_i

c_i counts the rounds that client i took part in before this one, rho is the share of clients in a cohort.
Deviations: (1) rho is sent along, as one number. (2) Counters of batch norm are not mixed: p_i has those of w_i.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedtailor import tree
from fedtailor.arch import Arch
from fedtailor.local import Batch, Client, descend
from fedtailor.method import Fed, Fitted, Method, Payload, Received, require, worth_trying
from fedtailor.registry import register
from fedtailor.tree import State, Tree

TEMPERATURE = 4.0  # of the teacher's softened outputs


@register("method", "FedPHP")
@dataclass(frozen=True, repr=False)
class FedPHP(Method):
    """A personal model that inherits from round to round and regularises the local one."""

    mu_max: float = 0.9  # $\\mu$, what the personal model keeps of itself at most
    lambda_r: float = 0.05  # $\\lambda$, weight of the regulariser against the loss
    regulariser: Literal["mmd", "kd"] = "mmd"

    grid = worth_trying(mu_max=(0.5, 0.9, 0.99), lambda_r=(0.01, 0.05, 0.1))
    point = "adapted"
    paper = "Li et al., ECML PKDD 2021"
    citation = """@inproceedings{li2021fedphp,
  title     = {{FedPHP}: Federated Personalization with Inherited Private Models},
  author    = {Li, Xin-Chun and Zhan, De-Chuan and Shao, Yunfeng and Li, Bingshuai and Song, Shaoming},
  booktitle = {European Conference on Machine Learning and Principles and Practice of Knowledge Discovery (ECML PKDD)},
  year      = {2021}
}"""

    def __post_init__(self) -> None:
        require(0 <= self.mu_max <= 1, "FedPHP", f"mu_max={self.mu_max} must be from 0 to 1")
        require(
            0 <= self.lambda_r < 1,
            "FedPHP",
            f"lambda_r={self.lambda_r} must be 0 or more and below 1, or nothing is learned",
        )
        allowed = self.regulariser in ("mmd", "kd")
        require(allowed, "FedPHP", f"regulariser={self.regulariser!r} must be 'mmd' or 'kd'")

    def notes(self, arch: Arch, n: int) -> Iterator[str]:
        if self.mu_max == 0:
            yield "FedPHP: mu_max=0 inherits nothing; the personal model is the local one, as in FTL"
        if self.lambda_r == 0:
            yield "FedPHP: lambda_r=0 takes the regulariser away; the personal model teaches nothing"
        elif self.regulariser == "mmd" and arch.trainable <= arch.head:
            yield "FedPHP: only the last layer is trained, and 'mmd' compares its inputs; 'kd' compares the outputs"

    def init_client(self, fed: Fed, model: Tree) -> State:
        return {"p": model, "count": torch.zeros(())}

    def send(self, fed: Fed, server: State, cohort: Tensor) -> Payload:
        return Payload(common={"model": server["model"], "rho": torch.tensor(len(cohort) / fed.n)})

    def fit(self, client: Client, state: State, model: Tree, got: Received) -> Fitted:
        teacher: Tree = state["p"]

        def loss(student: Tree, batch: Batch) -> tuple[Tensor, Tree]:
            own, buffers = client.loss(student, batch)
            return (1 - self.lambda_r) * own + self.lambda_r * self.pull(client, student, teacher, batch), buffers

        w = descend(client, model, loss=loss if self.lambda_r else None).theta
        count = state["count"]  # 0 at first, so that nothing of the initial values is inherited
        keep = self.mu_max * (count / (got.extra["rho"] * client.rounds).clamp(min=1)).clamp(max=1)
        p = {**tree.lerp(w, teacher, keep), **tree.pick(w, client.arch.counters)}
        return Fitted(w, {"p": p, "count": count + 1})

    def pull(self, client: Client, student: Tree, teacher: Tree, batch: Batch) -> Tensor:
        """R: what draws the student towards the frozen teacher, which answers as it does when it is tested."""
        arch = client.arch
        if self.regulariser == "mmd":
            return mmd(arch.features(student, batch.x), arch.features(teacher, batch.x, train=False).detach())
        out, target = arch.apply(student, batch.x)[0], arch.apply(teacher, batch.x, train=False)[0].detach()
        require(out.shape[1] > 1, "FedPHP", "regulariser='kd' needs classes, and the model has one output; take 'mmd'")
        return -((target / TEMPERATURE).softmax(1) * out.log_softmax(1)).sum(1).mean()

    def personalised(self, client: Client, state: State, got: Received) -> Tree:
        p: Tree = state["p"]
        return p


def mmd(a: Tensor, b: Tensor) -> Tensor:
    """Squared maximum mean discrepancy; the kernel is a sum of Gaussians, 1/4 to 4 times the mean squared distance."""
    both = torch.cat([a, b])
    lengths = both.square().sum(-1)  # |a - b|^2 = |a|^2 + |b|^2 - 2 ab, so that no difference has to be kept
    squared = (lengths[:, None] + lengths[None] - 2 * both @ both.T).clamp(min=0)
    width = squared.detach().sum() / max(1, len(both) ** 2 - len(both))
    width = torch.where(width > 0, width, 1.0)
    kernel = torch.stack([(-squared / (width * scale)).exp() for scale in (0.25, 0.5, 1.0, 2.0, 4.0)]).sum(0)
    n = len(a)
    return kernel[:n, :n].mean() + kernel[n:, n:].mean() - 2 * kernel[:n, n:].mean()
