"""World: trainings of token-level softmax policies, from first principles and without knowledge of the diagnosis."""

from __future__ import annotations
