"""MAPA: asynchronous horizontal learning with staged clipping and noise; with AUDP, ASGD and CSGD.

Y. Li, S. Yang, X. Ren and C. Zhao, "Asynchronous Federated Learning with Differential Privacy for Edge Intelligence".

    minimise over x   f(x) = E F(x; row) + strength/2 |x|^2        rows at K edges, the model at a cloud

| paper      | here                | meaning                                               |
|------------|---------------------|-------------------------------------------------------|
| x_t, t     | parameters, version | the cloud's model, and how often it changed           |
| D_k        | data                | the rows of edge k                                    |
| eps_k      | ledger              | what edge k may still reveal                          |
| tau(t)     | lag                 | versions between an edge's pull and its upload's turn |
| tau_max    | lag_max             | a later upload is refused; its edge pulls anew        |
| DeltaS     | 2 clip / batch      | sensitivity of one upload                             |

In MAPA the clip and the step change by stages (`rates`); an upload clipped by an older stage's clip is still good, its
own noise fits it. Sound mode is the default (`privacy`). FedAsync and FedBuff are other rules of the same cloud
(`fedbuff`).

The order of play, with Ede at an edge:
1. Ede says Hello: how noisy its uploads are. The cloud answers with its Model, its version and the clip in force.
2. Ede draws rows in secret, clips every row's gradient, adds noise, notes the cost in its ledger, and Uploads.
3. The cloud takes uploads first in, first out, lets its rule move the model, and sends the new Model to Ede alone.
4. An edge whose budget is spent, or whose owner stops it, says Leaving and stops; the others go on. After the last
   update, or when the cloud's owner stops it, the cloud says Halt.

An edge may be away for days, and deliveries keep a bounded number of messages for a peer that is lost. So an edge asks
again until it is answered, and its uploads are numbered: a repeated one is not applied again, a lost one was paid for
all the same, and an edge that has forgotten some (the cloud tells it the last number it saw) adds them to its ledger
first. An upload more than `lag_max` versions late is refused, and its edge pulls anew. Both sides are semi-honest. A
malformed or non-finite upload is dropped and counted; other messages that no honest peer sends are refused before
anything of them is used.
"""

from offbeat.algorithms.mapa.builders import noise_source, parties, stepping
from offbeat.algorithms.mapa.cloud import Cloud, GradientStep, Rule
from offbeat.algorithms.mapa.edge import Edge
from offbeat.algorithms.mapa.messages import CLOUD, MESSAGES, PROTOCOL, Halt, Hello, Leaving, Model, Upload
from offbeat.party.protocol import Goodbye

__all__ = [
    "CLOUD",
    "MESSAGES",
    "PROTOCOL",
    "Cloud",
    "Edge",
    "Goodbye",
    "GradientStep",
    "Halt",
    "Hello",
    "Leaving",
    "Model",
    "Rule",
    "Upload",
    "noise_source",
    "parties",
    "stepping",
]
