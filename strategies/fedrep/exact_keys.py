"""The keys of FedRep with exact heads, and what its server may ask."""

from __future__ import annotations

from dataclasses import dataclass

from corsage.core.keys import Keys, key

QUESTIONS = ("moments", "sums", "calibration", "strength", "softmax", "body")


@dataclass(frozen=True)
class FedRepExactKeys(Keys):
    """Keys of FedRep with exact heads."""

    title = "FedRep, exact heads"

    fedrep_exact_body: str = key(
        "auto",
        "where the body begins: pca (its first layer, which must be linear, is set to random "
        "directions of the inputs' principal components), initial (as the model is made), or auto: "
        "pca if that layer is linear",
        choices=("auto", "pca", "initial"),
    )
    fedrep_exact_components: int = key(100, "principal components of pca", low=1, high=2048)
    fedrep_exact_body_rounds: int = key(
        0,
        "rounds after the first: FedRep's step on the body, then heads are solved again",
        low=0,
    )
    fedrep_exact_centre: str = key(
        "auto",
        "what heads are drawn to: known (each known cluster's own centre), one (of all users), "
        "clusters (centres of clusters that appear), or auto: known if every user has a cluster",
        choices=("auto", "known", "one", "clusters"),
    )
    fedrep_exact_loss: str = key(
        "squared",
        "the heads' loss: squared (of each class, in closed form), or multinomial: the "
        "cross-entropy, in two exchanges more",
        choices=("squared", "multinomial"),
    )
