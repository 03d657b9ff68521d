"""The smallest correct service, using only Python's standard library: it computes a year's interest of accounts.

    NATS_URL=nats://user:password@127.0.0.1:4222 python3 service.py

docs/protocol.md begins with the same as pseudocode, and lists what it omits and what each omission costs.
"""
import json
import os
import re
import socket
import time
import urllib.parse
import uuid

ENDPOINT = os.environ.get("ENDPOINT", "python-interest")
REQUESTS = f"tranche.work.{ENDPOINT}"
REPEATED = ("version", "run", "slice", "step", "attempt", "generation", "mode")  # headers copied to the reply
ELSEWHERE = re.compile(r"tranche\.(stage\.[\w-]+\.\d+\.\d+|call\.[\w-]+\.[\w-]+)\." + ENDPOINT)  # other allowed reply subjects


def interest(payload):
    """Returns an item's result, or a permanent error."""
    balance = float(payload["balance"])
    if balance < 0:
        return {"e": {"code": "overdrawn", "message": f"the balance is {balance:.2f}"}}
    return {"d": {"amount": round(balance * 0.015, 2)}}


class NATS:
    """A connection with as much of the NATS client protocol as a service needs."""

    def __init__(self, url):
        at = urllib.parse.urlsplit(url)
        self.socket = socket.create_connection((at.hostname, at.port or 4222), timeout=30)
        self.file = self.socket.makefile("rb")
        self.file.readline()  # INFO
        self.inbox = "_INBOX." + uuid.uuid4().hex
        self.early = []  # requests received while waiting for another message
        options = {"verbose": False, "headers": True, "no_responders": True, "lang": "python", "version": "1"}
        if at.username:
            options |= {"user": urllib.parse.unquote(at.username), "pass": urllib.parse.unquote(at.password or "")}
        self.send(f"CONNECT {json.dumps(options)}\r\nSUB {self.inbox}.> 1\r\nPING\r\n".encode())

    def send(self, data):
        self.socket.sendall(data)

    def publish(self, subject, data, reply="", headers=None):
        if headers is None:
            self.send(f"PUB {subject} {reply} {len(data)}\r\n".encode() + data + b"\r\n")
            return
        head = "NATS/1.0\r\n" + "".join(f"{k}: {v}\r\n" for k, v in headers.items()) + "\r\n"
        sizes = f"{len(head.encode())} {len(head.encode()) + len(data)}"
        self.send(f"HPUB {subject} {reply} {sizes}\r\n{head}".encode() + data + b"\r\n")

    def receive(self):
        """Returns subject, reply subject, status, headers and data of the next message."""
        while line := self.file.readline():
            word, *args = line.decode().split()
            if word == "PING":
                self.send(b"PONG\r\n")
            elif word == "-ERR":
                raise ConnectionError(line.decode().strip())
            elif word in ("MSG", "HMSG"):
                sizes = 1 if word == "MSG" else 2
                subject, reply = args[0], args[2] if len(args) > 2 + sizes else ""
                data = self.file.read(int(args[-1]) + 2)[:-2]
                head, data = (data[:int(args[-2])], data[int(args[-2]):]) if sizes == 2 else (b"", data)
                first, *lines = head.decode().split("\r\n")
                headers = {k.lower(): v.strip() for k, _, v in (l.partition(":") for l in lines if l)}
                return subject, reply, (first.split() + ["", ""])[1], headers, data
        raise ConnectionError("the server closed the connection")

    def ask(self, subject, data, headers=None):
        """Publishes, and returns the answer. Requests that arrive meanwhile, from an earlier pull, are kept."""
        mine = f"{self.inbox}.{uuid.uuid4().hex}"
        self.publish(subject, data, mine, headers)
        while True:
            message = self.receive()
            if message[0] == mine:
                return message
            if message[0] == REQUESTS:
                self.early.append(message)
                if subject.startswith("$JS.API.CONSUMER."):
                    return message  # it may be the answer to this pull


def answer(headers, data):
    """Returns the body of a reply, its number of slots, and how to acknowledge the request."""
    try:
        if "content-encoding" in headers:
            raise ValueError("it is compressed")
        items, slots = json.loads(data)["items"], []
        if not items or not all(isinstance(item["i"], int) and isinstance(item["k"], str) for item in items):
            raise ValueError("an item without i and k, or none")
    except (KeyError, TypeError, ValueError) as err:
        failure = {"code": "bad_request", "message": repr(err)}
        return json.dumps({"slots": [], "error": failure}), 0, b"+TERM it cannot be read"
    for item in items:
        try:
            slot = json.dumps({"i": item["i"], **interest(item.get("d"))}, allow_nan=False)
        except (KeyError, TypeError, ValueError) as err:
            slot = json.dumps({"i": item["i"], "e": {"code": "bad_payload", "message": repr(err)}})
        slots.append(slot)
    return '{"slots":[' + ",".join(slots) + "]}", len(slots), b"+ACK"


def respond(nats, headers, data):
    """Answers a request, and returns its acknowledgement."""
    if headers.get("tranche-version") != "1":
        return b'-NAK {"delay":10000000000}'  # for an instance that can read it
    to = headers.get("tranche-reply-to", f"tranche.reply.{ENDPOINT}")
    if "tranche-reply-to" in headers and not ELSEWHERE.fullmatch(to):
        return b"+TERM bad reply subject"
    body, slots, then = answer(headers, data)
    reply = {f"Tranche-{name.title()}": headers[f"tranche-{name}"] for name in REPEATED if f"tranche-{name}" in headers}
    reply |= {"Nats-Msg-Id": uuid.uuid4(), "Tranche-Final": slots, "Tranche-Service": f"{ENDPOINT}@1.0.0 python"}
    if to.startswith("tranche.call."):
        nats.publish(to, body.encode(), headers=reply)  # a caller waits; nothing is stored
        return then
    stored = json.loads(nats.ask(to, body.encode(), reply)[4] or "{}")
    if "error" not in stored and stored.get("seq"):
        return then
    return b'-NAK {"delay":2000000000}'  # the reply was not stored: redeliver the request in two seconds


def serve(nats):
    pull = json.dumps({"batch": 1, "expires": 5_000_000_000}).encode()
    while True:
        if nats.early:
            _, ack, _, headers, data = nats.early.pop(0)
            nats.publish(ack, respond(nats, headers, data))
            continue
        came, _, status, _, _ = nats.ask(f"$JS.API.CONSUMER.MSG.NEXT.TRANCHE_WORK.{ENDPOINT}", pull)
        if came != REQUESTS and status != "408":
            time.sleep(1)  # 408: no request within 5 s. Otherwise there is no consumer or stream yet


if __name__ == "__main__":
    while True:
        try:
            serve(NATS(os.environ.get("NATS_URL", "nats://127.0.0.1:4222")))
        except OSError as err:
            print(f"reconnecting in 1 s: {err}", flush=True)
            time.sleep(1)
