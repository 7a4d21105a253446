//! The wire: connections, calls, watches and the leases of etcd.

pub(crate) mod endpoints;
pub(crate) mod etcd_leases;
pub(crate) mod lease;
pub(crate) mod proto;
pub(crate) mod rpc;
pub(crate) mod watch;
