"""scikit-learn's manners for vertical learning: rows shared by all, columns by party.

    model = VerticalClassifier(passes=40).fit({"bank": Xb, "shop": Xs, "telecom": Xt}, y)
    model = VerticalClassifier(parties={"bank": ["income", "age"], "shop": ["spend"]}).fit(frame, y)
    model.predict_proba(frame)
    model.certificate_.duality_gap      # how far the objective is from the best possible, at most
    model.save("model"); VerticalClassifier.load("model")

Everything runs in this process: it is for research, for planning, and for finding out what a joint model would be
worth before organisations connect. Columns may hold text, dates and missing values: `prepare` says what is done to
them, in the words of job files (docs/how-to/prepare-columns.md).
"""

from offbeat.estimators.deep import DeepVerticalClassifier, DeepVerticalRegressor
from offbeat.estimators.horizontal import HorizontalClassifier
from offbeat.estimators.incoming import PartyColumns
from offbeat.estimators.vertical import VerticalClassifier, VerticalClassifierCV, VerticalRegressor, VerticalRegressorCV

__all__ = [
    "DeepVerticalClassifier",
    "DeepVerticalRegressor",
    "HorizontalClassifier",
    "PartyColumns",
    "VerticalClassifier",
    "VerticalClassifierCV",
    "VerticalRegressor",
    "VerticalRegressorCV",
]
