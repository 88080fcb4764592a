import numpy as np
import pytest
import torch

from probseq_apps.data.graphs import (
    Graph,
    TokenLayout,
    adjacency,
    flip_signs,
    laplacian_identifiers,
    num_tokens,
    stack_tokens,
    swap_edges,
    tokenize,
    trim_tokens,
)

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


EDGES, SIZE = BRANCHED, 7
LAYOUT = TokenLayout(node_features=2, edge_features=3, identifiers=9)


def make_graph(order=tuple(range(SIZE)), edges=EDGES):
    """The same graph with its nodes numbered in another order, and its edges turned."""
    place = {node: number for number, node in enumerate(order)}
    features = torch.tensor([[node % 2, node / 7] for node in order])
    kinds = {edge: torch.eye(3)[number % 3] for number, edge in enumerate(EDGES)}
    return Graph(
        features,
        torch.tensor([[place[u], place[v]] for u, v in edges]),
        torch.stack([kinds[edge] for edge in edges]),
    )


def test_tokens_hold_features_two_identifiers_and_a_type():
    tokens = tokenize(make_graph(), LAYOUT).numpy()
    assert tokens.shape == (SIZE + 2 * len(EDGES), LAYOUT.width) == (19, 25)
    identifiers = np.zeros((SIZE, 9))
    identifiers[:, :SIZE] = laplacian_identifiers(make_graph())
    for node in range(SIZE):
        features = [node % 2, node / 7, 0, 0, 0]
        row = np.r_[features, identifiers[node], identifiers[node], 1, 0]
        np.testing.assert_allclose(tokens[node], row, atol=1e-6)
    for number, (u, v) in enumerate(EDGES):
        features = np.r_[0, 0, np.eye(3)[number % 3]]
        for place, (first, second) in ((number, (u, v)), (number + len(EDGES), (v, u))):
            row = np.r_[features, identifiers[first], identifiers[second], 0, 1]
            np.testing.assert_allclose(tokens[SIZE + place], row, atol=1e-6)


ORDER = (4, 2, 6, 0, 5, 1, 3)


def test_renumbering_the_nodes_permutes_the_tokens():
    tokens = tokenize(make_graph(), LAYOUT)
    again = tokenize(make_graph(ORDER, EDGES[::-1]), LAYOUT)
    edges = len(EDGES)
    forth = [SIZE + edges - 1 - number for number in range(edges)]
    rows = [*ORDER, *forth, *(row + edges for row in forth)]
    torch.testing.assert_close(again, tokens[rows], rtol=0, atol=1e-5)


def test_flipped_signs_leave_all_dot_products_features_and_padding_alone():
    graphs = [make_graph(), make_graph(edges=EDGES[:3])]
    tokens = stack_tokens(graphs, LAYOUT, 22)
    flipped = flip_signs(tokens, LAYOUT, torch.Generator().manual_seed(0))
    assert not torch.equal(flipped, tokens)
    assert torch.equal(flipped[..., :5], tokens[..., :5])
    assert torch.equal(flipped[..., -2:], tokens[..., -2:])
    first, second = flipped[..., 5:14], flipped[..., 14:23]
    torch.testing.assert_close(
        first @ second.mT, tokens[..., 5:14] @ tokens[..., 14:23].mT, rtol=0, atol=1e-6
    )
    assert not flipped[0, 19:].any()
    # A node has its identifier twice, with the same signs.
    assert torch.equal(first[:, :SIZE], second[:, :SIZE])


def test_each_graph_and_eigenvector_has_a_sign_of_its_own_and_both_signs_occur():
    tokens = torch.ones(200, 1, LAYOUT.width)
    signs = flip_signs(tokens, LAYOUT, torch.Generator().manual_seed(0))[:, 0, 5:14]
    assert set(signs.unique().tolist()) == {-1.0, 1.0}
    # Means of 200 independent signs, by eigenvector and between eigenvectors.
    assert signs.mean(0).abs().max() < 5 / 200**0.5
    assert ((signs.mT @ signs / 200) - torch.eye(9)).abs().max() < 5 / 200**0.5


def test_padding_that_all_graphs_share_is_cut_off():
    tokens = stack_tokens([make_graph(), make_graph(edges=EDGES[:2])], LAYOUT, 30)
    assert num_tokens(make_graph()) == 19
    assert torch.equal(trim_tokens(tokens), tokens[:, :19])
    assert trim_tokens(torch.zeros(2, 4, 5)).shape == (2, 1, 5)


def test_a_graph_that_does_not_fit_the_layout_is_refused():
    with pytest.raises(ValueError, match="at most 6 nodes, got 2, 3 and 7"):
        tokenize(make_graph(), TokenLayout(2, 3, 6))
    with pytest.raises(ValueError, match="must have 4 node features"):
        tokenize(make_graph(), TokenLayout(4, 3, 9))
