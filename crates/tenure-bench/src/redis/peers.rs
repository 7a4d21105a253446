//! The locks that ours is compared with.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Script, Value};
use tenure_core::model::claim::{Claim, ClaimId, ClientId, Label, Name, Terms};
use tenure_core::model::token::Token;

use super::{Done, Tally};

const TTL: Duration = Duration::from_secs(30);

/// One user of rslock.
pub(super) async fn use_rslock(
    manager: rslock::LockManager,
    name: String,
    user: usize,
    tally: Arc<Tally>,
) -> Done {
    loop {
        let lock = manager.acquire(name.as_str(), TTL).await?;
        tally.held_by(user);
        lock.release().await;
    }
}

/// The scripts of our own engine, called by nothing but a connection: `names` in each call.
pub(super) async fn call_scripts(
    mut connection: MultiplexedConnection,
    names: Vec<String>,
    user: usize,
    tally: Arc<Tally>,
) -> Done {
    let terms = Arc::new(Terms::of_mutex(Label::new("host", std::process::id(), "program", "")));
    let mut claims = Vec::with_capacity(names.len());
    for (number, name) in names.iter().enumerate() {
        claims.push(Claim {
            resource: Name::new(name)?,
            id: ClaimId::new((user as u128) << 64 | number as u128),
            client: ClientId::new(1),
            terms: terms.clone(),
            wait: true,
            floor: Token::ZERO,
            floor_forced: false,
            may_be_known: false,
        });
    }
    // The server has it already if the engine was measured before.
    drop(ask(&mut connection, &tenure_redis::raw::load()).await);
    let [claim, release] = tenure_redis::raw::claim_and_release(&claims)?;
    loop {
        let granted = ask(&mut connection, &claim).await?;
        if !granted[1..].iter().all(|answer| matches!(answer, Value::Int(_))) {
            return Err("a claim was not granted".into());
        }
        let released = ask(&mut connection, &release).await?;
        if !released[1..].iter().all(|answer| *answer == Value::Int(1)) {
            return Err("a claim was not released".into());
        }
        names.iter().for_each(|_| tally.held_by(user));
    }
}

async fn ask(connection: &mut MultiplexedConnection, cmd: &Cmd) -> redis::RedisResult<Vec<Value>> {
    cmd.query_async(connection).await
}

/// A lock of the kind of python-redis-lock: `SET NX`; a client that does not get it waits with `BLPOP` for a signal that the
/// holder pushes when it releases, and tries again.
pub(super) struct BlpopLock {
    connection: MultiplexedConnection,
    key: String,
    signal: String,
    id: String,
    release: Script,
}

impl BlpopLock {
    /// Takes a connection for itself alone, since it blocks.
    pub(super) fn new(connection: MultiplexedConnection, name: &str, id: usize) -> BlpopLock {
        let release = Script::new(
            "if redis.call('get', KEYS[1]) ~= ARGV[1] then return 1 end
            redis.call('del', KEYS[2])
            redis.call('lpush', KEYS[2], 1)
            redis.call('pexpire', KEYS[2], ARGV[2])
            redis.call('del', KEYS[1])
            return 0",
        );
        BlpopLock {
            connection,
            key: format!("lock:{name}"),
            signal: format!("lock-signal:{name}"),
            id: id.to_string(),
            release,
        }
    }

    async fn acquire(&mut self) -> redis::RedisResult<()> {
        loop {
            let mut set = redis::cmd("SET");
            set.arg(&self.key).arg(&self.id).arg("NX").arg("EX").arg(TTL.as_secs());
            if set.query_async::<Option<Value>>(&mut self.connection).await?.is_some() {
                return Ok(());
            }
            let mut wait = redis::cmd("BLPOP");
            wait.arg(&self.signal).arg(TTL.as_secs());
            wait.query_async::<Value>(&mut self.connection).await?;
        }
    }

    async fn release(&mut self) -> redis::RedisResult<()> {
        let mut call = self.release.key(&self.key);
        call.key(&self.signal).arg(&self.id).arg(TTL.as_millis() as u64);
        call.invoke_async(&mut self.connection).await
    }
}

/// One user of the lock with `BLPOP`.
pub(super) async fn use_blpop(mut lock: BlpopLock, user: usize, tally: Arc<Tally>) -> Done {
    loop {
        lock.acquire().await?;
        tally.held_by(user);
        lock.release().await?;
    }
}
