//! Redis: check and write are one Lua script. With a server: `REDIS=redis://host cargo run --example fence_redis`.

use redis::{Connection, Script};
use tenure::fence::redis::{script, stale};
use tenure::fence::{Mark, Stale};

/// Sets a balance, unless a later lease has been here. The keys share a hash slot.
fn set(server: &mut Connection, mark: Mark, balance: i64) -> redis::RedisResult<Result<(), Stale>> {
    let script = Script::new(&script(
        "local max = tenure_fence(KEYS[1], ARGV[1], ARGV[2], 'write')
         if max then return max end
         redis.call('SET', KEYS[2], ARGV[3])
         return false",
    ));
    let mut call = script.key("{account/7}:fence");
    call.key("{account/7}").arg(mark.token().get()).arg(mark.claim().to_string()).arg(balance);
    let answer: Option<String> = call.invoke(server)?;
    Ok(stale(answer.as_deref()))
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS").unwrap_or_else(|_| "redis://127.0.0.1".to_owned());
    late_write(&url).await
}

/// A paused holder writes too late.
pub(crate) async fn late_write(url: &str) -> Result<(), Box<dyn std::error::Error>> {
    let mut server = redis::Client::open(url)?.get_connection()?;

    // A holder is paused. An operator breaks its hold, and somebody else gets the lock.
    let tenure = tenure::connect("memory:").await?;
    let paused = tenure.mutex("billing").acquire().await?;
    tenure.break_hold("billing", paused.token(), true).await?;
    let next = tenure.mutex("billing").acquire().await?;
    set(&mut server, Mark::from(&next), 20)??;

    // The paused one wakes up and writes.
    let stale = set(&mut server, Mark::from(&paused), 10)?.expect_err("it is late");
    assert_eq!(stale.max, next.token());
    assert_eq!(redis::cmd("GET").arg("{account/7}").query::<i64>(&mut server)?, 20);

    tenure.raise_floor("billing", stale.max)?;
    Ok(())
}
