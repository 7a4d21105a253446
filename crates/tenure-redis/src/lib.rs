//! The `redis` engine: a single server, Sentinel and Cluster.
