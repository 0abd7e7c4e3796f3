"""Admission policies by name, each with its parameters."""

from collections.abc import Callable
from functools import partial

from tandem.policy.admission.contract import Admission
from tandem.policy.admission.early_rejection import EarlyRejection
from tandem.policy.admission.thresholds import AdmitAll, Threshold

ADMISSIONS: dict[str, Callable[..., Admission]] = {
    "none": AdmitAll,
    "threshold": Threshold,
    "load": partial(EarlyRejection, False),
    "prediction": partial(EarlyRejection, True),
}
