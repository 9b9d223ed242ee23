"""A site's end of the link, made of Flower: its routes, its way to sign in, and nothing of its way to run code.

One process with the data loaded, the network made and torch imported asks for letters, works on them and answers. The
program that a Flower server may send along is neither asked for nor run.
"""

from __future__ import annotations

import contextlib
import itertools
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Error, Message, RecordDict
from flwr.app.message import ArrayRecord, remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedtailor.deploy.envelope import Sealed
from fedtailor.deploy.flower_letters import NO_LETTER, TooLarge, array, letter_of
from fedtailor.deploy.link import Lost

HEARTBEAT = 10.0  # seconds that the server counts with; it takes a site for gone after two of them
SLOWEST_POLL = 0.5  # seconds between two questions for a letter
TIMEOUT = 60.0  # seconds for a request
LONGEST_BREAK = 60.0  # seconds between two tries to connect


class FlowerPost:
    """Takes letters from one server and answers them."""

    def __init__(
        self, address: str, authority: bytes, private_key: bytes, largest: int, node: int = 0,
        remember: Callable[[int], None] = lambda node: None, say: Callable[[str], None] = lambda text: None,
    ):  # fmt: skip
        self.address, self.largest, self.remember, self.say = address, largest, remember, say
        self.key: Any = load_ssh_private_key(private_key, None)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.context.load_verify_locations(cadata=authority.decode("ascii"))
        self.node = Node(node_id=node)  # as the server called this site last

    def serve(self, answer: Callable[[Sealed], Sealed | None], sent: Callable[[], bool]) -> None:
        for pause in self.pauses():
            try:
                with self.connection() as client:
                    self.said = ""
                    if self.work(client, answer, sent):
                        return
            except (httpx.HTTPError, OSError, ValueError) as error:
                text = f"no connection to {self.address}: {explain(error)}"
                if text != self.said:
                    self.say(f"{text}; trying again for as long as it takes")
                self.said = text
            time.sleep(pause())

    def pauses(self) -> Iterator[Callable[[], float]]:
        """Breaks that grow while nothing works, and start anew after a connection."""
        self.said, tries = "", 0

        def pause() -> float:
            nonlocal tries
            tries = tries + 1 if self.said else 0
            return float(min(LONGEST_BREAK, 0.5 * 2 ** min(tries, 10)))

        return itertools.repeat(pause)

    @contextlib.contextmanager
    def connection(self) -> Iterator[Any]:
        """Signed in, with signs of life, and signed off at the end."""
        client = FleetHttpClient(
            f"https://{self.address}", interceptors=[NodeAuthHttpInterceptor(self.key, self.key.public_key())],
            verify=self.context, timeout=TIMEOUT,
        )  # fmt: skip
        client.close()
        # Flower's own follows redirections and proxies of the environment, to whatever host
        client._client = httpx.Client(verify=self.context, timeout=TIMEOUT, follow_redirects=False, trust_env=False)
        over = threading.Event()
        try:
            with contextlib.suppress(httpx.HTTPStatusError):  # it may not know it as online
                client.DeactivateNode(DeactivateNodeRequest(node_id=self.node.node_id))
            public = public_key_to_bytes(self.key.public_key())
            activated = client.ActivateNode(ActivateNodeRequest(public_key=public, heartbeat_interval=HEARTBEAT))
            self.node = Node(node_id=activated.node_id)
            self.remember(activated.node_id)
            threading.Thread(target=self.live, args=(client, over), daemon=True).start()
            yield client
        finally:
            over.set()
            with contextlib.suppress(httpx.HTTPError, RuntimeError):
                client.DeactivateNode(DeactivateNodeRequest(node_id=self.node.node_id))
            client.close()

    def live(self, client: Any, over: threading.Event) -> None:
        while not over.wait(HEARTBEAT / 2):
            with contextlib.suppress(httpx.HTTPError, RuntimeError, ValueError):
                client.SendNodeHeartbeat(SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=HEARTBEAT))

    def work(self, client: Any, answer: Callable[[Sealed], Sealed | None], sent: Callable[[], bool]) -> bool:
        """One letter after the other; whether that was the last."""
        pause = 0.0
        while True:
            got = client.PullMessages(PullMessagesRequest(node=self.node))
            if not got.messages_list:
                pause = min(SLOWEST_POLL, pause + 0.02)
                time.sleep(pause)
                continue
            pause = 0.0
            message, tree = message_from_proto(got.messages_list[0]), got.message_object_trees[0]
            letter = self.fetch(client, message.metadata.run_id, tree)
            if letter is None:
                continue  # it is gone: the server has given up waiting
            message.metadata.__dict__["_message_id"] = tree.object_id
            reply = Lost("its letter was too large") if isinstance(letter, Lost) else answer(letter)
            self.send(client, message, reply if isinstance(reply, Sealed) else None)
            if isinstance(reply, Sealed) and sent():
                return True

    def fetch(self, client: Any, run: int, tree: Any) -> Sealed | Lost | None:
        """A letter, object by object; nothing if it is no longer there."""

        def content(name: str) -> bytes | None:
            got = client.PullObject(PullObjectRequest(node=self.node, run_id=run, object_id=name))
            found: bytes = got.object_content
            return found

        try:
            return letter_of(tree, content, self.largest)
        except httpx.HTTPStatusError as error:
            if is_over(error):
                return None
            raise
        except TooLarge:
            return Lost("too large")
        except NO_LETTER:
            return None

    def send(self, client: Any, message: Any, sealed: Sealed | None) -> None:
        """Answer a message; an answer that comes too late is not taken, which is no fault."""
        with no_object_id_recompute():
            if sealed is None:
                reply = Message(Error(2, "it was not taken"), reply_to=message)
            else:
                record = ArrayRecord({"head": array(sealed.head), "body": array(sealed.body)})
                reply = Message(RecordDict({"letter": record}), reply_to=message)
            reply.metadata.__dict__["_message_id"] = reply.object_id
            objects, tree = get_all_nested_objects(reply), get_object_tree(reply)
            told = remove_content_from_message(reply) if reply.has_content() else reply
            request = PushMessagesRequest(
                node=self.node, messages_list=[message_to_proto(told)], message_object_trees=[tree],
                clientapp_runtime_list=[0.0],
            )  # fmt: skip
            try:
                response = client.PushMessages(request)
                for name in dict.fromkeys(response.objects_to_push):
                    client.PushObject(
                        PushObjectRequest(
                            node=self.node, run_id=message.metadata.run_id, session_id=response.session_id,
                            object_id=name, object_content=objects[name].deflate(),
                        )
                    )  # fmt: skip
            except httpx.HTTPStatusError as error:
                if not is_over(error):
                    raise


def is_over(error: httpx.HTTPStatusError) -> bool:
    """Whether the server says that what the letter belonged to is over; not that it does not know this site."""
    return error.response.status_code in (403, 404, 409, 412, 413)


def explain(error: Exception) -> str:
    """A reason that a reader can act on."""
    if isinstance(error, httpx.HTTPStatusError):
        code = error.response.status_code
        known = {
            401: "the server no longer knows this site's key; it was revoked or replaced: ask for a new bundle",
            403: "this is not the door of a federation",
            412: "the server lets nobody in with this key: it was revoked or replaced, or another process is signed in "
            "with it (one that died is forgotten after 20 seconds)",
        }
        return known.get(code, f"the server answers {code}")
    text = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return f"the server's certificate is not one of this federation's authority ({text[:160]})"
    return text[:200] or type(error).__name__
