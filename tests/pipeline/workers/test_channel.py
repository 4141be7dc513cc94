import json

import pytest
import zmq

from pipeline.workers.channel import Inbox, Outbox
from pipeline.workers.protocol import Report

DEADLINE_S = 20.0


@pytest.fixture
def inbox():
    inbox = Inbox()
    yield inbox
    inbox.close()


@pytest.fixture
def push(inbox):
    """Sends parts to the inbox as a stranger may, who found the name of the socket."""
    context = zmq.Context()
    socket = context.socket(zmq.PUSH)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(inbox.endpoint)
    yield socket.send_multipart
    context.destroy(linger=0)


def test_reports_arrive_in_order(inbox):
    outbox = Outbox(inbox.endpoint, inbox.secret)
    reports = [Report("error", 3, 4711, {"cell": i, "text": "ü\udcff\n"}) for i in range(100)]
    for report in reports:
        outbox.send(report)
    assert [inbox.receive(DEADLINE_S).body["cell"] for _ in reports] == list(range(100))
    assert inbox.receive() is None
    outbox.close()


def test_a_message_without_the_secret_is_dropped_unread(inbox, push):
    body = json.dumps({"kind": "hello", "worker": 0, "pid": 1, "body": {}}).encode()
    push([b"0" * 64, body])
    push([b"", body])
    push([body])
    push([inbox.secret.encode(), body, b"more"])
    push([b"0" * 64, b"\x80\x04not even json"])
    push([inbox.secret.encode(), body])  # the only good one
    assert inbox.receive(DEADLINE_S) == Report("hello", 0, 1, {})
    assert inbox.receive() is None


def test_secrets_and_names_are_new_each_time():
    inboxes = [Inbox() for _ in range(3)]
    assert len({i.secret for i in inboxes}) == len({i.endpoint for i in inboxes}) == 3
    assert all(len(i.secret) == 64 for i in inboxes)
    assert all(i.endpoint.startswith("ipc://@samebatch-") for i in inboxes)
    for i in inboxes:
        i.close()


def test_the_users_own_zmq_context_is_left_alone(inbox):
    theirs = zmq.Context.instance()
    sub, pub = theirs.socket(zmq.PULL), theirs.socket(zmq.PUSH)
    sub.bind("inproc://theirs")
    pub.connect("inproc://theirs")
    outbox = Outbox(inbox.endpoint, inbox.secret)
    outbox.send(Report("hello", 0, 1, {}))
    assert inbox.receive(DEADLINE_S) is not None
    outbox.close()
    assert inbox._context is not theirs
    pub.send(b"still here")
    assert sub.poll(20_000)
    assert sub.recv() == b"still here"
    sub.close()
    pub.close()
    theirs.term()
