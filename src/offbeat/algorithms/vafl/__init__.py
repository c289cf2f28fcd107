"""VAFL: a server with labels and a head, clients with columns and embeddings, and nobody waits for the slow.

"VAFL: a Method of Vertical Asynchronous Federated Learning", Chen, Jin, Sun and Yin, 2020 (arXiv:2007.06081).

    minimise  F = (1/N) sum_n loss(head, h_n1, .., h_nM; y_n) + sum_m r(weights_m),  h_nm = embedding_m(weights_m, x_nm)

| paper      | here                      | paper       | here                                             |
|------------|---------------------------|-------------|--------------------------------------------------|
| theta_0    | Server.weights            | k           | Server.iteration                                 |
| theta_m    | Client.weights            | tau_nm      | lag: k minus the k at which H[n, m] was written  |
| h_nm, H    | embedding, Server.table   | D           | Vafl.delay_bound, in units of N*M/b              |
| r          | Vafl.penalty              | t           | Vafl.t                                           |
| eta_0, eta | head_optimiser, optimiser | c           | Vafl.noise: a standard deviation everywhere      |

Order of play, asynchronous, with one client Ana:
1. Once, every client uploads the embeddings of all its rows (else rows are *cold*: zero, and marked). In private mode
   this costs, and is left out where all are known to be zero at first.
2. Ana takes some rows, embeds them and uploads them (`Upload`).
3. The server writes them into its table, asks others for rows that are too old (`Refresh`; only this update waits),
   does one forward and backward pass over the rows with what the table holds, answers with the derivative of the
   loss in Ana's embeddings (`Gradient`) and steps the head. Both gradients are taken at the same head (Eq. 4).
4. Ana pulls the derivative back through the very pass that made the upload, noise included, steps, and goes on.

`vafl-tsync`: the server waits until t different clients have uploaded and does one pass over all their rows.
`vafl-sync`: the server chooses the rows (`Ask`), waits for all, and answers all: the baseline, and with one pass the
same trajectory as the pooled model.

Loss, duplication and crashes: what a client releases has a number that is never used twice. It is kept until it is
answered. When the answer is late, the client asks for it, and sends the release again, byte for byte, where the server
does not have it; the server answers each number once and re-sends its answer. A client that returns from an old
snapshot asks which numbers the server has seen, charges its ledger for those it forgot, and goes on with higher numbers
than any it can have used.
Parties are honest but curious. The server learns every embedding; a client learns derivatives, and from those of an
additive head every label (`what_clients_learn`).
"""

from offbeat.algorithms.vafl.client import Client
from offbeat.algorithms.vafl.measures import joint_embeddings, joint_scores, objective, one_hot, score
from offbeat.algorithms.vafl.messages import MESSAGES, PROTOCOL
from offbeat.algorithms.vafl.options import VARIANTS, Vafl, noise_warning, privacy_label, what_clients_learn
from offbeat.algorithms.vafl.parties import build
from offbeat.algorithms.vafl.server import Server

__all__ = [
    "MESSAGES",
    "PROTOCOL",
    "VARIANTS",
    "Client",
    "Server",
    "Vafl",
    "build",
    "joint_embeddings",
    "joint_scores",
    "noise_warning",
    "objective",
    "one_hot",
    "privacy_label",
    "score",
    "what_clients_learn",
]
