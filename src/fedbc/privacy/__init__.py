"""Differential privacy for whole devices: clipping and noise on what leaves them, and what epsilon that makes."""

from fedbc.privacy.accounting import epsilon, noise_multiplier, secure_epsilon
from fedbc.privacy.mechanism import Mechanism, Share, system_normal
from fedbc.privacy.private import Private, mechanism_for

__all__ = [
    "Mechanism",
    "Private",
    "Share",
    "epsilon",
    "mechanism_for",
    "noise_multiplier",
    "secure_epsilon",
    "system_normal",
]
