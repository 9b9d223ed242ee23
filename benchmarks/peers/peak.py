"""How fast this machine multiplies: a "round" is a number of products of two matrices of 1024 x 1024 in float32.

PyTorch has two libraries for them; the faster one is taken, as long as it is as exact.
"""

from __future__ import annotations

import time

import torch

from peers.line import Line

SIDE, PRODUCTS = 1024, 8
FLOP = 2 * SIDE**3 * PRODUCTS  # of a round
ROUTES = ("highest", "medium")  # of `torch.set_float32_matmul_precision`: on CPU, which library
AS_EXACT = 4.0  # times the error of the first route


def products(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, count: int) -> None:
    for _ in range(count):
        torch.mm(a, b, out=out)


def faster_route(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> str:
    taken: dict[str, float] = {}
    errors: dict[str, float] = {}
    truth = a.double() @ b.double()
    for route in ROUTES:
        torch.set_float32_matmul_precision(route)
        products(a, b, out, 2)
        errors[route] = float((out - truth).abs().max())
        began = time.perf_counter()
        products(a, b, out, PRODUCTS)
        taken[route] = time.perf_counter() - began
    exact = [route for route in ROUTES if errors[route] <= AS_EXACT * errors[ROUTES[0]]]
    return min(exact, key=taken.__getitem__)


def main() -> None:
    line = Line()
    random = torch.Generator().manual_seed(0)
    a, b = (torch.randn(SIDE, SIDE, generator=random) for _ in range(2))
    out = torch.empty(SIDE, SIDE)
    route = faster_route(a, b, out)
    torch.set_float32_matmul_precision(route)
    facts = {"software": f"torch {torch.__version__}", "threads": torch.get_num_threads(), "route": route}
    for _ in line.bundles():
        for _ in line.rounds(dict, lambda: facts):
            products(a, b, out, PRODUCTS)


if __name__ == "__main__":
    main()
