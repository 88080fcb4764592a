"""Transformer layers that tokenizers and priors share."""

from pseudovideo.layers.block import Block
from pseudovideo.layers.decoder import StackDecoder

__all__ = ["Block", "StackDecoder"]
