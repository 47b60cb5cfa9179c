"""Small launches of every kind, for compute-sanitizer:

PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --error-exitcode 1 python3 tests/gpu/sanitize.py
"""

import torch

from prnn_ext import persistent

persistent.wait_limit = 60.0
for dtype in (torch.bfloat16, torch.float32):
    for hidden_size, batch_size in ((16, 3), (101, 3), (48, 20)):
        x = torch.randn(4, batch_size, hidden_size, device="cuda").to(dtype)
        weight = (torch.randn(hidden_size, hidden_size, device="cuda") / hidden_size).to(dtype)
        lengths = (torch.arange(batch_size, dtype=torch.int32, device="cuda") * 2 + 4) % 5  # 4, 1, 3, 0, 2, ...
        scale = torch.ones(hidden_size, device="cuda")
        for reverse in (False, True):
            output, h_n = persistent.forward(x, weight, x[0].clone(), lengths, scale, scale, "tanh", reverse)
            delta, _ = persistent.backward(x, h_n, output, weight, None, lengths, "tanh", reverse)
            persistent.check()
            assert torch.isfinite(delta).all()
print("launched, no error of its own")
