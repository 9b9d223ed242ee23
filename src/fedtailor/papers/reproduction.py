"""The page on what was reproduced, made of kept records and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedtailor.papers import page
from fedtailor.papers.kept import Kept, read_kept
from fedtailor.registry import WrongInput
from fedtailor.report import words

Pictures = Mapping[str, tuple[str, str]]  # title and caption of each figure, by its place as seen from the page

HEAD = """# Reproduction

What the five papers print, and what their tables give here. Every number of ours on this page is read from the records
in `results/`, which hold rows and settings of each run, and every figure is drawn from them; both are written by

```sh
fedtailor reproduce report results --out docs/explanation/reproduction.md
```

Read it so:

- **Scale.** `full` is the paper's own setting. Where two cores cannot do that, a table is run at `reduced`, and every
  difference is noted beside the cell. Numbers of another setting are shown beside the paper's and *not compared*: what
  can be judged there is the **claim** of the table, that is which method is better than which.
- **Claims.** Each is put to the test comparison by comparison. Two methods are level where they differ by no more than
  the margin of the table (0.3 points), or by two standard errors where there are several seeds. Claims of our own ask
  what the papers mostly do not: whether taking part is better than training alone.
- **Best round.** Some papers report the best round on the test rows. That flatters every method; it is done here only
  where the paper does it, and said.
- A claim that does not hold is left standing as such. Nothing was tuned on test rows to make one hold.
"""


def write(root: Path, out: Path) -> list[Kept]:
    """Write the page; gives what it is made of."""
    found = list(read_kept(root))
    if not found:
        raise WrongInput(f"{root} holds no records; run a table with `fedtailor reproduce ... --keep {root}`")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        drawn = [draw(kept, out.with_suffix("")) for kept in found]
        out.write_text(text(found, drawn), encoding="utf-8")
    except OSError as error:
        raise WrongInput(f"cannot write {out}: {error.strerror}; choose another place with --out") from None
    return found


def draw(kept: Kept, folder: Path) -> Pictures:
    """Write the figures of a table into the folder beside the page, which has its name."""
    if not kept.records:
        return {}
    from fedtailor.papers.figures import write_small

    written = write_small(kept.found, folder)
    return {f"{folder.name}/{path.name}": (picture.title, picture.caption) for path, picture in written.items()}


def text(found: Sequence[Kept], drawn: Sequence[Pictures]) -> str:
    sections = (section(kept, pictures) for kept, pictures in zip(found, drawn, strict=True))
    return "\n".join([HEAD, summary(found), *sections]).rstrip() + "\n"


def summary(found: Sequence[Kept]) -> str:
    """Each table in a line: how much of it was run, and what became of its claims."""
    rows = []
    for kept in found:
        outcome = kept.found
        judged = [judged for judged in outcome.claims if judged.compared]
        holds = [sum(j.count("holds") == len(j.compared) for j in judged), len(judged)]
        claims = f"{holds[0]} of {holds[1]}" if judged else ""
        if outcome.counted:
            claims = f"{sum(c.verdict == 'exact' for c in outcome.counted)} of {len(outcome.counted)} exact"
        met = [line for line in outcome.lines if line.verdict in ("met", "above", "below")]
        judged_numbers = f"{sum(line.verdict == 'met' for line in met)} of {len(met)}" if met else ""
        cells = f"{outcome.done} of {outcome.of}"
        rows.append((f"`{outcome.table.id}`", outcome.scale, cells, judged_numbers, claims))
    head = ("Table", "Scale", "Cells run", "Numbers met", "Claims that hold in full")
    return "\n".join(["## At a glance", "", *page.markdown_table(head, rows), ""])


def section(kept: Kept, pictures: Pictures) -> str:
    """One table: its numbers, claims and figures, what is to be said of it, and the command that makes it again."""
    found = kept.found
    table = found.table
    seeds = f" --seeds {len(found.seeds)}" if len(found.seeds) > 1 else ""
    scale = "" if found.counted else f" --scale {found.scale}{seeds}"
    parts = [page.as_markdown(found, level=2).rstrip(), ""]
    for place, (title, caption) in pictures.items():
        parts += [f"![{title}]({place})", "", f"*{title}.* {caption}", ""]
    if kept.remarks:
        parts += [kept.remarks, ""]
    if kept.stale:
        parts += [f"Records that belong to no cell of the table as it is now: {words.listing(list(kept.stale))}.", ""]
    parts += [spent(kept), "", "```sh", f"fedtailor reproduce {table.id}{scale} --keep results", "```", ""]
    return "\n".join([*parts, f"*{table.source.citation}*", ""])


def spent(kept: Kept) -> str:
    """With what, and for how long."""
    versions = {f"fedtailor {r.versions['fedtailor']}, torch {r.versions['torch']}" for r in kept.records}
    if not versions:
        return "Counted in seconds, by:"
    seconds = sum(record.seconds[-1] for record in kept.records)
    return f"{len(kept.records)} runs, {words.duration(seconds)} of training, with {'; '.join(sorted(versions))}:"
