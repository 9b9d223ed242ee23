"""Air quality: windows against a computation in plain loops, and nothing of a later part in an earlier one."""

from __future__ import annotations

import io
import math
import zipfile
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import torch

from fedtailor import load
from fedtailor.data import Dataset, air, air_beijing, air_cities
from fedtailor.data.decoding import DataNote
from fedtailor.registry import WrongInput

START = datetime(2016, 2, 27)  # of a leap year
Row = dict[str, float | str]


def measurements(hours: int = 600, seed: int = 0, first: int = 0, missing: float = 0.005) -> list[Row]:
    """One station's hours: values that wander, some of them missing for up to thirteen hours."""
    draw = np.random.default_rng(seed)
    pm = np.abs(np.cumsum(draw.normal(0, 12, hours)) + 60)
    rows: list[Row] = []
    for hour in range(hours):
        time = START + timedelta(hours=first + hour)
        rows.append({"time": f"{time:%Y-%m-%d %H:%M}", "PM2.5": round(float(pm[hour]), 1),
                     "TEMP": round(float(draw.normal(10, 5)), 1), "wd": ["N", "ESE", "NNW"][hour % 3]})  # fmt: skip
    for column in ("PM2.5", "TEMP", "wd"):
        for gap in np.flatnonzero(draw.random(hours) < missing):
            for hour in range(gap, min(hours, gap + int(draw.integers(1, 14)))):
                rows[hour][column] = ""
    return rows


def write(path: Path, stations: dict[str, list[Row]]) -> str:
    columns = ["time", "PM2.5", "TEMP", "wd"]
    lines = ["station," + ",".join(columns)]
    lines += [f"{name}," + ",".join(str(row[c]) for c in columns) for name, rows in stations.items() for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


Window = tuple[str, datetime, list[list[float]], int]


def by_hand(stations: dict[str, list[Row]], every: int) -> dict[str, list[Window]]:
    """Windows of each part as (station, first hour, values, grade), in plain loops."""
    angle = {"N": 0.0, "ESE": 112.5, "NNW": 337.5}

    def value(row: Row, column: str) -> float:
        written = row[column]
        return math.nan if written == "" else angle[str(written)] if column == "wd" else float(written)

    names = sorted(stations)
    hours = [datetime.fromisoformat(str(row["time"])) for rows in stations.values() for row in rows]
    begin, span = min(hours), int((max(hours) - min(hours)) / timedelta(hours=1)) + 1
    ends = [begin + timedelta(hours=h) for h in (0, round(0.7 * span), round(0.8 * span), span)]
    table = {}
    for number, name in enumerate(names):
        for row in stations[name]:
            time = datetime.fromisoformat(str(row["time"]))
            table[name, time] = [*(value(row, c) for c in ("PM2.5", "TEMP", "wd")), float(number), float(time.hour)]
    known = [values for (_, time), values in table.items() if time < ends[1]]
    columns = [[row[c] for row in known if not math.isnan(row[c])] for c in range(5)]
    mean = [sum(c) / len(c) for c in columns]
    spread = [math.sqrt(sum((v - m) ** 2 for v in c) / len(c)) or 1.0 for c, m in zip(columns, mean, strict=True)]

    def carried(name: str, time: datetime, column: int) -> float:
        for back in range(7):
            values = table.get((name, time - timedelta(hours=back)))
            if values is not None and not math.isnan(values[column]):
                return values[column]
        return math.nan

    found: dict[str, list[Window]] = {"train": [], "validation": [], "test": []}
    for name in names:
        own = [time for station, time in table if station == name]
        for part, first, end in zip(found, ends, ends[1:], strict=False):
            time = max(first, min(own))
            while time + timedelta(hours=48) < end:
                window = [[carried(name, time + timedelta(hours=h), c) for c in range(5)] for h in range(48)]
                last = table.get((name, time + timedelta(hours=48)), [math.nan])[0]
                if not any(math.isnan(v) for row in window for v in row) and not math.isnan(last):
                    grade = sum(last > limit for limit in (35, 75, 115, 150))
                    scaled = [[(v - m) / s for v, m, s in zip(row, mean, spread, strict=True)] for row in window]
                    found[part].append((name, time, scaled, grade))
                time += timedelta(hours=every)
    return found


@pytest.mark.parametrize("every", [1, 5])
def test_windows_are_those_of_plain_loops(every: int, tmp_path: Path) -> None:
    stations = {"west": measurements(), "east": measurements(520, 1, first=60), "far": measurements(600, 2, missing=0)}
    found = air(write(tmp_path / "air.csv", stations), every=every)
    expected = by_hand(stations, every)
    assert {part: len(some) for part, some in expected.items()} == {
        part: int((found.part == number).sum()) for number, part in enumerate(expected)  # type: ignore[union-attr]
    }
    assert len(expected["train"]) < (372 + 312 + 372 - 50) / every, "so many would it be without gaps"
    assert found.owner is not None and found.part is not None
    for number, part in enumerate(expected):
        for station, name in enumerate(sorted(stations)):
            rows = (found.part == number) & (found.owner == station)
            mine = [one for one in expected[part] if one[0] == name]
            assert found.y[rows].tolist() == [grade for *_, grade in mine]
            values = np.array([values for _, _, values, _ in mine]).reshape(-1, 48, 5)
            np.testing.assert_allclose(found.x[rows].numpy(), values, rtol=1e-4, atol=1e-4)
    assert found.x.shape[1:] == (48, 5) and found.owner_names == ("east", "far", "west")


def test_no_later_hour_changes_an_earlier_part(tmp_path: Path) -> None:
    """Everything from 70 % of the hours on is turned upside down: windows and scales of the training part stay."""
    stations = {"a": measurements(400, 3), "b": measurements(400, 4)}
    before = air(write(tmp_path / "air.csv", stations), every=1)
    for rows in stations.values():
        for row in rows[280:]:
            row["PM2.5"], row["TEMP"] = 999, -50
    after = air(write(tmp_path / "air.csv", stations), every=1)
    same = [torch.cat([one.x[one.part == 0].flatten(), one.y[one.part == 0]]) for one in (before, after)]
    assert torch.equal(*same)
    assert not torch.equal(before.x[before.part == 2][:5], after.x[after.part == 2][:5])


def test_hours_of_different_parts_never_meet(tmp_path: Path) -> None:
    """Temperature counts the hours, so windows can be told to the hour they use; the one that is told is one more."""
    rows = measurements(500, 5, missing=0)
    for hour, row in enumerate(rows):
        row["TEMP"] = hour
    found = air(write(tmp_path / "air.csv", {"a": rows}), every=1)
    scale = found.x[0, 1, 1] - found.x[0, 0, 1]
    hours = ((found.x[:, :, 1] - found.x[0, 0, 1]) / scale).round().long()
    used = [set(hours[found.part == part].flatten().tolist()) | set((hours[found.part == part][:, -1] + 1).tolist())
            for part in range(3)]  # fmt: skip
    assert used[0] == set(range(350)) and used[1] == set(range(350, 400)) and used[2] == set(range(400, 500))


def test_the_federation_has_a_site_for_each_station_and_the_given_parts(tmp_path: Path) -> None:
    path = write(tmp_path / "air.csv", {"a": measurements(600, 3, missing=0), "b": measurements(600, 4, missing=0)})
    made = load(f"air({path!r}, every=2)")
    assert made.clients == ("a", "b") and made.task == "multilabel_margin" and made.model == "gru"
    assert all(len(rows) for lists in (made.train, made.validation, made.test) for rows in lists)
    assert made.classes[0] == "excellent" and len(made.classes) == 5


def test_the_grades_end_where_chinas_do(tmp_path: Path) -> None:
    rows = measurements(400, 6, missing=0)
    limits = [35, 35.1, 75, 75.1, 115, 115.1, 150, 150.1, 0, 500]
    for hour, row in enumerate(rows):
        row["PM2.5"] = limits[hour % 10]
    found = air(write(tmp_path / "air.csv", {"a": rows}), every=1)
    grades = [0, 1, 1, 2, 2, 3, 3, 4, 0, 4]
    assert found.y[:20].tolist() == [grades[(48 + hour) % 10] for hour in range(20)]


def test_a_station_with_nothing_to_train_on_is_left_out_and_named(tmp_path: Path) -> None:
    late = measurements(100, 7, first=300, missing=0)
    with pytest.warns(DataNote, match="air: late is left out, for it has no window to train on"):
        found = air(write(tmp_path / "air.csv", {"a": measurements(400, 3), "late": late}))
    assert found.owner_names == ("a",)


@pytest.mark.parametrize(("change", "words"), [
    (("2016-02-27 02:00", "yesterday"), r"air.csv, line 4: 'yesterday' is no time such as 2017-01-31 08:00"),
    (("2016-02-27 02:00", "2016-02-27 02:30"), r"air.csv, line 4: '2016-02-27 02:30' is no full hour"),
    (("2016-02-27 02:00", "2016-02-27 01:00"), r"air.csv: a has two rows for the hour 2016-02-27T01"),
    ((",ESE", ",upwards"), r"air.csv, line 3: 'upwards' under 'wd' is no number"),
    (("PM2.5", "PM25"), r"air.csv has no column 'PM2.5' to tell; it has station, time, PM25"),
    (("station", "post"), r"air.csv has no column 'station'"),
])  # fmt: skip
def test_wrong_tables_are_named(change: tuple[str, str], words: str, tmp_path: Path) -> None:
    path = write(tmp_path / "air.csv", {"a": measurements(100, 3, missing=0)})
    Path(path).write_text(Path(path).read_text().replace(*change))
    with pytest.raises(WrongInput, match=words):
        air(path)


def test_other_wrong_input(tmp_path: Path) -> None:
    path = write(tmp_path / "air.csv", {"a": measurements(60, 3, missing=0)})
    with pytest.raises(WrongInput, match="every=0 is not possible"):
        air(path, every=0)
    with (
        pytest.warns(DataNote, match="a is left out"),
        pytest.raises(WrongInput, match="no station has 49 hours one after the other"),
    ):
        air(path)


# ---------- the published containers ----------

PRSA = ("No", "year", "month", "day", "hour", "PM2.5", "PM10", "SO2", "NO2", "CO", "O3", "TEMP", "PRES", "DEWP", "RAIN",
        "wd", "WSPM", "station")  # fmt: skip


def prsa(name: str, seed: int, hours: int = 300) -> str:
    draw = np.random.default_rng(seed)
    lines = ['"' + '","'.join(PRSA) + '"']
    for hour in range(hours):
        time = START + timedelta(hours=hour)
        values = draw.uniform(1, 200, 6).round(1).tolist() + draw.normal(10, 3, 4).round(1).tolist()
        cells = [hour + 1, time.year, time.month, time.day, time.hour, *values, "NNW", 1.5, name]
        lines.append(",".join(f'"{cell}"' if isinstance(cell, str) else str(cell) for cell in cells))
    lines[100] = lines[100].replace('"NNW"', "NA")
    return "\n".join(lines) + "\n"


def test_ucis_archive_is_a_zip_in_a_zip_with_a_table_for_each_station(home: Path) -> None:
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        for number, name in enumerate(("Wanliu", "Aotizhongxin")):
            archive.writestr(f"PRSA_Data_20130301-20170228/PRSA_Data_{name}_20130301-20170228.csv", prsa(name, number))
    path = home / "air_beijing" / "beijing+multi+site+air+quality+data.zip"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as outer:
        outer.writestr("PRSA2017_Data_20130301-20170228.zip", inner.getvalue())
        outer.writestr("data.csv", "other")
    found = air_beijing(every=3)
    assert found.x.shape[1:] == (48, 13), "FedHAM's thirteen values"
    assert found.owner_names == ("Aotizhongxin", "Wanliu")
    assert found.part is not None and found.part.bincount().tolist() == [2 * 54, 0, 2 * 4]
    told = [float(line.split(",")[5]) for line in prsa("Aotizhongxin", 1).splitlines()[1:]]
    assert found.y[0] == sum(told[48] > limit for limit in (35, 75, 115, 150))
    (home / "air_beijing" / path.name).write_bytes(b"PK")
    with pytest.raises(WrongInput, match="cannot be unpacked"):
        air_beijing()


def test_the_five_cities_have_a_table_each_and_sentinels_for_what_is_missing(home: Path) -> None:
    header = "No,year,month,day,hour,season,PM_Dongsi,PM_US Post,DEWP,HUMI,PRES,TEMP,cbwd,Iws,precipitation,Iprec"
    folder = home / "air_cities"
    folder.mkdir()
    for city, calm in (("Beijing", "cv"), ("Shenyang", "NW")):
        lines = [header]
        for hour in range(300):
            time = START + timedelta(hours=hour)
            gone = hour in range(20, 40)  # longer than what is carried on
            humidity, rain = ("-9999", "999990") if gone else ("50", "0.1")
            post = "NA" if city == "Shenyang" else 40 + hour % 7
            when = f"{time.year},{time.month},{time.day},{time.hour}"
            lines.append(f"{hour},{when},1,{30 + hour % 90},{post},-5,{humidity},"
                         f"1020,{hour % 24},{calm if hour % 2 else 'NE'},1.5,{rain},{rain}")  # fmt: skip
        (folder / f"{city}PM20100101_20151231.csv").write_text("\n".join(lines) + "\n")
    found = air_cities(every=1)
    assert found.owner_names == ("Beijing Dongsi", "Beijing US Post", "Shenyang Dongsi")
    assert found.domain_names == ("Beijing", "Shenyang") and found.x.shape[1:] == (48, 11)
    assert found.part is not None and found.owner is not None
    # hours 20 to 25 are carried on, 26 to 39 are not: windows begin at 40 at the earliest, the last tells hour 209
    first = found.part[found.owner == 0]
    assert int((first == 0).sum()) == 210 - 48 - 40
    assert float(found.x.abs().max()) < 30, "no sentinel went in"
    made = load(found)
    assert made.groups == (0, 0, 1) and made.group_names == ("Beijing", "Shenyang")


# ---------- the compact copies ----------


def test_beijing_as_it_is(data_folder: Path) -> None:
    pytest.importorskip("pyarrow")
    if not (data_folder / "air_beijing_prsa.parquet").is_file():
        pytest.skip("needs the Beijing stations")
    found: Dataset = air_beijing(every=24)
    assert len(found.owner_names) == 12 and found.x.shape[1:] == (48, 13)
    assert found.part is not None
    shares = found.part.bincount() / len(found.part)
    assert shares.tolist() == pytest.approx([0.7, 0.1, 0.2], abs=0.02)
    assert float(found.x[found.part == 0].double().mean((0, 1)).abs().max()) < 0.05
    # heavy haze is rare, and most hours are like the one before
    assert 0.05 < float((found.y == 4).double().mean()) < 0.25
    level = found.x[:, -1, 0]
    means = [float(level[found.y == grade].mean()) for grade in range(5)]
    assert means == sorted(means)


def test_the_five_cities_as_they_are(data_folder: Path) -> None:
    pytest.importorskip("pyarrow")
    if not (data_folder / "air_five_cities.parquet").is_file():
        pytest.skip("needs the five cities")
    found = air_cities(every=24)
    assert found.domain_names == ("Beijing", "Chengdu", "Guangzhou", "Shanghai", "Shenyang")
    assert len(found.owner_names) >= 15
    # dew point, humidity, pressure, temperature and wind: a -9999 among them would stand far off
    assert float(found.x[:, :, 1:6].abs().max()) < 6
    assert float(found.x[:, :, 7:9].abs().max()) < 200, "precipitation has storms, and no 999990"
