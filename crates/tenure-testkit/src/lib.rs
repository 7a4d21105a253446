//! What the tests of tenure share: directories that go away, processes that are watched and ended by pid, and
//! real servers that can be broken.
//!
//! A server listens on 127.0.0.1 only, on a port from 20000 on, and keeps everything in a directory of its own.
//! One that cannot start is a failure, not a skip: the test panics with the last lines of the server's log.
//! However the test process ends, a small process ([`Site`]) ends its servers and removes their files.
//!
//! What a third-party engine's tests need as well (a second process, recorded histories and who judges them) is
//! in `tenure-conformance`, since that is published and this is not.

mod account;
mod certificates;
mod clock;
mod directory;
pub mod etcd;
pub mod foreign;
pub mod mariadb;
pub mod nginx;
mod port;
pub mod postgres;
mod process;
pub mod prometheus;
mod proxy;
pub mod redis;
mod resp;
mod run;
mod server;
mod site;
mod sql;
pub mod zookeeper;

pub use clock::ServerClock;
pub use directory::TestDirectory;
pub use port::Port;
pub use process::{PATIENCE, finish, is_alive, signal, state, wait_for};
pub use proxy::{Loss, Proxy};
pub use resp::{Connection, Reply};
pub use run::shared;
pub use server::{READY_MAX, Server};
pub use site::Site;
pub use sql::{SqlAnswer, SqlConnection, SqlError, SqlValue};
