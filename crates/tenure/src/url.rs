//! Which engine a URL names.

use tenure_core::engine::Connect;
use tenure_core::memory::Store;
use tenure_core::{Error, ErrorKind, Result};

/// An engine, the schemes of its URLs, and whether this build has it.
struct Known {
    engine: &'static str,
    schemes: &'static [&'static str],
    is_built: bool,
}

/// The engines there are.
const ENGINES: &[Known] = &[
    Known { engine: "etcd", schemes: &["etcd", "etcds"], is_built: cfg!(feature = "etcd") },
    Known { engine: "local", schemes: &["local"], is_built: cfg!(feature = "local") },
    Known { engine: "memory", schemes: &["memory"], is_built: true },
    Known { engine: "mysql", schemes: &["mysql"], is_built: cfg!(feature = "mysql") },
    Known { engine: "postgres", schemes: &["postgres", "postgresql"], is_built: cfg!(feature = "postgres") },
    Known {
        engine: "redis",
        schemes: &[
            "redis",
            "rediss",
            "redis+unix",
            "redis+sentinel",
            "rediss+sentinel",
            "redis+cluster",
            "rediss+cluster",
        ],
        is_built: cfg!(feature = "redis"),
    },
    Known {
        engine: "zookeeper",
        schemes: &["zookeeper", "zookeepers"],
        is_built: cfg!(feature = "zookeeper"),
    },
    Known { engine: "redlock", schemes: &["redlock", "redlocks"], is_built: cfg!(feature = "redis") },
];

/// Returns what connects with the engine that a URL names. Nothing is tried yet.
///
/// # Errors
/// [`ErrorKind::Invalid`] for a URL that names no engine; [`ErrorKind::Unsupported`] for an engine that this
/// build has not.
pub fn connector(url: &str) -> Result<Connect> {
    let Some((scheme, rest)) = url.split_once(':') else {
        return Err(unknown(url, "it has no scheme"));
    };
    match scheme {
        "memory" => Ok(Store::named(rest).connector()),
        #[cfg(feature = "etcd")]
        _ if is_of(scheme, "etcd") => Ok(tenure_etcd::Config::parse(url)?.into()),
        #[cfg(feature = "local")]
        "local" => Ok(tenure_local::Config::parse(url)?.into()),
        #[cfg(feature = "mysql")]
        "mysql" => Ok(tenure_mysql::Config::parse(url)?.into()),
        #[cfg(feature = "postgres")]
        _ if is_of(scheme, "postgres") => Ok(tenure_postgres::Config::parse(url)?.into()),
        #[cfg(feature = "redis")]
        _ if is_of(scheme, "redis") || is_of(scheme, "redlock") => {
            Ok(tenure_redis::Config::parse(url)?.into())
        }
        #[cfg(feature = "zookeeper")]
        _ if is_of(scheme, "zookeeper") => Ok(tenure_zookeeper::Config::parse(url)?.into()),
        _ => match ENGINES.iter().find(|known| known.schemes.contains(&scheme)) {
            Some(Known { engine, .. }) => Err(Error::new(
                ErrorKind::Unsupported,
                "connect",
                format!("this build has no engine {engine:?}"),
            )
            .with_hint(format!("build tenure with the feature {:?}", feature_of(engine)))),
            None => Err(unknown(url, &format!("there is no engine {scheme:?}"))),
        },
    }
}

#[cfg(any(feature = "etcd", feature = "postgres", feature = "redis", feature = "zookeeper"))]
fn is_of(scheme: &str, engine: &str) -> bool {
    ENGINES.iter().any(|known| known.engine == engine && known.schemes.contains(&scheme))
}

/// Returns the feature that brings an engine. A quorum of Redis servers comes with Redis.
fn feature_of(engine: &str) -> &str {
    if engine == "redlock" { "redis" } else { engine }
}

fn unknown(url: &str, why: &str) -> Error {
    let known: Vec<String> = ENGINES
        .iter()
        .filter(|known| known.is_built)
        .flat_map(|known| known.schemes)
        .map(|scheme| format!("`{scheme}:`"))
        .collect();
    Error::new(ErrorKind::Invalid, "connect", format!("{:?} names no engine: {why}", redact(url)))
        .with_hint(format!("this build knows {}", known.join(", ")))
}

/// Returns a URL as it may be shown: without the password, and without what stands for one in its query.
pub fn redact(url: &str) -> String {
    let (before_query, query) = url.split_once('?').map_or((url, None), |(url, query)| (url, Some(query)));
    let mut shown = match before_query.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            match authority.rsplit_once('@') {
                Some((user, hosts)) => {
                    let user =
                        user.split_once(':').map_or(user.to_owned(), |(name, _)| format!("{name}:***"));
                    format!("{scheme}://{user}@{hosts}{path}")
                }
                None => before_query.to_owned(),
            }
        }
        None => before_query.to_owned(),
    };
    if let Some(query) = query {
        let parts = query.split('&').map(|part| match part.split_once('=') {
            Some((key, _)) if key.contains("pass") || key.contains("secret") || key.contains("token") => {
                format!("{key}=***")
            }
            _ => part.to_owned(),
        });
        shown = format!("{shown}?{}", parts.collect::<Vec<_>>().join("&"));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        for (url, shown) in [
            ("redis://:hunter2@h:6379/0", "redis://:***@h:6379/0"),
            ("postgres://me:hunter2@h/db", "postgres://me:***@h/db"),
            ("postgres://me:hunter@2@h/db", "postgres://me:***@h/db"),
            ("postgres://h/db?password=hunter2&x=1", "postgres://h/db?password=***&x=1"),
            ("local:/var/lib/tenure", "local:/var/lib/tenure"),
            ("etcd://h1,h2", "etcd://h1,h2"),
            ("etcds://me:hunter2@h1:2379,h2/locks?ca=a.pem", "etcds://me:***@h1:2379,h2/locks?ca=a.pem"),
        ] {
            assert_eq!(redact(url), shown);
        }
        let error = connector("nosuch://me:hunter2@h").err().expect("no such engine");
        assert!(!format!("{error} {error:?}").contains("hunter2"));
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }

    #[test]
    fn a_url_without_an_engine_is_refused_with_the_engines_there_are() {
        for url in ["", "local", "carrier-pigeon:", "redis"] {
            let error = connector(url).err().expect("no engine");
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(error.hint().is_some_and(|hint| hint.contains("`memory:`")), "{url}");
        }
    }
}
