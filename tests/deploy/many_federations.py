"""A site under test that takes part in one federation after the other, so that torch is imported once.

python many_federations.py SITE STATE BUNDLE...
"""

from __future__ import annotations

import sys
from pathlib import Path

from fedtailor.deploy.folder import Bundle
from fedtailor.deploy.join import join, own_rows
from fedtailor.registry import load_plugin

site, state, *bundles = sys.argv[1:]
import fedtailor.methods  # noqa: E402, F401 - so that no plugin takes its names

load_plugin(Path(__file__).with_name("plugin_paused.py"))
for path in bundles:
    bundle = Bundle.read(Path(path))
    own = own_rows("digits", site, bundle)
    join(bundle, own, Path(state), explain=False, threads=1, device="cpu", say=lambda text: print(text, flush=True))
