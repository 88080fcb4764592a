"""Graphs as sequences of tokens, in the way of TokenGT (Kim et al. 2022).

Each node is a token and each edge two, one for each direction. A token is a row of numbers:

    node features | edge features | identifier of u | identifier of v | is a node, is an edge

with u = v for a node, and zeros in place of features that it doesn't have. A transformer's linear
embedding of this row is the sum of TokenGT's embeddings of features, identifiers and type. A row of
zeros is padding: a token is never zero, since it has a type.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from probseq_apps.data.graphs import Graph, laplacian_identifiers


class TokenLayout(NamedTuple):
    """Widths of the parts of a token.

    Attributes:
        node_features: numbers that describe a node.
        edge_features: numbers that describe an edge.
        identifiers: numbers of a node identifier; at least the nodes of the largest graph.
    """

    node_features: int
    edge_features: int
    identifiers: int

    @property
    def width(self) -> int:
        """Numbers of a token."""
        return self.node_features + self.edge_features + 2 * self.identifiers + 2


def num_tokens(graph: Graph) -> int:
    """Tokens of a graph."""
    return len(graph.nodes) + 2 * len(graph.ends)


def tokenize(graph: Graph, layout: TokenLayout) -> Float[Tensor, "t w"]:
    """Tokens of one graph: first the nodes, then the edges forth, then the edges back.

    Args:
        graph: a graph with at least one node.
        layout: widths of the parts.

    Raises:
        ValueError: the graph doesn't fit the layout.
    """
    size, number = len(graph.nodes), len(graph.ends)
    features = (graph.nodes.shape[1], graph.edges.shape[1])
    if features != layout[:2] or size > layout.identifiers:
        raise ValueError(
            f"graph must have {layout.node_features} node features, {layout.edge_features} edge "
            f"features and at most {layout.identifiers} nodes, got {features[0]}, {features[1]} "
            f"and {size}"
        )
    identifiers = torch.zeros(size, layout.identifiers)
    identifiers[:, :size] = laplacian_identifiers(graph)
    nodes = torch.arange(size)
    first = torch.cat([nodes, graph.ends[:, 0], graph.ends[:, 1]])
    second = torch.cat([nodes, graph.ends[:, 1], graph.ends[:, 0]])
    is_node = (torch.arange(size + 2 * number) < size).float()
    zeros = torch.zeros
    return torch.cat(
        [
            torch.cat([graph.nodes, zeros(2 * number, layout.node_features)]),
            torch.cat([zeros(size, layout.edge_features), graph.edges, graph.edges]),
            identifiers[first],
            identifiers[second],
            torch.stack([is_node, 1.0 - is_node], 1),
        ],
        1,
    )


def stack_tokens(
    graphs: Sequence[Graph], layout: TokenLayout, max_tokens: int
) -> Float[Tensor, "n t w"]:
    """Tokens of several graphs, padded with zeros to the same length.

    The whole takes 4·n·t·w bytes: about 65 kB a molecule for the small ZINC set (at most 137 tokens
    of 118 numbers), 0.8 GB for 12,000 of its size.

    Args:
        graphs: the graphs.
        layout: widths of the parts.
        max_tokens: common length; at least the tokens of the longest graph.
    """
    tokens = torch.zeros(len(graphs), max_tokens, layout.width)
    for row, graph in enumerate(graphs):
        tokens[row, : num_tokens(graph)] = tokenize(graph, layout)
    return tokens


def flip_signs(
    tokens: Float[Tensor, "n t w"], layout: TokenLayout, generator: torch.Generator
) -> Float[Tensor, "n t w"]:
    """Give each eigenvector of each graph a random sign, the same in all its tokens.

    An eigenvector's sign means nothing; trained on both, a model learns that.

    Args:
        tokens: a batch of token sequences.
        layout: where the identifiers stand.
        generator: source of the signs, on the tokens' device.
    """
    shape = (len(tokens), layout.identifiers)
    flips = torch.randint(0, 2, shape, generator=generator, device=tokens.device)
    signs = (1.0 - 2.0 * flips).to(tokens.dtype)
    ones = signs.new_ones(len(tokens), 1)
    features = ones.expand(-1, layout.node_features + layout.edge_features)
    return tokens * torch.cat([features, signs, signs, ones, ones], 1)[:, None]


def trim_tokens(tokens: Float[Tensor, "n t w"]) -> Float[Tensor, "n s w"]:
    """Cut off the places that are padding in every sequence; one place stays."""
    longest = int((tokens != 0.0).any(-1).sum(1).max())
    return tokens[:, : max(1, longest)]
