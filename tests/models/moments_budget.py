"""The error budget of batch norm's kernels: against float64 truth, measured in plain PyTorch's error in the same
precision.

    |found - truth|_max  <=  2 |plain - truth|_max + 4 eps |truth|_max

and for dz one rounding more, in the precision of sums, of its largest term: + eps |scale delta|_max. dz is a
difference of terms that may cancel: of one frame it is 0 and each term up to |delta| / sqrt(1e-5) = 316 |delta|. Two
roundings then happen to cancel exactly; a fused multiply-add, which a GPU uses and plain PyTorch does not, rounds one
term and not the other and is off by that rounding.
"""

from typing import Any

import torch
from torch import Tensor

EPS = 1e-5  # batch norm's


def results(given: dict[str, Tensor], run: Any, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """Everything the three ops give of z, delta [T,B,H], gamma, beta [H], mask [T,B,1] and count [], by `run`'s
    versions of them."""
    z, delta, gamma, beta = (given[name].clone().to(dtype) for name in ("z", "delta", "gamma", "beta"))
    mask, count = given["mask"], given["count"]
    moments, folded = run.norm_statistics(z, mask, gamma, beta, EPS)
    sums = run.norm_gradient_sums(delta, z, moments)
    dgamma, dbeta = run.norm_gradient(delta, z, mask, moments, gamma, EPS, count, sums)
    return {"moments": moments, "folded": folded, "sums": sums.sum(0), "dgamma": dgamma, "dbeta": dbeta, "dz": z}


def assert_within_budget(
    given: dict[str, Tensor], found: dict[str, Tensor], plain: dict[str, Tensor], truth: dict[str, Tensor]
) -> None:
    """Each of `results`, those of `truth` in float64."""
    for name, value in truth.items():
        assert found[name].dtype == plain[name].dtype, name
        assert found[name].shape == value.shape, name
        if not value.numel():
            continue
        eps, of_sums = (torch.finfo(dtype).eps for dtype in (given["z"].dtype, plain["moments"].dtype))
        allowed = 2 * (plain[name].double() - value).abs().max() + 4 * eps * value.abs().max()
        if name == "dz":
            allowed += of_sums * (truth["folded"][0] * given["delta"].double()).abs().max()
        error = (found[name].double() - value).abs().max()
        # The last: sums in float64, whose truth is rounded as they are.
        assert error <= allowed + 1e-12, f"{name}: error {error:.3e} exceeds its budget {allowed:.3e}"
