"""A model for each device: the paper's constrained problem around z, solved and chosen on the device itself."""

from fedbc.personalization.each_device import personalize
from fedbc.personalization.evidence import Verdict
from fedbc.personalization.evidence import bootstrapped as mean_interval
from fedbc.personalization.personalized import MODELS, Personalized, advice_table, load_personalized, sentence

__all__ = [
    "MODELS",
    "Personalized",
    "Verdict",
    "advice_table",
    "load_personalized",
    "mean_interval",
    "personalize",
    "sentence",
]
