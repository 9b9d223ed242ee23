"""Hourly air quality: the grade of the next hour's PM2.5 from the past 48 hours, at one site for each station.

Windows of different parts have no hour in common: time is cut at 70 % and 80 % of all hours, on the same dates at all
stations, and a window belongs to a part only where its 48 hours and the one to be told all lie in it. Values are scaled
by mean and deviation of the hours to train on. What is missing is carried on from the hour before, for six hours at
most: never from later. A window in which something is still missing, or whose last hour was not measured, is left out.
"""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from fedtailor.data.decoding import DataNote
from fedtailor.data.download import ORIGINS, Origin, Remote, originate, place
from fedtailor.data.federation import Dataset
from fedtailor.data.files import first_of, home, numbered
from fedtailor.data.tables import Sheet, read_csv, read_parquet, read_sheet
from fedtailor.registry import WrongInput, brief, register

HOURS = 48  # of a window
CARRIED = 6  # hours for which a missing value is that of the hour before
CUTS = (0.7, 0.8)  # of all hours: where validation and test begin
GRADES = (35, 75, 115, 150)  # µg/m3, upper ends of China's classes (HJ 633-2012); the fifth holds its two worst
NAMES = ("excellent", "good", "lightly polluted", "moderately polluted", "heavily polluted")
ABSENT = (-9999, 99_999)  # from here on outwards a value stands for none
WIND = ("N", "NNE", "NE", "ENE", "E", "ESE", "SE", "SSE", "S", "SSW", "SW", "WSW", "W", "WNW", "NW", "NNW")
DEGREES = {word: 22.5 * number for number, word in enumerate(WIND)} | {"CV": -90.0, "CALM": -90.0}  # calm: off the rose

Numbers = NDArray[np.float64]

# size and checksum: recorded alike by several who fetched it
originate("air_beijing", Origin(
    "CC BY 4.0 (Chen, 2017, Beijing Multi-Site Air Quality, UCI)",
    (Remote("beijing+multi+site+air+quality+data.zip",
            "https://archive.ics.uci.edu/static/public/501/beijing+multi+site+air+quality+data.zip", 8_192_212,
            "sha256:b04da438b2f331ac0ffd45aebdfec0d20d2367feb5f6948c4b1f7ce1191e33c4"),),
    compact="air_beijing_prsa.parquet",
))  # fmt: skip
originate("air_cities", Origin(
    "CC BY 4.0 (Liang et al., 2016, PM2.5 Data of Five Chinese Cities, UCI)",
    by_hand="the set is on https://archive.ics.uci.edu/dataset/394; unpack its five CSV files "
    "(BeijingPM20100101_20151231.csv and so on) in {folder}",
    compact="air_five_cities.parquet",
))  # fmt: skip


@dataclass(frozen=True)
class Station:
    """What one station measured, hour by hour without a gap; NaN where it did not."""

    name: str
    city: str
    first: int  # hours since 1970
    columns: Mapping[str, Numbers]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def table(self, columns: Sequence[str], number: int) -> Numbers:
        """[hours, values]: what was measured, the station's number and the hour of the day."""
        hour = (self.first + np.arange(len(self))) % 24.0
        return np.stack([*(self.columns[name] for name in columns), np.full(len(self), float(number)), hour], 1)


def station(sheet: Sheet, name: str, city: str, rows: NDArray[np.int64], hours: NDArray[np.int64],
            columns: Mapping[str, Numbers]) -> Station:  # fmt: skip
    """Its rows of a table, put in their places in time."""
    times = hours[rows]
    order, counts = np.unique(times, return_counts=True)
    if counts.max() > 1:
        twice = np.datetime64(int(order[counts.argmax()]), "h")
        raise WrongInput(f"{sheet.path}: {name} has two rows for the hour {twice}; keep one of them")
    first, last = int(order[0]), int(order[-1])
    placed = {}
    for column, values in columns.items():
        grid = np.full(last - first + 1, np.nan)
        grid[times - first] = values[rows]
        grid[(grid <= ABSENT[0]) | (grid >= ABSENT[1])] = np.nan
        placed[column] = grid
    return Station(name, city, first, placed)


def hours_of(sheet: Sheet, time: str) -> NDArray[np.int64]:
    """The hour of each row since 1970, from a column of times or from year, month, day and hour."""
    if time not in sheet.columns and {"year", "month", "day", "hour"} <= sheet.columns.keys():
        year, month, day, hour = (sheet.numbers(name).astype(np.int64) for name in ("year", "month", "day", "hour"))
        months = (year - 1970).astype("datetime64[Y]").astype("datetime64[M]") + (month - 1)
        found: NDArray[np.int64] = (months.astype("datetime64[D]") + (day - 1)).astype("datetime64[h]").astype(np.int64)
        return found + hour
    values = sheet.column(time)
    if isinstance(values, np.ndarray) and values.dtype.kind == "M":
        return values.astype("datetime64[h]").astype(np.int64)
    hours = np.empty(len(sheet), np.int64)
    for row, (line, value) in enumerate(zip(sheet.lines, values, strict=True)):
        try:
            exact = np.datetime64(str(value).strip().replace("/", "-").replace(" ", "T"), "s")
        except ValueError:
            raise WrongInput(f"{sheet.path}, line {line}: {brief(value)} is no time such as 2017-01-31 08:00") from None
        hours[row] = int(exact.astype("datetime64[h]").astype(np.int64))
        if exact != exact.astype("datetime64[h]"):
            raise WrongInput(f"{sheet.path}, line {line}: {brief(value)} is no full hour; give one row an hour")
    return hours


def measured(sheet: Sheet, name: str) -> Numbers:
    """A column of numbers, or of wind directions, which become degrees."""
    values = sheet.column(name)
    if isinstance(values, np.ndarray) or not any(str(value).strip().upper() in DEGREES for value in set(values)):
        return sheet.numbers(name)
    known = {value: DEGREES.get(str(value).strip().upper()) for value in set(values)}
    found = (known[value] for value in values)
    return np.array([sheet.number(name, line, value) if angle is None else angle
                     for angle, line, value in zip(found, sheet.lines, values, strict=True)])  # fmt: skip


def by_name(words: Sequence[str]) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """The rows of each name."""
    numbers, names = numbered(words)
    for number, name in enumerate(names):
        yield name, np.flatnonzero(numbers == number)


# ---------- windows ----------


def carried(values: Numbers) -> Numbers:
    """Missing values as in the hour before, for some hours."""
    filled = values.copy()
    for _ in range(CARRIED):
        gaps = np.flatnonzero(np.isnan(filled[1:]).any(1)) + 1
        previous = filled[gaps - 1]
        filled[gaps] = np.where(np.isnan(values[gaps]) & np.isnan(filled[gaps]), previous, filled[gaps])
    return filled


def starts(filled: Numbers, target: Numbers, first: int, end: int, every: int) -> NDArray[np.int64]:
    """Where windows begin whose hours, and the one after, lie from `first` to before `end` and are all known."""
    unknown = np.concatenate([[0], np.isnan(filled).any(1).cumsum()])
    begin = np.arange(max(0, first), min(end, len(filled)) - HOURS, every)
    whole = unknown[begin + HOURS] == unknown[begin]
    found: NDArray[np.int64] = begin[whole & ~np.isnan(target[begin + HOURS])]
    return found


def windows(
    name: str, stations: Sequence[Station], target: str, every: int, origin: str, about: str, shown: bool = True
) -> Dataset:
    """The windows of all stations, each with the part that it belongs to; `shown`: the target's past is a value too."""
    if every < 1:
        raise WrongInput(f"{name}: every={every} is not possible; give the hours from a window to the next, 1 or more")
    begin = min(one.first for one in stations)
    span = max(one.first + len(one) for one in stations) - begin
    ends = [begin, *(begin + round(cut * span) for cut in CUTS), begin + span]
    columns = [c for c in stations[0].columns if any(not np.isnan(one.columns[c]).all() for one in stations)
               and (shown or c != target)]  # fmt: skip
    tables = [one.table(columns, number) for number, one in enumerate(stations)]
    known = np.concatenate([t[: max(0, ends[1] - one.first)] for t, one in zip(tables, stations, strict=True)])
    if np.isnan(known).all(0).any():
        lacking = columns[int(np.isnan(known).all(0).argmax())]
        raise WrongInput(f"{name}: {lacking} was never measured in the first {CUTS[0]:.0%} of all hours; leave it out")
    mean, deviation = np.nanmean(known, 0), np.nanstd(known, 0)
    x, y, owner, part, kept = [], [], [], [], list[Station]()
    for one, values in zip(stations, tables, strict=True):
        filled = carried(values)
        wanted = [starts(filled, one.columns[target], a - one.first, b - one.first, every)
                  for a, b in pairwise(ends)]  # fmt: skip
        if not len(wanted[0]):
            warnings.warn(f"{name}: {one.name} is left out, for it has no window to train on", DataNote, stacklevel=2)
            continue
        scaled = ((filled - mean) / np.where(deviation > 0, deviation, 1)).astype(np.float32)
        chosen = np.concatenate(wanted)
        x.append(sliding_window_view(scaled, HOURS, 0)[chosen].transpose(0, 2, 1))
        y.append(np.searchsorted(GRADES, one.columns[target][chosen + HOURS]))
        owner.append(np.full(len(chosen), len(kept)))
        part.append(np.repeat([0, 1, 2], [len(some) for some in wanted]))
        kept.append(one)
    if not kept:
        raise WrongInput(f"{name}: no station has {HOURS + 1} hours one after the other with everything measured")
    cities = list(dict.fromkeys(one.city for one in kept))
    owners = torch.from_numpy(np.concatenate(owner))
    return Dataset(
        name=name,
        x=torch.from_numpy(np.ascontiguousarray(np.concatenate(x))),
        y=torch.from_numpy(np.concatenate(y)),
        classes=NAMES,
        task="multilabel_margin",
        domain=torch.tensor([cities.index(one.city) for one in kept])[owners],
        domain_names=tuple(cities),
        owner=owners,
        owner_names=tuple(one.name for one in kept),
        part=torch.from_numpy(np.concatenate(part)),
        model="gru",
        partition="as_given",
        settings={"rounds": 50, "epochs": 2, "batch": 32, "lr": 0.01},
        licence=ORIGINS[origin].licence if origin else "your own",
        about=f"{about}: the grade of the next hour's PM2.5 from {HOURS} hours of {len(columns) + 2} values",
    )


# ---------- sources ----------

BEIJING = ("PM2.5", "PM10", "SO2", "NO2", "CO", "O3", "TEMP", "PRES", "DEWP", "WSPM", "wd")  # beside station and hour
CITIES = ("DEWP", "HUMI", "PRES", "TEMP", "cbwd", "Iws", "precipitation", "Iprec")


def read_uci(path: Path) -> list[Sheet]:
    """The tables in UCI's archive: a zip in a zip, one CSV for each station."""
    try:
        with zipfile.ZipFile(path) as outer:
            inner = next((n for n in outer.namelist() if n.startswith("PRSA") and n.endswith(".zip")), "")
            with zipfile.ZipFile(io.BytesIO(outer.read(inner))) as archive:
                names = sorted(name for name in archive.namelist() if name.endswith(".csv"))
                return [read_csv(path / name, archive.read(name).decode()) for name in names]
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise WrongInput(f"{path} cannot be unpacked ({error}); delete it and fetch it again") from None


@register("data", "air_beijing")
def air_beijing(every: int = 6) -> Dataset:
    """Beijing: 12 stations from 2013 to 2017, 48 hours of 13 values, a window every so many hours; FedHAM's task."""
    copy = home() / ORIGINS["air_beijing"].compact
    archive = place("air_beijing", ORIGINS["air_beijing"].files[0].name)
    [path] = first_of("air_beijing", [archive], [copy])
    stations = []
    for sheet in read_uci(archive) if path == archive else [read_parquet(copy)]:
        hours, columns = hours_of(sheet, "time"), {name: measured(sheet, name) for name in BEIJING}
        for name, rows in by_name(sheet.column("station")):
            stations.append(station(sheet, name, "Beijing", rows, hours, columns))
    return windows("air_beijing", stations, "PM2.5", every, "air_beijing", "12 stations in Beijing")


@register("data", "air_cities")
def air_cities(every: int = 6) -> Dataset:
    """Five Chinese cities: up to four stations in each, 48 hours of 11 values, a window every so many hours."""
    copy, folder = home() / ORIGINS["air_cities"].compact, place("air_cities", "")
    if list(first_of("air_cities", [folder], [copy])) == [copy]:
        sheets = [(sheet := read_parquet(copy), list(by_name(sheet.column("city"))))]
    else:
        files = [sheet for path in sorted(folder.glob("*PM20*.csv")) for sheet in [read_sheet(path)]]
        sheets = [(sheet, [(sheet.path.name.partition("PM20")[0], np.arange(len(sheet)))]) for sheet in files]
    stations = []
    for sheet, cities in sheets:
        hours, weather = hours_of(sheet, "time"), {name: measured(sheet, name) for name in CITIES}
        posts = {name: sheet.numbers(name) for name in sheet.columns if name.startswith("PM_")}
        for city, rows in cities:
            for post, values in posts.items():
                if not np.isnan(values[rows]).all():
                    place_name = f"{city} {post.removeprefix('PM_').replace('_', ' ')}"
                    own = {"PM2.5": values, **weather}
                    stations.append(station(sheet, place_name, city, rows, hours, own))
    if not stations:
        raise WrongInput(f"air_cities: {folder} holds no CSV file such as BeijingPM20100101_20151231.csv")
    return windows("air_cities", stations, "PM2.5", every, "air_cities", "stations in five cities")


@register("data", "air")
def air(
    path: str, every: int = 6, target: str = "PM2.5", station_column: str = "station", time: str = "time",
    skip: tuple[str, ...] = (),
) -> Dataset:  # fmt: skip
    """Your own hourly table with the columns station, time and PM2.5; all others are learned from as well."""
    sheet = read_sheet(Path(path))
    names, hours = sheet.words(station_column), hours_of(sheet, time)
    used = [name for name in sheet.columns if name not in {station_column, time, *skip}]
    if target not in used:
        raise WrongInput(f"{path} has no column {target!r} to tell; it has {', '.join(sheet.columns)}")
    columns = {name: measured(sheet, name) for name in used}
    stations = [station(sheet, name, "all", rows, hours, columns) for name, rows in by_name(names)]
    return windows("air", stations, target, every, "", f"{len(stations)} stations")
