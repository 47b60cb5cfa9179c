"""A simple RNN whose recurrent weights stay on chip across time steps: ``h_t = f(x_t + h_{t-1} U^T)``.

Reading order: `op.rnn` (what it computes), `reference` (the equations), `planning` (which backend runs), `persistent`
and ``cuda/`` (the kernel), `compiler` and `driver` (how it gets onto the GPU), `module.PersistentRNN`.
"""

from prnn_ext.module import PersistentRNN
from prnn_ext.op import rnn
from prnn_ext.planning import BackendUnavailableError, Plan, check, plan, unsupported_reasons

__version__ = "0.1.0"
__all__ = ["BackendUnavailableError", "PersistentRNN", "Plan", "check", "plan", "rnn", "unsupported_reasons"]
