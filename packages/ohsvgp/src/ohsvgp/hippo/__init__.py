"""The recurrences of HiPPO: linear systems, closed forms of Fourier features, covariances.

``OnlineGP`` with ``LegS`` and its like needs none of this, since covariances come from quadrature;
this is the thesis' own route, put right, and what follows paths through several dimensions.
"""
