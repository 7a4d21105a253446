//! URLs, good and bad.

use super::*;

#[test]
fn the_usual_url_has_the_usual_settings() {
    let config = Config::parse("postgres://me:secret@db.example/app").expect("a URL");
    assert_eq!((config.prefix.as_str(), config.connections), ("tenure_", 4));
    assert!(config.purges && config.listens && !config.is_tls);
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
        // Each may be as long, but a channel is named after both.
        "postgres://me:hunter2@h/db?schema=s2345678901234567890&prefix=p234567890123456789012345678",
    ] {
        let error = Config::parse(url).expect_err(url);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    }
}

#[test]
fn a_configuration_shows_no_password() {
    let config = Config::parse("postgres://me:hunter2@h/db").expect("a URL");
    assert!(!format!("{config:?} {}", config.servers()).contains("hunter2"));
}
