"""Every key as a keyword argument, `FedRep(num_users=20)`: what type checkers and editors read.

Printed by `python -m corsage.app.keys --python`; keys are declared where they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypedDict


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
    max_train_samples: int
    cache_dir: str | float
    normalize: str
    femnist_classes: str
    embeddings: str | float
    data_file: str | float
    labels: str
    scale: str
    missing: str
    user_column: str | float
    label_column: str | float
    cluster_column: str | float
    feature_columns: str | Sequence[str] | float
    drop_columns: str | Sequence[str] | float
    category_columns: str | Sequence[str] | float
    data_seed: int
    users_per_cluster: int
    samples_per_user: int
    num_clusters: int
    num_features: int
    noise: float
    user_variance: str | Sequence[str] | float
    cluster_variance: float
    moons_noise: float
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
    precision: str
    batch_norm: str
    local_epochs: int
    local_steps: int
    work: str
    work_epochs: float
    fine_tune_epochs: int
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
    head_epochs: int
    fedrep_convex_lambda: float
    fedrep_convex_neighbours: int
    fedrep_convex_rho: float
    fedrep_known_gamma: float
    fedrep_known_lambda: float
    fedrep_exact_body: str
    fedrep_exact_components: int
    fedrep_exact_body_rounds: int
    fedrep_exact_centre: str
    fedrep_exact_loss: str
    local_always: bool
    fedprox_mu: float
    scaffold_server_lr: float
    ditto_lambda: float
    ditto_epochs: int
    pfedme_lambda: float
    pfedme_steps: int
    pfedme_personal_lr: float
    pfedme_beta: float
    l2gd_lambda: float
    l2gd_p: float
    l2gd_coins: int
    fedmtl_lambda1: float
    fedmtl_lambda2: float
    fedmtl_relations: str
    fedmtl_inner_rounds: int
    fedmtl_floor: float
    ifca_clusters: int
    ifca_averaging: str
    cfl_eps1: float
    cfl_eps2: float
    cfl_gamma_max: float
    lg_fedavg_warmup_rounds: int
    apfl_alpha: float
    apfl_adaptive_alpha: bool
    perfedavg_variant: str
    perfedavg_alpha: float
    perfedavg_delta: float
    perfedavg_adapt_steps: int
    fedbabu_fine_tune: str
    fedproto_lambda: float
    fedamp_alpha: float
    fedamp_sigma: float
    fedamp_lambda: float
    known_gamma: str | float
    known_lambda: str | float
    known_refine: int
    known_missing: str | float
    known_iterations: int
    known_p0: str | float
    known_p: str | float
    known_tau: str | float
    known_eta: str | float
    al2sgd_rho: str | float
    al2sgd_mu: str | float
    al2sgd_oracle: str
    mixed_tolerance: float
    mixed_em_rounds: int
    mixed_grouping: str
    mixed_random: str
    mixed_variances: str
    mixed_neighbours: str
    mixed_intervals: str
    mixed_summary: str
    mixed_paths: bool
    mixed_keep_sums: bool
    single_cluster_lambda: str | float
    convex_lambda: str | float
    convex_solver: str
    convex_graph: str
    convex_neighbours: int
    convex_tolerance: float
    convex_certify_every: int
    convex_report: bool
    convex_rho: str | float
    convex_relax: float
    convex_tau: str | float
    convex_nu: float
    convex_eta: float
    convex_pairs: float
    local_clusters_by: str
    local_clusters_number: int
