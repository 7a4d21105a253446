//! PostgreSQL: locks by the connections of a pool that the program already has.
//!
//! `DATABASE_URL=postgres://me:secret@host/app cargo run -p tenure --features postgres --example postgres_pool`

use tenure::Tenure;
use tenure::postgres::deadpool_postgres::{Manager, Pool};
use tenure::postgres::{Config, tokio_postgres};

/// What an example may fail with.
type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Locks, with at most two of the pool's connections at a time.
pub(crate) async fn lock(pool: Pool) -> Outcome {
    let config = Config::from_pool(pool)?.with("connections", "2")?;
    let tenure = Tenure::new(config).await?;
    let lease = tenure.mutex("billing/4711").acquire().await?;
    println!("token {}", lease.token());
    lease.release().await?;
    tenure.close().await;
    Ok(())
}

#[tokio::main]
async fn main() -> Outcome {
    let url = std::env::var("DATABASE_URL")?;
    let manager = Manager::new(url.parse()?, tokio_postgres::NoTls);
    lock(Pool::builder(manager).max_size(8).build()?).await
}
