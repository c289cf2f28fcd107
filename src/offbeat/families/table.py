"""The three families."""

from offbeat.families.contract import Family
from offbeat.families.embedding import EmbeddingTraining
from offbeat.families.horizontal import HorizontalTraining, load_edges
from offbeat.families.linear import LinearTraining
from offbeat.families.vertical_data import load_data
from offbeat.jobs.reading import AnyJob, family_name

FAMILIES = {
    "linear": Family(load_data, LinearTraining),
    "embedding": Family(load_data, EmbeddingTraining),
    "horizontal": Family(load_edges, HorizontalTraining),
}


def family_of(job: AnyJob) -> Family:
    return FAMILIES[family_name(job)]
