"""Attributed graphs: Laplacian node identifiers, and graphs with their edges swapped."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

# Sums of cubes below this are round-off: the eigenvector is antisymmetric.
_ROUND_OFF = 1e-8


class Graph(NamedTuple):
    """An undirected graph without loops.

    Attributes:
        nodes: features of each node.
        ends: the two nodes of each edge; an edge stands here once.
        edges: features of each edge.
    """

    nodes: Float[Tensor, "n a"]
    ends: Int64[Tensor, "m 2"]
    edges: Float[Tensor, "m b"]


def adjacency(graph: Graph) -> Float[Tensor, "n n"]:
    """Adjacency matrix of ones and zeros, in float64."""
    size = len(graph.nodes)
    matrix = torch.zeros(size, size, dtype=torch.float64)
    first, second = graph.ends.unbind(1)
    matrix[first, second] = matrix[second, first] = 1.0
    return matrix


def laplacian_identifiers(graph: Graph) -> Float[Tensor, "n n"]:
    r"""Orthonormal node identifiers: the rows of the Laplacian's eigenvectors (TokenGT, Sec. 3.1).

    The eigenvectors of :math:`D^{+1/2} (D - A) D^{+1/2}` (nodes without edges have zero rows there)
    stand in the columns, smallest eigenvalue first. The matrix is orthogonal, so the dot product of
    two identifiers tells whether they are of the same node, and edges can find their ends.

    An eigenvector's sign is free. It is chosen so that the sum of the cubes is positive, which
    doesn't depend on the order of the nodes; where that sum is zero, as it is for antisymmetric
    vectors, so that the first entry that is not zero is positive. Where an eigenvalue repeats (two
    methyl groups on one atom are enough), the basis of its eigenspace is the solver's: identifiers
    stay orthonormal, but are no function of the graph alone.

    Args:
        graph: a graph with at least one node.

    Returns:
        One identifier a row, in float64.
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

    Args:
        graph: the graph to change; its nodes keep their features.
        generator: source of the choice.
    """
    # Each pair once, loops left out.
    free = torch.triu(adjacency(graph) == 0.0, diagonal=1).nonzero()
    chosen = torch.randperm(len(free), generator=generator)[: len(graph.ends)]
    return Graph(graph.nodes, free[chosen], graph.edges[: len(chosen)])
