"""Sampling and log probabilities in plain torch: one stable sort, prefixes, an argmax."""

import torch
from torch import Tensor

from tandem.kernels.sampling.contract import (
    MASS_BITS,
    NO_TOKEN,
    SamplingRows,
    TokenLogprobs,
    check_sample,
    check_score,
)
from tandem.kernels.sampling.philox import gumbel


def sample(logits_RV: Tensor, rows: SamplingRows) -> Tensor:
    check_sample(logits_RV, rows)
    greedy_R = rows.temperature <= 0
    temperature_R1 = torch.where(greedy_R, 1.0, rows.temperature)[:, None]
    tempered_RV, ids_RV = torch.sort(
        logits_RV.to(torch.float32) / temperature_R1, dim=1, descending=True, stable=True
    )
    kept_R = torch.where(greedy_R, 1, kept_prefix(tempered_RV.to(torch.float64), rows))
    place_V = torch.arange(logits_RV.shape[1], device=logits_RV.device)
    noise_RV = gumbel(rows.seed, rows.position, logits_RV.shape[1]).gather(1, ids_RV)
    score_RV = torch.where(
        place_V < kept_R[:, None], tempered_RV.to(torch.float64) + noise_RV, -torch.inf
    )
    best_R1 = score_RV.amax(dim=1, keepdim=True)
    drawn_R = torch.where(score_RV == best_R1, ids_RV, logits_RV.shape[1]).amin(dim=1)
    return torch.where(can_draw(logits_RV), drawn_R, NO_TOKEN)


def can_draw(logits_RV: Tensor) -> Tensor:
    """Which rows a token can be drawn from: the largest of a row with a NaN is NaN."""
    return torch.isfinite(logits_RV.amax(dim=1))


def kept_prefix(tempered_RV: Tensor, rows: SamplingRows) -> Tensor:
    """How many of the sorted tokens pass min_p, then top_k, then top_p; at least one."""
    vocabulary = tempered_RV.shape[1]
    below_max_RV = tempered_RV - tempered_RV[:, :1]
    floor_R = torch.log(rows.min_p.to(torch.float64).clamp(min=0.0))
    kept_R = (below_max_RV >= floor_R[:, None]).sum(dim=1)
    top_k_R = torch.where(rows.top_k > 0, rows.top_k.long(), vocabulary)
    kept_R = torch.minimum(kept_R, top_k_R)

    place_V = torch.arange(vocabulary, device=tempered_RV.device)
    mass_RV = torch.floor(torch.exp(below_max_RV) * 2.0**MASS_BITS).long()
    mass_RV = torch.where(place_V < kept_R[:, None], mass_RV, 0)
    before_RV = mass_RV.cumsum(dim=1) - mass_RV
    share_R = rows.top_p.to(torch.float64) * mass_RV.sum(dim=1).to(torch.float64)
    nucleus_R = (before_RV.to(torch.float64) < share_R[:, None]).sum(dim=1)
    kept_R = torch.where(rows.top_p < 1, torch.minimum(kept_R, nucleus_R), kept_R)
    return kept_R.clamp(min=1)


def token_logprobs(logits_RV: Tensor, tokens_R: Tensor, top_n: int) -> TokenLogprobs:
    check_score(logits_RV, tokens_R, top_n)
    wide_RV = logits_RV.to(torch.promote_types(logits_RV.dtype, torch.float32))
    scored_R = can_draw(wide_RV) & (tokens_R != NO_TOKEN)
    # Whatever is computed for the other rows is not used, but has to be possible.
    tokens_R = torch.where(scored_R, tokens_R, 0)
    logprob_RV = torch.log_softmax(wide_RV, dim=1)
    own_R1 = wide_RV.gather(1, tokens_R[:, None])
    id_V = torch.arange(logits_RV.shape[1], device=logits_RV.device)
    ahead_RV = (wide_RV > own_R1) | ((wide_RV == own_R1) & (id_V < tokens_R[:, None]))
    ids_RV = torch.sort(wide_RV, dim=1, descending=True, stable=True).indices[:, :top_n]
    return TokenLogprobs(
        logprob=torch.where(scored_R, logprob_RV.gather(1, tokens_R[:, None])[:, 0], torch.nan),
        rank=torch.where(scored_R, ahead_RV.sum(dim=1) + 1, 0),
        top_ids=torch.where(scored_R[:, None], ids_RV, 0),
        top_logprobs=torch.where(scored_R[:, None], logprob_RV.gather(1, ids_RV), torch.nan),
    )
