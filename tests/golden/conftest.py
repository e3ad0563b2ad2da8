"""One torch thread: these tensors are small, and threads that wait for a busy core only slow them down."""

import torch

torch.set_num_threads(1)
