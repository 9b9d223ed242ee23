"""This package beside other software: what `../beside_peers.py` is made of."""
