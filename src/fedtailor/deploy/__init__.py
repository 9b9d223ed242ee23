"""Real federation: a server and sites that talk over a network, with the simulator's own round loop.

`wire` and `envelope` are messages, `store` is what a site keeps, `keys` and `settings` are the server's folder,
`coordinator` and `member` are the two sides of the talk. Only `flower_server` and `flower_site` import Flower.
"""
