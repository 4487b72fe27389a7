"""Every key as a keyword argument, `FedRep(num_users=20)`: what type checkers and editors read.

Printed by `python -m corsage.app.keys --write`; keys are declared where they are used. A key that
only some algorithms or data sets have comes with its default, so that none is imported for it.
"""

# fmt: off
# ruff: noqa: E501

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypedDict

from corsage.core.keys import Own


class Keywords(TypedDict, total=False):
    """Keys with `_` for `-`."""

    strategy: str | Sequence[str] | float
    num_rounds: int
    engine: str
    seed: int
    run_dir: str | float
    resume: str | float
    from_round: int
    measures: str | Sequence[str] | float
    evaluate_every: int
    stop_after: int
    evaluate_users: int
    checkpoint_every: int
    study_workers: int
    keep_checkpoints: int
    keep_models: str
    log_to: str | Sequence[str] | float
    num_users: int
    num_nodes: int
    fraction_train: float
    min_users: int
    node_timeout: float
    round_timeout: float
    patience: float
    quorum: float
    evaluate_with_training: bool
    max_share: float
    registered_keys: bool
    ray_address: str | float
    node_cpus: float
    node_gpus: float
    dataset: str
    data_dir: str | float
    cluster_map: str | float
    partition: str
    classes_per_user: int
    alpha: float
    size_sigma: float
    mean_samples: int
    min_samples: int
    test_fraction: float
    validation: float
    max_train_samples: int
    cache_dir: str | float
    normalize: Annotated[str, Own("Some data sets", "all", "cifar10, cifar100")]
    femnist_classes: Annotated[str, Own("Some data sets", "letters", "femnist")]
    embeddings: Annotated[str | float, Own("Some data sets", "glove.6B.300d.txt", "sent140")]
    data_file: Annotated[str | float, Own("Some data sets", "", "csv, npz, mapped, memory, donors")]
    labels: Annotated[str, Own("Some data sets", "classes", "csv, npz, mapped, memory, chem97, hierarchical")]
    scale: Annotated[str, Own("Some data sets", "auto", "csv, npz, memory, school, heart, beijing-air, flights, tv16")]
    missing: Annotated[str, Own("Some data sets", "refuse", "csv, npz, memory, school, heart, beijing-air, flights, tv16")]
    user_column: Annotated[str | float, Own("Some data sets", "user", "csv, npz")]
    label_column: Annotated[str | float, Own("Some data sets", "label", "csv, npz")]
    cluster_column: Annotated[str | float, Own("Some data sets", "", "csv, npz")]
    feature_columns: Annotated[str | Sequence[str] | float, Own("Some data sets", "", "csv, chem97")]
    drop_columns: Annotated[str | Sequence[str] | float, Own("Some data sets", "", "csv")]
    category_columns: Annotated[str | Sequence[str] | float, Own("Some data sets", "", "csv")]
    data_seed: Annotated[int, Own("Some data sets", 1, "hierarchical, donors, ellipses, moons")]
    users_per_cluster: Annotated[int, Own("Some data sets", 20, "hierarchical, donors, ellipses, moons")]
    samples_per_user: Annotated[int, Own("Some data sets", 10, "hierarchical, donors, ellipses, moons")]
    num_clusters: Annotated[int, Own("Some data sets", 3, "hierarchical, ellipses, moons")]
    num_features: Annotated[int, Own("Some data sets", 20, "hierarchical")]
    noise: Annotated[float, Own("Some data sets", 1.0, "hierarchical")]
    user_variance: Annotated[str | Sequence[str] | float, Own("Some data sets", "1", "hierarchical")]
    cluster_variance: Annotated[float, Own("Some data sets", 1.0, "hierarchical")]
    moons_noise: Annotated[float, Own("Some data sets", 0.1, "moons")]
    model: str | Callable[..., Any]
    hidden: str | float
    head: str | float
    shared: str | float
    personal: str | float
    frozen: str | float
    loss: str
    huber_delta: float
    intercept: bool
    training_path: str
    loss_scale: str
    ridge: float
    min_share: int
    precision: str
    batch_norm: str
    local_epochs: int
    local_steps: int
    work: str
    work_epochs: float
    fine_tune_epochs: int
    end_heads: str | Sequence[str] | float
    batch_size: int
    optimizer: str
    lr: float
    lr_schedule: str
    lr_end: float
    lr_step_rounds: int
    lr_factor: float
    momentum: float
    nesterov: bool
    adam_beta1: float
    adam_beta2: float
    adam_epsilon: float
    weight_decay: float
    clip_gradient: float
    label_smoothing: float
    class_weights: str | Sequence[str] | float
    augment: str | Sequence[str] | float
    augment_padding: int
    mixed_precision: str
    weighting: str
    device: str | float
    torch_threads: int
    server_optimizer: str
    server_lr: float
    server_beta1: float
    server_beta2: float
    server_tau: float
    robust: str
    clip_norm: str | float
    robust_share: float
    krum_keep: int
    new_users: float
    new_cluster: str | float
    adapt_samples: str | Sequence[str] | float
    adapt_epochs: str | Sequence[str] | float
    head_epochs: Annotated[int, Own("FedRep", 10, "fedrep, fedrep-convex, fedrep-known")]
    fedrep_convex_lambda: Annotated[float, Own("FedRep, heads by convex clustering", 0.2, "fedrep-convex")]
    fedrep_convex_neighbours: Annotated[int, Own("FedRep, heads by convex clustering", 10, "fedrep-convex")]
    fedrep_convex_rho: Annotated[float, Own("FedRep, heads by convex clustering", 0.3, "fedrep-convex")]
    fedrep_known_gamma: Annotated[float, Own("FedRep, heads in known clusters", 1.0, "fedrep-known")]
    fedrep_known_lambda: Annotated[float, Own("FedRep, heads in known clusters", 0.1, "fedrep-known")]
    fedrep_exact_body: Annotated[str, Own("FedRep, exact heads", "auto", "fedrep-exact")]
    fedrep_exact_components: Annotated[int, Own("FedRep, exact heads", 100, "fedrep-exact")]
    fedrep_exact_body_rounds: Annotated[int, Own("FedRep, exact heads", 0, "fedrep-exact")]
    fedrep_exact_centre: Annotated[str, Own("FedRep, exact heads", "auto", "fedrep-exact")]
    fedrep_exact_loss: Annotated[str, Own("FedRep, exact heads", "squared", "fedrep-exact")]
    local_always: Annotated[bool, Own("Local training alone", False, "local")]
    fedprox_mu: Annotated[float, Own("FedProx", 0.1, "fedprox")]
    feddyn_alpha: Annotated[float, Own("FedDyn", 0.1, "feddyn")]
    fedlc_tau: Annotated[float, Own("FedLC", 1.0, "fedlc")]
    moon_mu: Annotated[float, Own("MOON", 1.0, "moon")]
    moon_tau: Annotated[float, Own("MOON", 0.5, "moon")]
    scaffold_server_lr: Annotated[float, Own("SCAFFOLD", 1.0, "scaffold")]
    ditto_lambda: Annotated[float, Own("Ditto", 1.0, "ditto")]
    ditto_epochs: Annotated[int, Own("Ditto", 1, "ditto")]
    fedrod_epochs: Annotated[int, Own("FedRoD", 1, "fedrod")]
    mr_mtl_lambda: Annotated[float, Own("MR-MTL", 1.0, "mr-mtl")]
    fedala_eta: Annotated[float, Own("FedALA", 1.0, "fedala")]
    fedala_share: Annotated[float, Own("FedALA", 0.8, "fedala")]
    fedala_start_epochs: Annotated[int, Own("FedALA", 11, "fedala")]
    feddbe_kappa: Annotated[float, Own("FedDBE", 1.0, "feddbe")]
    feddbe_shift: Annotated[float, Own("FedDBE", 1.0, "feddbe")]
    feddbe_mu: Annotated[float, Own("FedDBE", 1.0, "feddbe")]
    pfedme_lambda: Annotated[float, Own("pFedMe", 15.0, "pfedme")]
    pfedme_steps: Annotated[int, Own("pFedMe", 5, "pfedme")]
    pfedme_personal_lr: Annotated[float, Own("pFedMe", 0.01, "pfedme")]
    pfedme_beta: Annotated[float, Own("pFedMe", 1.0, "pfedme")]
    l2gd_lambda: Annotated[float, Own("L2GD", 0.1, "l2gd")]
    l2gd_p: Annotated[float, Own("L2GD", 0.02, "l2gd")]
    l2gd_coins: Annotated[int, Own("L2GD", 0, "l2gd")]
    fedmtl_lambda1: Annotated[float, Own("Fed-MTL", 0.001, "fedmtl")]
    fedmtl_lambda2: Annotated[float, Own("Fed-MTL", 0.0, "fedmtl")]
    fedmtl_relations: Annotated[str, Own("Fed-MTL", "learned", "fedmtl")]
    fedmtl_inner_rounds: Annotated[int, Own("Fed-MTL", 1, "fedmtl")]
    fedmtl_floor: Annotated[float, Own("Fed-MTL", 0.01, "fedmtl")]
    ifca_clusters: Annotated[int, Own("IFCA", 2, "ifca")]
    ifca_averaging: Annotated[str, Own("IFCA", "models", "ifca")]
    fedem_components: Annotated[int, Own("FedEM", 3, "fedem")]
    cfl_eps1: Annotated[float, Own("CFL", 0.1, "cfl")]
    cfl_eps2: Annotated[float, Own("CFL", 0.2, "cfl")]
    cfl_gamma_max: Annotated[float, Own("CFL", 0.0, "cfl")]
    lg_fedavg_warmup_rounds: Annotated[int, Own("LG-FedAvg", 0, "lg-fedavg")]
    apfl_alpha: Annotated[float, Own("APFL", 0.5, "apfl")]
    apfl_adaptive_alpha: Annotated[bool, Own("APFL", False, "apfl")]
    perfedavg_variant: Annotated[str, Own("Per-FedAvg", "exact", "perfedavg")]
    perfedavg_alpha: Annotated[float, Own("Per-FedAvg", 0.01, "perfedavg")]
    perfedavg_delta: Annotated[float, Own("Per-FedAvg", 0.001, "perfedavg")]
    perfedavg_adapt_steps: Annotated[int, Own("Per-FedAvg", 1, "perfedavg")]
    fedproto_lambda: Annotated[float, Own("FedProto", 1.0, "fedproto")]
    fedpac_lambda: Annotated[float, Own("FedPAC", 1.0, "fedpac")]
    fedpac_head_epochs: Annotated[int, Own("FedPAC", 1, "fedpac")]
    fedpac_collaboration: Annotated[bool, Own("FedPAC", True, "fedpac")]
    gpfl_lambda: Annotated[float, Own("GPFL", 0.01, "gpfl")]
    gpfl_mu: Annotated[float, Own("GPFL", 0.1, "gpfl")]
    fedamp_alpha: Annotated[float, Own("FedAMP", 1.0, "fedamp")]
    fedamp_sigma: Annotated[float, Own("FedAMP", 0.2, "fedamp")]
    fedamp_lambda: Annotated[float, Own("FedAMP", 5.0, "fedamp")]
    fedfomo_models: Annotated[int, Own("FedFomo", 5, "fedfomo")]
    fedfomo_epsilon: Annotated[float, Own("FedFomo", 0.3, "fedfomo")]
    fedfomo_validation: Annotated[float, Own("FedFomo", 0.2, "fedfomo")]
    knn_per_k: Annotated[int, Own("kNN-Per", 10, "knn-per")]
    knn_per_lambda: Annotated[float, Own("kNN-Per", -1.0, "knn-per")]
    knn_per_sigma: Annotated[float, Own("kNN-Per", 1.0, "knn-per")]
    known_gamma: Annotated[str | float, Own("Known clusters", "auto", "async-l2gd, async-al2sgd, mixed-model, single-cluster")]
    known_lambda: Annotated[str | float, Own("Known clusters", "auto", "async-l2gd, async-al2sgd, mixed-model, single-cluster")]
    known_refine: Annotated[int, Own("Known clusters", 0, "async-l2gd, async-al2sgd, mixed-model, single-cluster")]
    known_missing: Annotated[str | float, Own("Known clusters", "", "async-l2gd, async-al2sgd, mixed-model, single-cluster")]
    known_iterations: Annotated[int, Own("Known clusters", 0, "async-l2gd, async-al2sgd")]
    known_p0: Annotated[str | float, Own("Known clusters", "auto", "async-l2gd, async-al2sgd")]
    known_p: Annotated[str | float, Own("Known clusters", "auto", "async-l2gd, async-al2sgd")]
    known_tau: Annotated[str | float, Own("Known clusters", "auto", "async-l2gd, async-al2sgd")]
    known_eta: Annotated[str | float, Own("Known clusters", "auto", "async-l2gd, async-al2sgd")]
    al2sgd_rho: Annotated[str | float, Own("Async-AL2SGD+", "auto", "async-al2sgd")]
    al2sgd_mu: Annotated[str | float, Own("Async-AL2SGD+", "auto", "async-al2sgd")]
    al2sgd_oracle: Annotated[str, Own("Async-AL2SGD+", "full", "async-al2sgd")]
    mixed_tolerance: Annotated[float, Own("Mixed model", 1e-08, "mixed-model, single-cluster")]
    mixed_em_rounds: Annotated[int, Own("Mixed model", 20, "mixed-model, single-cluster")]
    mixed_grouping: Annotated[str, Own("Mixed model", "auto", "mixed-model, single-cluster")]
    mixed_random: Annotated[str | Sequence[str] | float, Own("Mixed model", "all", "mixed-model, single-cluster")]
    mixed_variances: Annotated[str, Own("Mixed model", "auto", "mixed-model, single-cluster")]
    mixed_likelihood: Annotated[str, Own("Mixed model", "auto", "mixed-model, single-cluster")]
    offset_column: Annotated[str | float, Own("Mixed model", "", "mixed-model, single-cluster")]
    weight_column: Annotated[str | float, Own("Mixed model", "", "mixed-model, single-cluster")]
    mixed_neighbours: Annotated[str, Own("Mixed model", "simulations", "mixed-model, single-cluster")]
    mixed_intervals: Annotated[str, Own("Mixed model", "auto", "mixed-model, single-cluster")]
    mixed_summary: Annotated[str, Own("Mixed model", "users", "mixed-model, single-cluster")]
    mixed_paths: Annotated[bool, Own("Mixed model", True, "mixed-model, single-cluster")]
    mixed_aside: Annotated[str, Own("Mixed model", "devices", "mixed-model, single-cluster")]
    mixed_keep_sums: Annotated[bool, Own("Mixed model", False, "mixed-model, single-cluster")]
    single_cluster_lambda: Annotated[str | float, Own("Single cluster", "auto", "single-cluster")]
    convex_lambda: Annotated[str | float, Own("Convex clustering", "auto", "convex-clustering")]
    convex_solver: Annotated[str, Own("Convex clustering", "auto", "convex-clustering")]
    convex_graph: Annotated[str, Own("Convex clustering", "all", "convex-clustering")]
    convex_neighbours: Annotated[int, Own("Convex clustering", 10, "convex-clustering")]
    convex_tolerance: Annotated[float, Own("Convex clustering", 1e-06, "convex-clustering")]
    convex_certify_every: Annotated[int, Own("Convex clustering", 5, "convex-clustering")]
    convex_report: Annotated[bool, Own("Convex clustering", True, "convex-clustering")]
    convex_rho: Annotated[str | float, Own("Convex clustering", "auto", "convex-clustering")]
    convex_relax: Annotated[float, Own("Convex clustering", 1.6, "convex-clustering")]
    convex_tau: Annotated[str | float, Own("Convex clustering", "auto", "convex-clustering")]
    convex_nu: Annotated[float, Own("Convex clustering", 0.6666666666666666, "convex-clustering")]
    convex_eta: Annotated[float, Own("Convex clustering", 0.0, "convex-clustering")]
    convex_pairs: Annotated[float, Own("Convex clustering", 0.0, "convex-clustering")]
    local_clusters_by: Annotated[str, Own("Clusters of local models", "average", "local-clusters")]
    local_clusters_number: Annotated[int, Own("Clusters of local models", 0, "local-clusters")]
