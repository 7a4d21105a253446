//! URLs, good and bad.

use super::*;

#[test]
fn the_usual_url_has_the_usual_settings() {
    let config = Config::parse("postgres://me:secret@db.example/app").expect("a URL");
    assert_eq!((config.prefix.as_str(), config.connections), ("tenure_", 5));
    assert!(config.purges && config.listens && !config.is_tls());
    assert_eq!(config.servers(), "db.example:5432");
    assert_eq!(config.server.get_application_name(), Some("tenure"));
    assert_eq!(config.server.get_target_session_attrs(), TargetSessionAttrs::Any);
}

#[test]
fn settings_are_read_and_the_rest_is_postgresqls() {
    let url = "postgres://a,b:5433/app?schema=locks&prefix=t_&connections=2&purge=off&listen=off&application_name=x";
    let config = Config::parse(url).expect("a URL");
    assert_eq!((config.prefix.as_str(), config.connections), ("locks.t_", 2));
    assert!(!config.purges && !config.listens);
    assert_eq!(config.server.get_application_name(), Some("x"));
    assert_eq!(config.server.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
}

#[test]
fn wrong_urls_are_refused_and_show_no_password() {
    for url in [
        "postgres://me:hunter2",
        "postgres://me:hunter2@h:port/db",
        "postgres://me:x@hunter2@h/db",
        "postgres://me:hunter2@h/db?prefix=Tenure",
        "postgres://me:hunter2@h/db?prefix=x;drop",
        "postgres://me:hunter2@h/db?connections=0",
        "postgres://me:hunter2@h/db?connections=65",
        "postgres://me:hunter2@h/db?purge=maybe",
        "postgres://me:hunter2@h/db?nosuch=1",
        "postgres://me:hunter2@h/db?ca=",
        "postgres://me:hunter2@h/db?prefix=a&prefix=a",
        "postgres://me:hunter2@h/db?ca=%zz",
        "postgres://me:hunter2@h/db?sslmode=prefer",
        "postgres://me:hunter2@h/db?sslmode=prefer&ca=x.pem",
        "postgres://me:hunter2@h/db?sslmode=disable&ca=x.pem",
        "postgres://me:hunter2@h/db?ca=x.pem&sslmode=disable",
        "postgres://me:hunter2@h/db?ssl%6Dode=require",
        // Each may be as long, but a channel is named after both.
        "postgres://me:hunter2@h/db?schema=s2345678901234567890&prefix=p234567890123456789012345678",
    ] {
        let error = Config::parse(url).expect_err(url);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    }
}

// page: docs/engines/postgres.md "a-z, 0-9, `_`; 32 at most, and 47 with the schema and its dot"
// page: docs/engines/postgres.md "| 5 | how many connections a client uses at most, 1 to 64"
#[test]
fn numbers_of_settings_have_their_bounds() {
    let takes = |settings: &str| Config::parse(&format!("postgres://me@h/db?{settings}")).is_ok();
    assert!(takes("connections=1") && takes("connections=64") && !takes("connections=65"));
    let x = |count| "x".repeat(count);
    assert!(takes(&format!("prefix={}", x(32))) && !takes(&format!("prefix={}", x(33))));
    assert!(takes(&format!("prefix={}&schema={}", x(30), x(16))));
    assert!(!takes(&format!("prefix={}&schema={}", x(30), x(17))));
    assert!(takes("prefix=az09_") && !takes("prefix=aZ"));
    assert_eq!(Config::parse("postgres://me@h/db").expect("a URL").connections, 5);
}

#[test]
fn a_configuration_shows_no_password() {
    let config = Config::parse("postgres://me:hunter2@h/db").expect("a URL");
    assert!(!format!("{config:?} {}", config.servers()).contains("hunter2"));
}

#[test]
fn whatever_asks_for_tls_requires_it() {
    let is_tls = |url: &str| Config::parse(url).expect("a URL").is_tls();
    assert!(!is_tls("postgres://h/db") && !is_tls("postgres://h/db?sslmode=disable"));
    assert!(is_tls("postgres://h/db?sslmode=require") && is_tls("postgres://h/db?ca=x.pem"));
    assert!(is_tls("postgres://h/db?ca=x.pem&sslmode=require"));
    let mut settings: tokio_postgres::Config = "postgres://h/db".parse().expect("a URL");
    assert!(!Config::new(settings.clone()).is_tls());
    assert!(Config::new(settings.clone()).with("ca", "x.pem").expect("a file").is_tls());
    assert!(Config::new(settings.ssl_mode(SslMode::Require).clone()).is_tls());
    let hint =
        Config::parse("postgres://h/db?sslmode=prefer").expect_err("it falls back").hint().map(str::to_owned);
    assert!(hint.is_some_and(|hint| hint.contains("require")));
}
