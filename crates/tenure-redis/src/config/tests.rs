use tenure_core::error::ErrorKind;

use super::*;

fn tcp(host: &str, port: u16) -> Address {
    Address::Tcp(host.to_owned(), port)
}

fn login(user: &str, password: &str) -> Option<Login> {
    Some(Login { user: user.to_owned(), password: password.to_owned() })
}

#[test]
fn every_form_of_url_names_its_servers() {
    let sentinel =
        |sentinels: Vec<Address>, master: &str| Topology::Sentinel { sentinels, master: master.to_owned() };
    for (url, topology, is_tls) in [
        ("redis://h", Topology::Single(tcp("h", 6379)), false),
        ("redis://h/", Topology::Single(tcp("h", 6379)), false),
        ("redis://10.0.0.1:7000/3", Topology::Single(tcp("10.0.0.1", 7000)), false),
        ("redis://[::1]", Topology::Single(tcp("::1", 6379)), false),
        ("redis://u:p@[fe80::1]:7/2?prefix=x", Topology::Single(tcp("fe80::1", 7)), false),
        ("rediss://h:1", Topology::Single(tcp("h", 1)), true),
        ("redis+unix:///a/b%20c.sock", Topology::Single(Address::Unix("/a/b c.sock".into())), false),
        ("redis+unix://:p@/a.sock?db=2", Topology::Single(Address::Unix("/a.sock".into())), false),
        (
            "redis+sentinel://h1,h2:7,[::1]/m",
            sentinel(vec![tcp("h1", 26379), tcp("h2", 7), tcp("::1", 26379)], "m"),
            false,
        ),
        ("rediss+sentinel://h1/my.master", sentinel(vec![tcp("h1", 26379)], "my.master"), true),
        ("redis+cluster://h1,h2:7", Topology::Cluster(vec![tcp("h1", 6379), tcp("h2", 7)]), false),
        ("rediss+cluster://h1/", Topology::Cluster(vec![tcp("h1", 6379)]), true),
    ] {
        let config = Config::parse(url).unwrap();
        assert_eq!((config.topology, config.is_tls), (topology, is_tls), "{url}");
    }
}

#[test]
fn settings_are_read_and_decoded() {
    let plain = Config::parse("redis://h").unwrap();
    assert_eq!((plain.prefix.as_str(), plain.db, plain.replicas), ("tenure:", 0, 0));
    assert_eq!(plain.login, None);
    let config = Config::parse("rediss://me:p%40%2F%3fx:y@h/7?prefix=&replicas=2&ca=/a%20b.pem").unwrap();
    assert_eq!(config.login, login("me", "p@/?x:y"));
    assert_eq!((config.prefix.as_str(), config.db, config.replicas), ("", 7, 2));
    assert_eq!(config.ca, Some("/a b.pem".into()));
    let config = Config::parse("redis+sentinel://:p@h/m?sentinel_user=s&sentinel_password=%70&db=1").unwrap();
    assert_eq!((config.login, config.sentinel_login), (login("", "p"), login("s", "p")));
    assert_eq!(config.db, 1);
    assert_eq!(Config::parse("redis://h?prefix=%7Btenure%7D:").unwrap().prefix, "{tenure}:");
}

// page: docs/engines/redis.md "up to 128 bytes"
// page: docs/engines/redis.md "| `db` | 0 | the database, as `/2` after the host"
// page: docs/engines/redis.md "| `replicas` | 0 | how many replicas must acknowledge a grant or a push, up to 16"
#[test]
fn numbers_of_settings_have_their_bounds() {
    let takes = |setting: &str| Config::parse(&format!("redis://h?{setting}")).is_ok();
    assert!(takes(&format!("prefix={}", "x".repeat(128))) && !takes(&format!("prefix={}", "x".repeat(129))));
    assert!(takes("replicas=16") && !takes("replicas=17"));
    let plain = Config::parse("redis://h").unwrap();
    assert_eq!((plain.db, plain.replicas), (0, 0));
    assert_eq!(Config::parse("redis://h/2").unwrap().db, 2);
}

#[test]
fn anything_else_is_refused_with_a_hint() {
    for url in [
        "redis:",
        "redis:h",
        "redis://",
        "redis:///0",
        "http://h",
        "redis+tls://h",
        "redis://h1,h2",
        "redis://h:",
        "redis://h:0",
        "redis://h:65536",
        "redis://h:x",
        "redis://::1",
        "redis://[::1",
        "redis://[h]",
        "redis://[::1]6379",
        "redis://h h",
        "redis://user@h",
        "redis://%zz:p@h",
        "redis://:%ff@h",
        "redis://h/x",
        "redis://h/-1",
        "redis://h/+1",
        "redis://h/0/1",
        "redis://h/1?db=1",
        "redis://h?db=1&db=1",
        "redis://h?db=",
        "redis://h?db=65536",
        "redis://h?replicas=17",
        "redis://h?replicas=many",
        "redis://h?ttl=3",
        "redis://h?PREFIX=x",
        "redis://h?prefix=a%0ab",
        "redis://h?prefix=tenure.x",
        "redis://h?ca=/x",
        "rediss://h?ca=",
        "redis://h?sentinel_password=x",
        "redis+sentinel://h/m?sentinel_user=x",
        "redis://h?max_ttl=1s",
        "redlock://h1,h2,h3",
        "redis+unix://h/a.sock",
        "redis+unix://",
        "redis+unix:///",
        "redis+sentinel://h",
        "redis+sentinel://h/",
        "redis+sentinel:///m",
        "redis+sentinel://h/m/0",
        "redis+cluster://h/0",
        "redis+cluster://h?db=1",
        "redis+cluster://",
        "redis+cluster://h,,h",
    ] {
        let error = Config::parse(url).expect_err(url);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
        assert!(error.hint().is_some(), "{url}");
    }
}

#[test]
fn a_password_is_never_shown() {
    let url = "redis+sentinel://me:hunter2@h/m?sentinel_password=hunter2";
    assert!(!format!("{:?}", Config::parse(url).unwrap()).contains("hunter2"));
    for url in [
        "redis://me:hunter2",
        "redis://:hunter2@h:x",
        "redis://:x/hunter2@h",
        "redis://:x?hunter2@h",
        "redis://:x?hunter2",
        "redis://:x@hunter2@h:y",
        "redis://me:x%hunter2@h",
        "redis://h?hunter2=1",
        "redis://h?password=hunter2",
        "redis://h?sentinel_password=hunter2",
        "redis+hunter2://h",
        "hunter2",
        "redis://h/hunter2",
        "redis://[hunter2]",
        "redis+cluster://h?sentinel_password=hunter2",
        "redis+sentinel://h/?sentinel_password=hunter2",
    ] {
        let error = Config::parse(url).expect_err(url);
        assert!(!format!("{error} {error:?} {:?}", error.hint()).contains("hunter2"), "{url}: {error:?}");
    }
}
