"""The model of PyTorch's side in comparisons with //examples:gpt: a transformer block with the same operations."""

import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """Attention with heads of `head` channels, and an MLP of 4 * `dim`; [batch, tokens, dim] to the same."""

    def __init__(self, dim, head):
        super().__init__()
        self.head = head
        self.attention_norm, self.mlp_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.mix = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(self.attention_norm(x)).unflatten(-1, (-1, 3, self.head)).permute(3, 0, 2, 1, 4).unbind(0)
        x = x + self.mix(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x))))
