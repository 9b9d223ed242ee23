"""Weather and air quality that never were: stations in cities, for when the real records are not at hand.

Each city has its own usual level, its own foul wind and its own daily course; each station a place in the city and an
instrument that reads too high or too low by a factor of its own. What is told is the grade of the true PM2.5, so a
model for all has to do without knowing how each instrument reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.air import HOURS, Station, windows
from fedtailor.data.federation import Dataset
from fedtailor.registry import WrongInput, register
from fedtailor.schedule import rng

CITIES = ("plain", "coast", "valley", "hills")
LEVELS = (55.0, 35.0, 100.0, 65.0)  # µg/m3: the usual PM2.5 of each
FOUL = (200.0, 300.0, 90.0, 10.0)  # degrees: the wind that brings dust or smoke
INSTRUMENT = 0.5  # deviation of the logarithm of an instrument's factor
EVERY = 6  # hours from window to window

Numbers = NDArray[np.float64]


def wandering(draw: np.random.Generator, hours: int, memory: float, spread: float) -> Numbers:
    """A course that returns to zero, with this deviation in the long run."""
    steps = draw.normal(0, spread * (1 - memory**2) ** 0.5, hours)
    steps[0] = draw.normal(0, spread)
    course = np.empty(hours)
    value = 0.0
    for hour, step in enumerate(steps):
        value = memory * value + step
        course[hour] = value
    return course


def weather(draw: np.random.Generator, hours: int) -> dict[str, Numbers]:
    """The weather of a city, which its stations share."""
    clock = np.arange(hours) / 24
    temperature = 12 - 10 * np.cos(2 * np.pi * clock / 365) - 4 * np.cos(2 * np.pi * (clock - 0.1))
    return {
        "TEMP": temperature + wandering(draw, hours, 0.97, 4),
        "PRES": 1015 + wandering(draw, hours, 0.99, 8),
        "DEWP": 4 - 9 * np.cos(2 * np.pi * clock / 365) + wandering(draw, hours, 0.97, 4),
        "wd": (draw.uniform(0, 360) + np.degrees(wandering(draw, hours, 0.98, 2.5))) % 360,
        "WSPM": np.exp(0.5 + wandering(draw, hours, 0.95, 0.5)),
    }


def pollution(draw: np.random.Generator, city: int, sky: Mapping[str, Numbers], place: float) -> dict[str, Numbers]:
    """What is in the air at one place of a city: `truth` is its PM2.5, the others are what instruments read."""
    hours = len(sky["wd"])
    wind = np.cos(np.radians(sky["wd"] - FOUL[city]))
    rush = np.cos(2 * np.pi * (np.arange(hours) - 8 - 3 * city) / 24)
    usual = np.log(LEVELS[city]) + place + 0.6 * wind - 0.45 * (np.log(sky["WSPM"]) - 0.5) + 0.25 * rush
    own = wandering(draw, hours, 0.93, 0.35)
    level, course = float(usual[0]), np.empty(hours)
    for hour in range(hours):
        level = 0.85 * level + 0.15 * float(usual[hour])
        course[hour] = level
    truth = np.exp(course + own)

    def read(of: Numbers, noise: float) -> Numbers:
        """By an instrument that is off by a factor."""
        return of * np.exp(draw.normal(0, INSTRUMENT) + draw.normal(0, noise, hours))

    traffic = np.exp(3.4 + 0.5 * (course - np.log(LEVELS[city])) + 0.3 * rush)
    return {
        "truth": truth,
        "PM2.5": read(truth, 0.08),
        "PM10": read(1.4 * truth, 0.2),
        "SO2": read(0.2 * truth**0.8, 0.3),
        "NO2": read(traffic, 0.15),
        "CO": read(18 * truth**0.9, 0.15),
        "O3": read(np.maximum(2, 60 + 2 * sky["TEMP"] - traffic), 0.15),
    }


@register("data", "stations")
def stations(count: int = 12, windows_each: int = 300) -> Dataset:
    """Made-up weather and air quality of so many stations in four cities, 48 hours of 13 values; FedHAM's task."""
    if count < 4 or windows_each < 50:
        raise WrongInput(
            f"stations: count={count}, windows_each={windows_each} is not possible; make 4 stations or more with 50 "
            "windows or more"
        )
    hours = EVERY * windows_each + 3 * HOURS + 3  # each part loses what its first window looks back on
    skies = [weather(rng(0, "stations", "sky", city), hours) for city in range(len(CITIES))]
    made = []
    for number in range(count):
        city = number % len(CITIES)
        draw = rng(0, "stations", number)
        columns = {**pollution(draw, city, skies[city], draw.normal(0, 0.25)), **skies[city]}
        made.append(Station(f"{CITIES[city]}-{number // len(CITIES) + 1}", CITIES[city], 0, columns))
    dataset = windows("stations", made, "truth", EVERY, "", f"{count} made-up stations in four cities", shown=False)
    return replace(dataset, licence="made by formula, free of rights")
