"""Organisations: the same parties on separate machines, from alignment to joint prediction.

jobs/organisations.py has JOB.toml: what the parties are asked to do together.

party_config.py   party.toml: what one party brings, and its owner's policy (policy_file.py: changing that)
policy.py         what the owner allows; a job outside it is refused before any data is touched
preflight.py      `offbeat party check`: what is wrong, and how to mend it
disclosure.py     who will learn what from a job, in sentences
align_psi.py      private set intersection of the id columns, for several parties
blinding.py       ids as points of a curve, multiplied by secret keys (x25519.py: many products at once)
tables.py         the party's table as its daemon keeps it, with its digest
rows.py           one party's table in the aligned order, prepared for learning
row_ledger.py     how often each row has entered a sum, or may: written before a share leaves
budget.py         one account of what left of a party, or of an edge site, under noise, over all jobs
history.py        what was decided about its data, in signed lines
guards.py         which rows a party trains on, and how often each may be used
train.py          one party of a training, built from its own rows by the families of runs in one place
sessions.py       one party of each session of a run: alignment, training, test
org_record.py     the run record as one party may write it
replay.py         this party's own part of a run, again, from its logs
predict.py        the test of a run under the same secure sum
standing.py       joint prediction, over sessions that stay open
control.py        the calls between daemons, and from an owner to its own (lines.py makes them)
discreet.py       what peers may be told of a failure
kept_runs.py      names of runs, each used once; their folders and logs
durable.py        files that survive a power cut
daemon.py         `offbeat party serve` (daemon_log.py: its log)
run_queue.py      which runs may begin (leading.py: how they do)
runs.py           one run at one party, phase by phase, resumable
"""
