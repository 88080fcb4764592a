r"""Graphs as sequences of tokens, in the way of TokenGT (Kim et al. 2022).

Each node is a token and each edge two, one for each direction. A token is a row of numbers:

    node features | edge features | identifier of u | identifier of v | is a node, is an edge

with u = v for a node, and zeros in place of features that it doesn't have. A transformer's linear
embedding of this row is the sum of TokenGT's embeddings of features, identifiers and type. A row of
zeros is padding: a token is never zero, since it has a type.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

# Sums of cubes below this are round-off: the eigenvector is antisymmetric.
_ROUND_OFF = 1e-8


class Graph(NamedTuple):
    """An undirected graph without loops."""

    nodes: Float[Tensor, "n a"]  # features of each node
    ends: Int64[Tensor, "m 2"]  # the two nodes of each edge; an edge stands here once
    edges: Float[Tensor, "m b"]  # features of each edge


def adjacency(graph: Graph) -> Float[Tensor, "n n"]:
    """Return the adjacency matrix of ones and zeros, in float64."""
    size = len(graph.nodes)
    matrix = torch.zeros(size, size, dtype=torch.float64)
    first, second = graph.ends.unbind(1)
    matrix[first, second] = matrix[second, first] = 1.0
    return matrix


def laplacian_identifiers(graph: Graph) -> Float[Tensor, "n n"]:
    r"""Return orthonormal node identifiers: rows of the Laplacian's eigenvectors (TokenGT, 3.1).

    The eigenvectors of :math:`D^{+1/2} (D - A) D^{+1/2}` (nodes without edges have zero rows there)
    stand in the columns, smallest eigenvalue first. The matrix is orthogonal, so the dot product of
    two identifiers tells whether they are of the same node, and edges can find their ends.

    An eigenvector's sign is free. It is chosen so that the sum of the cubes is positive, which
    doesn't depend on the order of the nodes; where that sum is zero, as it is for antisymmetric
    vectors, so that the first entry that is not zero is positive. Where an eigenvalue repeats (two
    methyl groups on one atom are enough), the basis of its eigenspace is the solver's: identifiers
    stay orthonormal, but are no function of the graph alone.
    """
    matrix = adjacency(graph)
    degrees = matrix.sum(1)
    scale = torch.where(degrees > 0.0, degrees.clamp(min=1.0).rsqrt(), 0.0)
    laplacian = torch.diag((degrees > 0.0).double()) - scale[:, None] * matrix * scale
    vectors = torch.linalg.eigh(laplacian).eigenvectors
    return vectors * _signs(vectors)


def _signs(vectors: Float[Tensor, "n n"]) -> Float[Tensor, " n"]:
    cubes = vectors.pow(3).sum(0)
    first = (vectors.abs() > _ROUND_OFF).double().argmax(0)
    entries = vectors.gather(0, first[None])[0]
    return torch.where(cubes.abs() > _ROUND_OFF, cubes, entries).sign()


def swap_edges(graph: Graph, generator: torch.Generator) -> Graph:
    """Take all edges away and put as many between nodes that were not connected (thesis B.3.2).

    The thesis leaves open how many edges are added and what their features are. Here there are as
    many as before (or all possible ones, where fewer pairs of nodes are unconnected), each pair of
    nodes is equally likely, and each new edge takes over the features of one of the old ones.
    """
    # Each pair once, loops left out.
    free = torch.triu(adjacency(graph) == 0.0, diagonal=1).nonzero()
    chosen = torch.randperm(len(free), generator=generator)[: len(graph.ends)]
    return Graph(graph.nodes, free[chosen], graph.edges[: len(chosen)])


class TokenLayout(NamedTuple):
    """Widths of the segments of a token."""

    node_features: int  # numbers that describe a node
    edge_features: int  # numbers that describe an edge
    identifiers: int  # numbers of a node identifier; at least the nodes of the largest graph

    @property
    def width(self) -> int:
        """Numbers of a token."""
        return self.node_features + self.edge_features + 2 * self.identifiers + 2


def num_tokens(graph: Graph) -> int:
    """Return the number of tokens of a graph."""
    return len(graph.nodes) + 2 * len(graph.ends)


def tokenize(graph: Graph, layout: TokenLayout) -> Float[Tensor, "t w"]:
    """Return tokens of one graph: first the nodes, then the edges forth, then the edges back."""
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
    """Return tokens of several graphs, padded with zeros to `max_tokens`.

    The whole takes 4·n·t·w bytes: about 65 kB a molecule for the small ZINC set (at most 137 tokens
    of 118 numbers), 0.8 GB for 12,000 of its size.
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
