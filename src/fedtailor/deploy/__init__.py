"""Real federation: a server and sites that talk over a network, with the simulator's own round loop.

`wire` and `envelope` are messages, `store` is what a site keeps, `keys`, `settings` and `folder` are the server's
folder, `coordinator` and `member` are the two sides of the talk. Only the modules called `flower_...` import Flower.
"""

from __future__ import annotations

import os

# Flower reads these when it is imported, so they are set before anything here can import it.
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
# Bytes of a piece of a letter: it is in memory some ten times while a request carries it. Flower's own are of 5 MB.
os.environ["FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE"] = str(2 << 20)
