//! The examples of fencing, and the floor.

use tenure::fence::{Fence, Mark};
use tenure::{ClaimId, Token};
use tenure_testkit::redis::{RedisOptions, RedisServer};

#[path = "../../examples/fence_file.rs"]
mod fence_file;
#[path = "../../examples/fence_http.rs"]
mod fence_http;
#[path = "../../examples/fence_memory.rs"]
mod fence_memory;
#[path = "../../examples/fence_postgres.rs"]
#[allow(dead_code, reason = "its address comes from the test")]
mod fence_postgres;
#[path = "../../examples/fence_redis.rs"]
#[allow(dead_code, reason = "its address comes from the test")]
mod fence_redis;
#[path = "../../examples/fence_sqlite.rs"]
mod fence_sqlite;

#[test]
fn the_examples_refuse_a_late_write() {
    fence_memory::main().unwrap();
    fence_file::main().unwrap();
    fence_sqlite::main().unwrap();
    fence_http::main().unwrap();
}

#[test]
fn the_example_refuses_a_late_write_on_redis() {
    let server = RedisServer::start(RedisOptions::default());
    pollster::block_on(fence_redis::late_write(&server.url())).unwrap();
}

#[test]
fn the_example_refuses_a_late_write_on_postgres() {
    let url = tenure_testkit::postgres::shared();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(fence_postgres::late_write("memory:", &url)).unwrap();
}

/// The store has lost its memory and its time, so that its tokens are behind those of the resource.
#[test]
fn a_refusal_is_the_floor_of_the_next_claim() {
    pollster::block_on(async {
        let tenure = tenure::connect("memory:").await.unwrap();
        let mutex = tenure.mutex("x");
        let lease = mutex.acquire().await.unwrap();
        let mut fence = Fence::default();
        // Half an hour ahead: more than the clocks of two servers differ, less than what is refused as absurd.
        let ahead = Token::new(lease.token().get() + 1_800_000_000);
        fence.check(Mark::new(ahead, ClaimId::new(1))).unwrap();

        let stale = fence.check(&lease).unwrap_err();
        assert_eq!(stale.max, ahead);
        lease.release().await.unwrap();
        tenure.raise_floor("x", stale.max).unwrap();
        let lease = mutex.acquire().await.unwrap();
        assert!(lease.token() > ahead);
        fence.check(&lease).unwrap();
        // A floor is never lowered.
        tenure.raise_floor("x", Token::new(1)).unwrap();
        lease.release().await.unwrap();
        assert!(mutex.acquire().await.unwrap().token() > ahead);
    });
}
