//! The example of a pool that the program already has.

use tenure::postgres::deadpool_postgres::{Manager, Pool};
use tenure::postgres::tokio_postgres::NoTls;

#[path = "../../examples/postgres_pool.rs"]
#[allow(dead_code, reason = "its address comes from the test")]
mod postgres_pool;

#[test]
fn the_example_locks_by_a_pool_of_postgres() {
    let url = tenure_testkit::postgres::shared();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let manager = Manager::new(url.parse().unwrap(), NoTls);
        let pool = Pool::builder(manager).max_size(3).build().unwrap();
        postgres_pool::lock(pool.clone()).await.unwrap();
        assert!((1..=2).contains(&pool.status().size), "{:?}", pool.status());
    });
}
