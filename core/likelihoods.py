"""Names of the losses that are those of a family of likelihoods (`core.families`)."""

LIKELIHOODS = ("binomial", "poisson", "negative-binomial", "gamma")
"""Besides the logistic loss, which is Bernoulli's; their labels keep their unit."""
SHAPED = LIKELIHOODS[2:]
"""Those that have a shape of their own, which is estimated."""
