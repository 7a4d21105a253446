//! Servers for tests that are not written in Rust: starts those that are named, prints the URL of each in a line, and ends them when its
//! input ends. `cargo run -p tenure-testkit --example stores -- redis postgres etcd`

use std::any::Any;
use std::io::{self, Read, Write};

use tenure_testkit::etcd::{EtcdOptions, EtcdServer};
use tenure_testkit::postgres::{PostgresOptions, PostgresServer};
use tenure_testkit::redis::{RedisOptions, RedisServer};
use tenure_testkit::zookeeper::{ZooKeeperOptions, ZooKeeperServer};

fn main() -> io::Result<()> {
    let mut servers: Vec<Box<dyn Any>> = Vec::new();
    for name in std::env::args().skip(1) {
        let (url, server): (String, Box<dyn Any>) = match name.as_str() {
            "redis" => {
                let server = RedisServer::start(RedisOptions::default());
                (server.url(), Box::new(server))
            }
            "postgres" => {
                let server = PostgresServer::start(&PostgresOptions::default());
                (server.url(), Box::new(server))
            }
            "etcd" => {
                let server = EtcdServer::start(&EtcdOptions::default());
                (server.url(), Box::new(server))
            }
            "zookeeper" => {
                let server = ZooKeeperServer::start(&ZooKeeperOptions::default());
                (server.url(), Box::new(server))
            }
            other => {
                let known = "redis, postgres, etcd, zookeeper";
                return Err(io::Error::other(format!("no store named {other:?}: {known}")));
            }
        };
        servers.push(server);
        writeln!(io::stdout(), "{url}")?;
    }
    io::stdout().flush()?;
    io::stdin().read_to_end(&mut Vec::new())?;
    drop(servers);
    Ok(())
}
