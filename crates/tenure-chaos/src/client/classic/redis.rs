//! The lock of Redis' own pages for one server: `SET NX PX`, and a script that deletes what is still its own.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use redis::{Client, Connection, RedisResult, Script};

use super::Lock;

/// How long an answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(1);
const DELETE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";
const PROLONG: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end return 0";

struct Expiring {
    connection: Connection,
    url: String,
    ttl_ms: u64,
    value: String,
    has_watchdog: bool,
    /// Ended by its end.
    watchdog: Option<Sender<()>>,
}

pub(super) fn connect(url: &str, ttl: Duration, has_watchdog: bool) -> Result<Box<dyn Lock>, String> {
    // Without the settings of our own.
    let url = url.split('?').next().unwrap_or(url).to_owned();
    let connection = open(&url).map_err(|error| error.to_string())?;
    let ttl_ms = ttl.as_millis() as u64;
    Ok(Box::new(Expiring { connection, url, ttl_ms, value: String::new(), has_watchdog, watchdog: None }))
}

fn open(url: &str) -> RedisResult<Connection> {
    let connection = Client::open(url)?.get_connection_with_timeout(ANSWER_MAX)?;
    connection.set_read_timeout(Some(ANSWER_MAX))?;
    Ok(connection)
}

impl Lock for Expiring {
    fn take(&mut self, name: &str) -> Result<bool, String> {
        self.value = format!("{:032x}", fastrand::u128(..));
        let mut set = redis::cmd("SET");
        set.arg(key(name)).arg(&self.value).arg("NX").arg("PX").arg(self.ttl_ms);
        let answer: RedisResult<Option<String>> = set.query(&mut self.connection);
        let is_taken = answer.map_err(|error| error.to_string())?.is_some();
        if is_taken && self.has_watchdog {
            self.watchdog = Some(watch(self.url.clone(), key(name), self.value.clone(), self.ttl_ms));
        }
        Ok(is_taken)
    }

    fn let_go(&mut self, name: &str) -> Result<bool, String> {
        self.watchdog = None;
        let deleted: RedisResult<u64> =
            Script::new(DELETE).key(key(name)).arg(&self.value).invoke(&mut self.connection);
        deleted.map(|count| count > 0).map_err(|error| error.to_string())
    }
}

fn key(name: &str) -> String {
    format!("lock:{name}")
}

/// Prolongs a key three times in a ttl until it is not wanted any more.
fn watch(url: String, key: String, value: String, ttl_ms: u64) -> Sender<()> {
    let (wanted, ended) = channel();
    std::thread::spawn(move || {
        let mut connection = None;
        while ended.recv_timeout(Duration::from_millis(ttl_ms / 3)) == Err(RecvTimeoutError::Timeout) {
            connection = connection.or_else(|| open(&url).ok());
            let Some(open) = &mut connection else { continue };
            let prolonged: RedisResult<u64> =
                Script::new(PROLONG).key(&key).arg(&value).arg(ttl_ms).invoke(open);
            if prolonged.is_err() {
                connection = None;
            }
        }
    });
    wanted
}
