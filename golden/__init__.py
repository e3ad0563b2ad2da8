"""Golden models of nano K3: the float judge, its integer twin, checkpoints and training."""
