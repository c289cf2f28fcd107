"""Organisations: the same parties on separate machines, from alignment to joint prediction.

party_config.py   party.toml: what one party brings, and its owner's policy
policy.py         what the owner allows; a job outside it is refused before any data is touched
job.py            JOB.toml: what the parties are asked to do together
preflight.py      `offbeat party check`: what is wrong, and how to mend it
align_psi.py      private set intersection of the id columns, for several parties
rows.py           one party's table in the aligned order, prepared for learning
row_ledger.py     how often each row has entered a sum, kept over all runs and predictions
watched_rows.py   which rows a party trains on, and how often each may be used
train.py          one party of a training run, built from its own rows
predict.py        joint prediction under the same secure sum
control.py        the calls between daemons, and from an owner to its own
daemon.py         `offbeat party serve`
runs.py           one run at one party, phase by phase, resumable
"""
