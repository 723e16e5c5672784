"""Secure aggregation: the server learns the sum of the devices' vectors and who took part, and no vector by itself.

The protocol of two papers, put together from well-known primitives; no cryptography of its own.

    K. Bonawitz, V. Ivanov, B. Kreuter, A. Marcedone, H. B. McMahan, S. Patel, D. Ramage, A. Segal, K. Seth, "Practical
    Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017, Figure 4.
    J. Bell, K. A. Bonawitz, A. Gascón, T. Lepoint, M. Raykova, "Secure Single-Server Aggregation with
    (Poly)Logarithmic Overhead", CCS 2020.

| stage here | step in Bonawitz et al. | what a device does | file |
| --- | --- | --- | --- |
| keys | AdvertiseKeys (round 0) | makes two X25519 key pairs c, s and a seed b; signs the public ones | `device` |
| shares | ShareKeys (round 1) | checks all signatures; sends its neighbours shares of b and s, encrypted | `device` |
| masked | MaskedInputCollection (round 2) | adds to its vector the keystream of b, and ± that of each pair | `device` |
| agree | ConsistencyCheck (round 3) | signs the list of survivors, of which the server may tell one only | `device` |
| unmask | Unmasking (round 4) | reveals a neighbour's share of b if it survived, of s if it dropped out | `device` |

The server's half is in `server`. From Bell et al.: masks are exchanged and secrets shared with neighbours only, in a
random graph that is drawn anew each time (`graph`); for few devices it has all pairs.

| purpose | primitive (`primitives`) |
| --- | --- |
| key agreement (KA) | X25519, then HKDF with SHA-256 |
| mask (PRG) | ChaCha20's keystream under a key of 32 bytes |
| authenticated encryption (AE) | ChaCha20-Poly1305 |
| secret sharing (SS) | Shamir's over GF(2^128), of PyCryptodome, which Flower uses and brings |
| signature (SIG) | ECDSA on P-256 with the device's registered key |

Vectors are of numbers modulo 2^64; how a method's parts become such numbers is in `fedbc.algorithms.secured`.
"""

from fedbc.secure.device import Participant
from fedbc.secure.server import Gathering
from fedbc.secure.session import STAGES, Refused, Session, Stage

__all__ = ["STAGES", "Gathering", "Participant", "Refused", "Session", "Stage"]
