use tenure_core::error::ErrorKind;

use super::*;

fn address(host: &str, port: u16) -> HostPort {
    HostPort { host: host.to_owned(), port }
}

#[test]
fn every_url_names_its_servers() {
    for (url, addresses, is_tls) in [
        ("etcd://h", vec![address("h", 2379)], false),
        ("etcd://h/", vec![address("h", 2379)], false),
        ("etcds://10.0.0.1:7000", vec![address("10.0.0.1", 7000)], true),
        ("etcd://u:p@[::1]:7/a?", vec![address("::1", 7)], false),
        (
            "etcd://h1,h2:7,[fe80::1]",
            vec![address("h1", 2379), address("h2", 7), address("fe80::1", 2379)],
            false,
        ),
    ] {
        let config = Config::parse(url).unwrap();
        assert_eq!((config.addresses, config.is_tls), (addresses, is_tls), "{url}");
    }
}

#[test]
fn settings_are_read_and_decoded() {
    let plain = Config::parse("etcd://h").unwrap();
    assert_eq!((plain.prefix.as_str(), plain.login, plain.ca, plain.identity), ("tenure/", None, None, None));
    for (path, prefix) in [("/", ""), ("/a", "a/"), ("/a/b/", "a/b/"), ("/%2Fa%20b", "/a b/")] {
        assert_eq!(Config::parse(&format!("etcd://h{path}")).unwrap().prefix, prefix);
    }
    let config = Config::parse("etcds://me:p%40%2F%3fx:y@h?ca=/a%20b.pem&cert=c.pem&key=k.pem").unwrap();
    assert_eq!(config.login, Some(Login { user: "me".to_owned(), password: "p@/?x:y".to_owned() }));
    assert_eq!(config.ca, Some("/a b.pem".into()));
    assert_eq!(config.identity, Some(Identity { certificate: "c.pem".into(), key: "k.pem".into() }));
}

// page: docs/engines/etcd.md "| `1s` | that of the servers (`--election-timeout`), up to `50s`, as `5s` or `500ms`"
#[test]
fn the_election_timeout_is_a_second_or_up_to_50() {
    let timeout =
        |query: &str| Config::parse(&format!("etcd://h{query}")).map(|config| config.election_timeout);
    assert_eq!(timeout("").unwrap(), Duration::from_secs(1));
    for (text, millis) in [("5s", 5_000), ("500ms", 500), ("50s", 50_000)] {
        assert_eq!(timeout(&format!("?election_timeout={text}")).unwrap(), Duration::from_millis(millis));
    }
    assert!(timeout("?election_timeout=50001ms").is_err());
}

#[test]
fn anything_else_is_refused_with_a_hint() {
    let long = format!("etcd://h/{}", "x".repeat(PREFIX_BYTES_MAX + 1));
    let many = format!("etcd://{}", vec!["h"; HOSTS_MAX + 1].join(","));
    for url in [
        "etcd:",
        "etcd://",
        "etcd:///a",
        "http://h",
        "etcd://h,",
        "etcd://a b",
        "etcd://h:0",
        "etcd://h:x",
        "etcd://::1",
        "etcd://[::1",
        "etcd://[x]",
        "etcd://user@h",
        "etcd://:secret@h",
        "etcd://h?ca=a",
        "etcds://h?ca=",
        "etcds://h?ca=a&ca=b",
        "etcds://h?cert=a",
        "etcds://h?key=a",
        "etcd://h?prefix=a",
        "etcd://h?layout=tenure&layout=tenure",
        "etcd://h?election_timeout=51s",
        "etcd://h/%2",
        "etcd://h/%ff",
        "etcd://h/%0a",
        "etcd://h%2Fx",
        &long,
        &many,
    ] {
        let error = Config::parse(url).expect_err(url);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
        assert!(error.hint().is_some(), "{url}");
    }
}

#[test]
fn no_password_is_shown() {
    for url in [
        "etcd://user:secret",
        "etcd://user:secret/x@h",
        "etcd://user:secret?x@h",
        "etcd://user:a?secret",
        "etcd://user:%secret@h",
        "etcd://user:secret@h?secret=1",
        "etcd://user:secret@h:secret",
    ] {
        let error = Config::parse(url).expect_err(url);
        let shown = format!("{error} {error:?} {:?}", error.hint());
        assert!(!shown.contains("secret"), "{url}: {shown}");
    }
    let config = Config::parse("etcd://user:secret@h").unwrap();
    assert!(!format!("{config:?}").contains("secret"));
}
