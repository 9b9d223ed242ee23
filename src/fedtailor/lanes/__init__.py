"""`Lanes`: one value for each of several clients, that ordinary code takes for a single one."""

from __future__ import annotations

from fedtailor.lanes import recurrent as recurrent
from fedtailor.lanes import rules as rules
from fedtailor.lanes.layers import drawing_from
from fedtailor.lanes.value import Lanes, OneByOne, is_lanes, lanes, raw, selected

__all__ = ["Lanes", "OneByOne", "drawing_from", "is_lanes", "lanes", "raw", "selected"]
