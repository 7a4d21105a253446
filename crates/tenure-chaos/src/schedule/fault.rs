//! What may go wrong.

use std::fmt;
use std::time::Duration;

/// The kinds of faults, as the command line names them.
pub(crate) const KINDS: [&str; 20] = [
    "stop", "kill", "cut", "net", "one", "shard", "restart", "hang", "failover", "lagging", "handover",
    "link", "lag", "slots", "disk", "kick", "scripts", "flush", "compact", "clock",
];

/// One thing that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// SIGSTOP, and SIGCONT after a while.
    Stop { client: usize, period: Duration },
    /// SIGKILL; a new process takes its place at once.
    Kill { client: usize },
    /// Connections are reset; the client may connect anew.
    Cut { client: usize, reach: Reach },
    /// The client's network is in trouble for a while.
    Trouble { client: usize, reach: Reach, trouble: Trouble, period: Duration },
    /// SIGKILL, and a start with the same files.
    Restart { server: usize },
    /// SIGSTOP of a server, and SIGCONT after a while: it keeps its connections and says nothing.
    Hang { server: usize, period: Duration },
    /// SIGKILL of the server in charge (of a resource, where several are in charge). It comes back when another is in charge.
    Failover { of: usize },
    /// The same, and its replicas lack what it did last.
    LaggingFailover { by: Duration },
    /// Another server is put in charge, while the old one is well.
    HandOver { of: usize },
    /// A server, or the one in charge, does not reach the others for a while, nor they it; clients reach it.
    CutOff { server: Option<usize>, period: Duration },
    /// What the server in charge writes does not reach its replicas for a while.
    LeaveBehind { period: Duration },
    /// A hash slot with keys moves to another node; it takes a while between two nodes.
    MoveSlot { of: usize, period: Duration },
    /// The disk of a server is full for a while.
    FillDisk { period: Duration },
    /// Servers close connections, either those for messages or the others.
    Kick { messages: bool },
    /// Servers forget all scripts and functions.
    ForgetScripts,
    /// A server forgets everything.
    ForgetAll,
    /// Old revisions are forgotten, and files written anew.
    Compact,
    /// A server's time of day is set ahead, and stays so.
    SetAhead { server: usize, by: Duration },
    /// A server's time of day is set back, and stays so.
    SetBack { server: usize, by: Duration },
}

/// Which connections of a client are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    All,
    /// Those to one server.
    Address(usize),
    /// One of those that there are then, counted through all servers.
    Connection(usize),
}

/// What a network does to one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Everything takes longer, each way.
    Delay(Duration),
    /// Requests arrive, and nothing comes back.
    LosesReplies,
    /// Nothing arrives; what was asked before is answered.
    LosesRequests,
    /// Nothing arrives either way, and connections stay open.
    Silent,
    /// What is on its way arrives late, maybe after what is sent later on another connection.
    HoldsBack,
    /// New connections are refused; those that there are go on.
    Refuses,
}

impl Fault {
    /// Its kind, as the command line names it.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Fault::Stop { .. } => "stop",
            Fault::Kill { .. } => "kill",
            Fault::Cut { reach: Reach::All, .. } => "cut",
            Fault::Trouble { reach: Reach::All, .. } => "net",
            Fault::Cut { reach: Reach::Address(_), .. } | Fault::Trouble { reach: Reach::Address(_), .. } => {
                "shard"
            }
            Fault::Cut { reach: Reach::Connection(_), .. }
            | Fault::Trouble { reach: Reach::Connection(_), .. } => "one",
            Fault::Restart { .. } => "restart",
            Fault::Hang { .. } => "hang",
            Fault::Failover { .. } => "failover",
            Fault::LaggingFailover { .. } => "lagging",
            Fault::HandOver { .. } => "handover",
            Fault::CutOff { .. } => "link",
            Fault::LeaveBehind { .. } => "lag",
            Fault::MoveSlot { .. } => "slots",
            Fault::FillDisk { .. } => "disk",
            Fault::Kick { .. } => "kick",
            Fault::ForgetScripts => "scripts",
            Fault::ForgetAll => "flush",
            Fault::Compact => "compact",
            Fault::SetAhead { .. } | Fault::SetBack { .. } => "clock",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Stop { client, period } => write!(f, "stop client {client} for {} ms", period.as_millis()),
            Fault::Kill { client } => write!(f, "kill client {client}"),
            Fault::Cut { client, reach } => write!(f, "cut {reach} of client {client}"),
            Fault::Trouble { client, reach, trouble, period } => {
                write!(f, "{reach} of client {client}: the network {trouble} for {} ms", period.as_millis())
            }
            Fault::Restart { server } => write!(f, "restart server {server}"),
            Fault::Hang { server, period } => write!(f, "hang server {server} for {} ms", period.as_millis()),
            Fault::Failover { of } => write!(f, "kill the server in charge of resource {of}"),
            Fault::LaggingFailover { by } => {
                write!(f, "kill the server in charge, {} ms after its replicas heard of it", by.as_millis())
            }
            Fault::HandOver { of } => write!(f, "put another server in charge of resource {of}"),
            Fault::CutOff { server: Some(server), period } => {
                write!(f, "cut server {server} off from the others for {} ms", period.as_millis())
            }
            Fault::CutOff { server: None, period } => {
                write!(f, "cut the server in charge off from the others for {} ms", period.as_millis())
            }
            Fault::LeaveBehind { period } => write!(f, "replicas hear nothing for {} ms", period.as_millis()),
            Fault::MoveSlot { of, period } => {
                write!(f, "move the slot of resource {of} within {} ms", period.as_millis())
            }
            Fault::FillDisk { period } => write!(f, "fill the disk for {} ms", period.as_millis()),
            Fault::Kick { messages: true } => f.write_str("servers close connections for messages"),
            Fault::Kick { messages: false } => f.write_str("servers close connections for requests"),
            Fault::ForgetScripts => f.write_str("servers forget scripts and functions"),
            Fault::ForgetAll => f.write_str("a server forgets everything"),
            Fault::Compact => f.write_str("forget old revisions, and write files anew"),
            Fault::SetAhead { server, by } => {
                write!(f, "set the clock of server {server} ahead by {} ms", by.as_millis())
            }
            Fault::SetBack { server, by } => {
                write!(f, "set the clock of server {server} back by {} ms", by.as_millis())
            }
        }
    }
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reach::All => f.write_str("all connections"),
            Reach::Address(address) => write!(f, "the connections with server {address}"),
            Reach::Connection(number) => write!(f, "one connection ({number})"),
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Delay(by) => write!(f, "delays each way by {} ms", by.as_millis()),
            Trouble::LosesReplies => f.write_str("loses replies"),
            Trouble::LosesRequests => f.write_str("loses requests"),
            Trouble::Silent => f.write_str("loses everything"),
            Trouble::HoldsBack => f.write_str("holds back what is on its way"),
            Trouble::Refuses => f.write_str("refuses new connections"),
        }
    }
}
