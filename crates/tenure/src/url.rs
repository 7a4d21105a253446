//! Which engine a URL names.

use tenure_core::engine::Connect;
use tenure_core::error::nearest;
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
    Known { engine: "redlock", schemes: &["redlock", "redlocks"], is_built: cfg!(feature = "redlock") },
];

/// Returns what connects with the engine that a URL names. Nothing is tried yet.
///
/// # Examples
/// ```
/// # fn main() -> tenure::Result<()> { pollster::block_on(async {
/// let engine = tenure::connector("memory:connector-example")?;
/// let tenure = tenure::Tenure::connect_with(engine, tenure::Settings::new()).await?;
/// # drop(tenure);
/// # Ok(()) }) }
/// ```
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
        _ if is_of(scheme, "redis") => Ok(tenure_redis::Config::parse(url)?.into()),
        #[cfg(feature = "redlock")]
        _ if is_of(scheme, "redlock") => Ok(tenure_redlock::Config::parse(url)?.into()),
        #[cfg(feature = "zookeeper")]
        _ if is_of(scheme, "zookeeper") => Ok(tenure_zookeeper::Config::parse(url)?.into()),
        _ => match ENGINES.iter().find(|known| known.schemes.contains(&scheme)) {
            Some(Known { engine, .. }) => Err(Error::new(
                ErrorKind::Unsupported,
                "connect",
                format!("this build has no engine {engine:?}"),
            )
            .with_hint(format!("build tenure with the feature {engine:?}"))),
            None => Err(unknown(url, &format!("there is no engine {scheme:?}"))),
        },
    }
}

#[cfg(any(feature = "etcd", feature = "postgres", feature = "redlock", feature = "zookeeper"))]
fn is_of(scheme: &str, engine: &str) -> bool {
    ENGINES.iter().any(|known| known.engine == engine && known.schemes.contains(&scheme))
}

fn unknown(url: &str, why: &str) -> Error {
    let known: Vec<&str> =
        ENGINES.iter().filter(|known| known.is_built).flat_map(|known| known.schemes).copied().collect();
    let error =
        Error::new(ErrorKind::Invalid, "connect", format!("{:?} names no engine: {why}", redact(url)));
    let (before, behind) = url.split_once(':').unwrap_or((url, ""));
    if let Some(meant) = nearest(before, &known) {
        return error.with_hint(format!("did you mean `{meant}:`?"));
    }
    // A host alone, as other tools take it. Where there is an `@`, it may be a password.
    if !url.contains(['@', '/', '?'])
        && before.contains('.')
        && behind.bytes().all(|byte| byte.is_ascii_digit())
    {
        return error.with_hint(format!(
            "write the engine before it: `redis://{url}`, `etcd://{url}`, `postgres://{url}/database`"
        ));
    }
    let known: Vec<String> = known.iter().map(|scheme| format!("`{scheme}:`")).collect();
    error.with_hint(format!("this build knows {}", known.join(", ")))
}

/// Returns a URL as it may be shown: without the password, and without what stands for one in its settings.
///
/// A password that should have been encoded may hold any character, and a text with a typing error is still somebody's
/// URL. So whatever lies between the first `:` behind the scheme and the last `@` is hidden, be it more than a password.
///
/// # Examples
/// ```
/// assert_eq!(tenure::redact("redis://me:hunter2@db.example.org"), "redis://me:***@db.example.org");
/// ```
pub fn redact(url: &str) -> String {
    // A path, not a server: its `@` and `:` are names of directories.
    if url.starts_with("local:/") {
        return url.to_owned();
    }
    // What comes before a `://` in a password is no scheme.
    let scheme = url.split_once("://").map(|(scheme, _)| scheme).filter(|scheme| is_scheme(scheme));
    let (scheme, rest) = url.split_at(scheme.map_or(0, |scheme| scheme.len() + "://".len()));
    let shown = match rest.rsplit_once('@') {
        Some((login, hosts)) => match login.split_once(':') {
            Some((user, _)) => format!("{scheme}{user}:***@{hosts}"),
            None => url.to_owned(),
        },
        None => url.to_owned(),
    };
    if scheme.is_empty() { hide_words(&shown) } else { hide_settings(&shown) }
}

fn is_scheme(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-._".contains(&byte))
}

/// Hides the settings of a URL that stand for a password, and what belongs to them if they hold an `&`.
fn hide_settings(url: &str) -> String {
    let Some((shown, query)) = url.split_once('?') else { return url.to_owned() };
    let mut parts: Vec<String> = Vec::new();
    let mut is_hidden = false;
    for part in query.split('&') {
        match part.split_once('=') {
            None if is_hidden => continue,
            Some((key, _)) if is_secret(key) => {
                is_hidden = true;
                parts.push(format!("{key}=***"));
            }
            _ => {
                is_hidden = false;
                parts.push(part.to_owned());
            }
        }
    }
    format!("{shown}?{}", parts.join("&"))
}

/// Hides what follows `password=` in a text that is no URL: where the value ends depends on whose text it is.
fn hide_words(text: &str) -> String {
    let at = text.match_indices('=').map(|(at, _)| at).find(|at| {
        is_secret(text[..*at].trim_end().rsplit([' ', '?', '&', ';', ',']).next().unwrap_or_default())
    });
    at.map_or(text.to_owned(), |at| format!("{}=***", &text[..at]))
}

fn is_secret(key: &str) -> bool {
    let key = key.to_lowercase();
    ["pass", "pwd", "secret", "token"].iter().any(|word| key.contains(word))
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
            ("local:/home/me@work/a:b@c", "local:/home/me@work/a:b@c"),
            ("postgres://u:hun/ter2@127.0.0.1:1/db", "postgres://u:***@127.0.0.1:1/db"),
            ("redys://me:hun?ter2@host", "redys://me:***@host"),
            ("redis://h:6379/0?prefix=a@b", "redis://h:***@b"),
            ("me:hunter2@tcp(host)/db", "me:***@tcp(host)/db"),
            ("host=x password=hunter2 dbname=y", "host=x password=***"),
            ("password = 'hunter 2' host=x", "password =***"),
            ("me:a://hunter2@host", "me:***@host"),
            (
                "redis+sentinel://h/m?sentinel_password=hun&ter2&db=1",
                "redis+sentinel://h/m?sentinel_password=***&db=1",
            ),
            ("postgres://h/db?PASSWORD=hunter2", "postgres://h/db?PASSWORD=***"),
            ("etcds://me:hunter2@h1:2379,h2/locks?ca=a.pem", "etcds://me:***@h1:2379,h2/locks?ca=a.pem"),
        ] {
            assert_eq!(redact(url), shown);
        }
        let error = connector("nosuch://me:hunter2@h").expect_err("no such engine");
        assert!(!format!("{error} {error:?}").contains("hunter2"));
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let error = pollster::block_on(crate::connect("nosuch://me:hunter2@h")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }

    #[test]
    fn no_password_is_shown_whatever_it_holds() {
        const SPECIAL: &[char] = &[
            '/', '?', '@', ':', '#', '&', '=', '%', ' ', '\'', '"', '\\', '[', ']', ',', '+', '\u{e4}', '\n',
        ];
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        let schemes: Vec<_> =
            ENGINES.iter().flat_map(|known| known.schemes).filter(|scheme| **scheme != "local").collect();
        for round in 0..5000 {
            // No part of it is in the rest of the URL, so that a part that is shown is found.
            let mut part = || {
                (0..random.usize(1..4)).map(|_| *random.choice(SPECIAL).expect("some")).collect::<String>()
            };
            let password = format!("QZ{}XJ{}QZ", part(), part());
            let scheme = schemes[round % schemes.len()];
            let scheme = if round % 7 == 0 { "redys" } else { scheme };
            let user = if round % 3 == 0 { "" } else { "me" };
            let tail =
                ["", "/db", "/db?prefix=x", "?replicas=many", ":notaport", ",h2:1/0"][random.usize(..6)];
            for url in [
                format!("{scheme}://{user}:{password}@127.0.0.1{tail}"),
                format!("{scheme}:{user}:{password}@127.0.0.1{tail}"),
                format!("{user}:{password}@127.0.0.1{tail}"),
            ] {
                let error =
                    connector(&url).err().map(|error| format!("{error} {error:?} {:?}", error.hint()));
                for shown in [Some(redact(&url)), error].into_iter().flatten() {
                    let is_shown = shown.contains("QZ") || shown.contains("XJ");
                    assert!(!is_shown, "seed {seed}: {url:?} is shown as {shown:?}");
                }
            }
        }
    }

    #[test]
    fn a_url_without_an_engine_is_refused_with_the_engines_there_are() {
        for (url, hint) in [
            ("", "`memory:`"),
            ("carrier-pigeon:", "`memory:`"),
            ("memry:", "did you mean `memory:`?"),
            ("memory", "did you mean `memory:`?"),
            ("127.0.0.1:6379", "`redis://127.0.0.1:6379`"),
            ("db.example.org", "`redis://db.example.org`"),
        ] {
            let error = connector(url).expect_err("no engine");
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(error.hint().is_some_and(|found| found.contains(hint)), "{url}: {:?}", error.hint());
        }
    }
}
