import numpy as np
import pytest
import torch

from probseq_apps.data.molecules import Graph, adjacency, laplacian_identifiers, swap_edges

# A chain of six with a branch: no automorphism, no repeated eigenvalue.
BRANCHED = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (2, 6)]


def graph_of(edges, size):
    number = len(edges)
    nodes = torch.arange(2.0 * size).reshape(size, 2)
    ends = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2)
    return Graph(nodes, ends, torch.arange(3.0 * number).reshape(number, 3))


def normalised_laplacian(edges, size):
    matrix = np.zeros((size, size))
    degrees = [sum(node in edge for edge in edges) for node in range(size)]
    for node in range(size):
        matrix[node, node] = float(degrees[node] > 0)
    for u, v in edges:
        matrix[u, v] = matrix[v, u] = -1.0 / np.sqrt(degrees[u] * degrees[v])
    return matrix


@pytest.mark.parametrize(
    ("edges", "size"),
    [(BRANCHED, 7), ([(0, 1), (1, 2), (2, 0)], 3), ([(0, 3)], 5), ([], 1), ([], 3)],
)
def test_identifiers_are_orthonormal_eigenvectors_of_the_laplacian(edges, size):
    found = laplacian_identifiers(graph_of(edges, size)).numpy()
    np.testing.assert_allclose(found @ found.T, np.eye(size), atol=1e-12)
    laplacian = normalised_laplacian(edges, size)
    values = np.diag(found.T @ laplacian @ found)
    np.testing.assert_allclose(laplacian @ found, found * values, atol=1e-12)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(laplacian), atol=1e-12)


def test_identifiers_follow_the_nodes_when_these_are_renumbered():
    order = torch.randperm(7, generator=torch.Generator().manual_seed(3))
    place = order.argsort().tolist()  # the new number of each node
    graph = graph_of(BRANCHED, 7)
    renumbered = graph_of([(place[v], place[u]) for u, v in reversed(BRANCHED)], 7)
    expected = laplacian_identifiers(graph)[order]
    torch.testing.assert_close(laplacian_identifiers(renumbered), expected, rtol=0, atol=1e-10)


def test_an_antisymmetric_eigenvector_starts_positive():
    # Eigenvectors of an edge are (1, 1) and (1, -1), whose cubes sum to zero.
    found = laplacian_identifiers(graph_of([(0, 1)], 2))
    assert found[0, 1] == pytest.approx(0.5**0.5)
    assert found[1, 1] == pytest.approx(-(0.5**0.5))


def test_swapping_keeps_nodes_and_the_number_of_edges_and_none_of_the_edges():
    graph = graph_of(BRANCHED, 7)
    for seed in range(20):
        swapped = swap_edges(graph, torch.Generator().manual_seed(seed))
        assert torch.equal(swapped.nodes, graph.nodes)
        assert torch.equal(swapped.edges, graph.edges)
        pairs = [tuple(sorted(pair)) for pair in swapped.ends.tolist()]
        assert len(set(pairs)) == len(BRANCHED)
        assert all(u != v for u, v in pairs)
        assert not set(pairs) & set(BRANCHED)
        assert adjacency(swapped).sum() == adjacency(graph).sum()


def test_every_free_pair_of_nodes_is_equally_likely():
    graph = graph_of(BRANCHED, 7)
    generator = torch.Generator().manual_seed(0)
    repeats = 3000
    counts = sum(adjacency(swap_edges(graph, generator)) for _ in range(repeats)).numpy()
    free = np.triu(np.ones((7, 7)), 1) - np.triu(adjacency(graph).numpy())
    share = 6 / 15  # six edges on fifteen free pairs
    error = np.sqrt(share * (1 - share) / repeats)
    np.testing.assert_allclose(counts[free > 0] / repeats, share, atol=5 * error)
    assert (counts[adjacency(graph).numpy() > 0] == 0).all()


def test_a_graph_with_few_free_pairs_gets_what_there_are():
    square = [(0, 1), (1, 2), (2, 3), (3, 0)]
    swapped = swap_edges(graph_of(square, 4), torch.Generator())
    assert sorted(map(tuple, swapped.ends.tolist())) == [(0, 2), (1, 3)]
    assert len(swapped.edges) == 2
    triangle = swap_edges(graph_of([(0, 1), (1, 2), (2, 0)], 3), torch.Generator())
    assert triangle.ends.shape == (0, 2)
    assert triangle.edges.shape == (0, 3)


def test_a_seed_swaps_the_same_edges_again():
    first, again, other = (
        swap_edges(graph_of(BRANCHED, 7), torch.Generator().manual_seed(seed)).ends
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
