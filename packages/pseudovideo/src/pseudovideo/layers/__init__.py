"""Transformer layers that tokenizers and priors share."""

from pseudovideo.layers.attention import Attention
from pseudovideo.layers.block import Block
from pseudovideo.layers.decoder import StackDecoder
from pseudovideo.layers.feedforward import FeedForward

__all__ = ["Attention", "Block", "FeedForward", "StackDecoder"]
