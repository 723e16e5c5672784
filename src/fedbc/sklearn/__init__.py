"""scikit-learn: federated training behind `fit` and `predict`; needs it (`pip install "fedbc[sklearn]"`)."""

try:
    import sklearn as _  # noqa: F401
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(
        'fedbc.sklearn needs scikit-learn, which is not installed: pip install "fedbc[sklearn]"', name="sklearn"
    ) from _error

from fedbc.sklearn.classifier import FederatedClassifier

__all__ = ["FederatedClassifier"]
