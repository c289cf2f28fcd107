"""What VAFL's parties write down to come back from: plain values and arrays, under the keys of older files."""

from typing import TYPE_CHECKING

import numpy as np

from offbeat.algorithms.vafl.requests import Contribution
from offbeat.learning.embeddings import Weights
from offbeat.learning.sampling import generator_state, restore_generator
from offbeat.party.contract import State

if TYPE_CHECKING:
    from offbeat.algorithms.vafl.client import Client
    from offbeat.algorithms.vafl.server import Server

_SERVER_COUNTS = ("iteration", "rows_done", "tickets", "requests", "passes_told", "duplicates")


def client_state(client: "Client") -> State:
    embedding = client.embedding
    return {
        "phase": client.phase,
        "stopping": client.stopping,
        "counts": [client.version, client.tickets, client.last_ask],
        "filled": [client.filled, client.filling_to],
        "asked": None if client.asked is None else [client.asked[0], client.asked[1].copy()],
        "trained": embedding.to_arrays(client.weights.trained),
        "kept": embedding.to_arrays(client.weights.kept),
        "memory": embedding.to_arrays(client.memory),
        "order": client.order.snapshot(),
        "clock": generator_state(client.clock),
        "outbox": client.releases.snapshot(),
        "ledger": None if client.ledger is None else client.ledger.snapshot(),
        "test_ledger": None if client.test_ledger is None else client.test_ledger.snapshot(),
        **({"batches": client.batches} if client.options.together else {}),
        **({} if client.metric is None else {"metric": client.metric.copy()}),
    }


def restore_client(client: "Client", state: State) -> None:
    embedding = client.embedding
    client.phase, client.stopping = state["phase"], state["stopping"]
    client.version, client.tickets, client.last_ask = state["counts"]
    client.filled, client.filling_to = state["filled"]
    client.asked = None if state["asked"] is None else (state["asked"][0], np.array(state["asked"][1]))
    client.weights = Weights(embedding.from_arrays(state["trained"]), embedding.from_arrays(state["kept"]))
    client.memory = embedding.from_arrays(state["memory"])
    client.order.restore(state["order"])
    client.batches = state.get("batches", 0)
    client.metric = None if "metric" not in state else np.array(state["metric"])
    restore_generator(client.clock, state["clock"])
    client.releases.restore(state["outbox"])
    for ledger, key in ((client.ledger, "ledger"), (client.test_ledger, "test_ledger")):
        if ledger is not None:
            ledger.restore(state[key])


def server_state(server: "Server") -> State:
    return {
        "phase": server.phase,
        "counts": [getattr(server, name) for name in _SERVER_COUNTS],
        "patience": server.patience.factor,
        "loss": [server.loss_sum, server.loss_count, server.first_loss],
        "trained": server.head.to_arrays(server.weights.trained),
        "kept": server.head.to_arrays(server.weights.kept),
        "memory": server.head.to_arrays(server.memory),
        "table": server.table.snapshot(),
        "order": server.order.snapshot(),
        "answers": server.answers.snapshot(),
        "fills": list(server.fills),
        "sets": [sorted(server.away), sorted(server.resting)],
        "refreshes": server.refreshes.snapshot(),
        "buffer": [c.plain() for c in server.buffer.values()],
        "batches": [[ticket, [c.plain() for c in batch]] for ticket, batch in server.batches.items()],
        "asking": server.rounds.snapshot(),
        "prediction": server.prediction.snapshot(),
        "farewell": server.shutdown.snapshot(),
        **({"company": server.company.snapshot()} if server.options.together else {}),
    }


def restore_server(server: "Server", state: State) -> None:
    server.phase = state["phase"]
    for name, value in zip(_SERVER_COUNTS, state["counts"], strict=True):
        setattr(server, name, value)
    server.patience.factor = state["patience"]
    server.loss_sum, server.loss_count, server.first_loss = state["loss"]
    server.weights = Weights(server.head.from_arrays(state["trained"]), server.head.from_arrays(state["kept"]))
    server.memory = server.head.from_arrays(state["memory"])
    server.table.restore(state["table"])
    server.order.restore(state["order"])
    server.answers.restore(state["answers"])
    server.fills = list(state["fills"])
    server.away, server.resting = (set(values) for values in state["sets"])
    server.refreshes.restore(state["refreshes"])
    server.buffer = {plain[0]: Contribution.from_plain(plain) for plain in state["buffer"]}
    server.batches = {ticket: [Contribution.from_plain(plain) for plain in batch] for ticket, batch in state["batches"]}
    if server.options.together:
        server.company.restore(state["company"])
    server.rounds.restore(state["asking"])
    server.prediction.restore(state["prediction"])
    server.shutdown.restore(state["farewell"])
