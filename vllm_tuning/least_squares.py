"""Weighted linear least squares with the covariance of the parameters."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class LeastSquares:
    """params and their covariance for the given sigma; ``gain`` maps y to params."""

    params: np.ndarray
    covariance: np.ndarray
    gain: np.ndarray
    chi2: float
    dof: int


def least_squares(design, y, sigma=1.0) -> LeastSquares:
    """Weighted linear least squares, min |(y - design @ params) / sigma|^2, by QR.

    design (n, p), y (n,), sigma scalar or (n,). The covariance is (X^T W X)^-1, not scaled by the
    residuals. Raises numpy.linalg.LinAlgError where the columns are linearly dependent.
    """
    weight = np.broadcast_to(1.0 / np.asarray(sigma, dtype=float), np.shape(y))
    weighted = design * weight[:, None]
    norms = np.sqrt(np.sum(weighted**2, axis=0))
    if not np.all(norms > 0):
        raise np.linalg.LinAlgError("a column is zero")
    q, r = np.linalg.qr(weighted / norms)
    diagonal = np.abs(np.diag(r))
    if diagonal.min() < 1e-9 * diagonal.max():
        raise np.linalg.LinAlgError("the columns are linearly dependent")
    half = np.linalg.inv(r) / norms[:, None]
    gain = (half @ q.T) * weight
    params = gain @ y
    residual = (y - design @ params) * weight
    return LeastSquares(
        params, half @ half.T, gain, float(residual @ residual), len(y) - design.shape[1]
    )


def scatter(chi2: float, dof: int, expected: int = 0) -> float:
    """What the variances are to be scaled by: chi squared over degrees of freedom.

    Only where that is above 1. Where sigma holds a scatter that was seen elsewhere, which counts as
    ``expected`` degrees of freedom, less scatter makes it smaller, too.

    >>> scatter(8.0, 2), scatter(0.5, 2), scatter(0.5, 2, expected=4), scatter(0.0, 0, expected=4)
    (4.0, 1.0, 0.75, 1.0)
    """
    least = (expected + chi2) / (expected + dof) if expected else 1.0
    return max(least, chi2 / dof) if dof > 0 else 1.0
