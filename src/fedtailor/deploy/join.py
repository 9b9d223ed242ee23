"""`fedtailor join`: one process at a site, which connects, trains and keeps its state until the federation ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from fedtailor.data import again, load
from fedtailor.data.federation import Federation
from fedtailor.deploy.folder import Bundle
from fedtailor.deploy.lock import held
from fedtailor.deploy.member import Member
from fedtailor.deploy.outline import check_form, one_site

LARGEST = 4 << 30  # bytes of a letter that a site takes


def own_rows(data: str, client: str | None, bundle: Bundle) -> Federation:
    """The site's rows, checked against what the federation needs."""
    federation = again(data) if " | " in data else load(data)
    own = one_site(federation, client, bundle.site)
    check_form(own, bundle.form)
    return own


def join(
    bundle: Bundle,
    own: Federation,
    folder: Path,
    *,
    explain: bool,
    threads: int,
    device: str,
    say: Callable[[str], None],
) -> None:
    """Take part until the federation has finished."""  # fmt: skip
    from fedtailor.deploy.flower_site import FlowerPost

    with held(folder / "lock", f"the state in {folder}"):
        member = Member(
            bundle.site, bundle.seal(), bundle.key_id, own, folder, explain=explain,
            threads=threads or torch.get_num_threads(), device=device, say=say,
        )  # fmt: skip
        node = member.store.noted("node").get("node", 0)
        post = FlowerPost(
            bundle.address, bundle.authority.encode(), bundle.private_key.encode(), LARGEST, node,
            lambda number: member.store.note("node", {"node": number}), say,
        )  # fmt: skip
        post.serve(member.answer, member.sent)
