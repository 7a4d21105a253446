//! A file: the fence is a file beside it, and what is written is written while that is locked.

use tenure::fence::File;

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::temp_dir().join(format!("tenure-example-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let fence = File::new(directory.join("report.fence"));
    let report = directory.join("report");

    // A holder is paused. An operator breaks its hold, and somebody else gets the lock.
    let tenure = tenure::connect("memory:").await?;
    let paused = tenure.mutex("billing").acquire().await?;
    tenure.break_hold("billing", paused.token(), true).await?;
    let next = tenure.mutex("billing").acquire().await?;
    fence.run("report", &next, || std::fs::write(&report, "new"))???;

    // The paused one wakes up and writes.
    let answer = fence.run("report", &paused, || std::fs::write(&report, "old"))?;
    let stale = answer.expect_err("it is late");
    assert_eq!(stale.max, next.token());
    assert_eq!(std::fs::read_to_string(&report)?, "new");

    tenure.raise_floor("billing", stale.max)?;
    std::fs::remove_dir_all(directory)?;
    Ok(())
}
