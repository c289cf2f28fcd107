"""Tables with sample ids, joined, split, prepared per party; real sets by name and generated ones."""

from offbeat.data.assemble import VerticalData
from offbeat.data.dataset import DataSet
from offbeat.data.horizontal import HorizontalData, horizontal_from_arrays, horizontal_from_dataset
from offbeat.data.load import dataset_names, describe_datasets, load_dataset, load_images, load_series, load_solids
from offbeat.data.preparation import Preparation
from offbeat.data.table import Table, read_table, table_from_arrays
from offbeat.data.vertical import vertical_from_arrays, vertical_from_dataset, vertical_from_tables

__all__ = [
    "DataSet",
    "HorizontalData",
    "Preparation",
    "Table",
    "VerticalData",
    "dataset_names",
    "describe_datasets",
    "horizontal_from_arrays",
    "horizontal_from_dataset",
    "load_dataset",
    "load_images",
    "load_series",
    "load_solids",
    "read_table",
    "table_from_arrays",
    "vertical_from_arrays",
    "vertical_from_dataset",
    "vertical_from_tables",
]
