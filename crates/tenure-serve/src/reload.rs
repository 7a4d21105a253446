//! The file of tokens, followed.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::Notify;

use crate::access::file;
use crate::app::App;
use crate::limits::RELOAD_EVERY;
use crate::pause::pause;

/// Looks at the file every 2 s, and when it is told to. A bad file leaves the one before in force, and is told of once.
pub(crate) async fn follow(path: PathBuf, app: Arc<App>, asked: Arc<Notify>) {
    let mut known = file::version(&path);
    loop {
        let is_asked = tokio::select! {
            () = asked.notified() => true,
            () = pause(RELOAD_EVERY) => false,
        };
        // Read before the file: what is written meanwhile is seen the next time.
        let version = file::version(&path);
        if version == known && !is_asked {
            app.access.look_again();
            continue;
        }
        known = version;
        match file::load(&path) {
            Ok(table) => {
                tracing::warn!(target: "tenure::audit", entries = table.len(), "the file of tokens is in force");
                app.access.replace(table);
                app.health.tokens(None);
                app.counting.reloaded("done");
            }
            Err(error) => {
                tracing::error!(target: "tenure::audit", %error, "the file of tokens is not used; the one before is");
                app.health.tokens(Some(error));
                app.counting.reloaded("failed");
            }
        }
    }
}
