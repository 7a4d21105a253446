use super::*;

const URL: UrlSyntax = UrlSyntax { engine: "mine", hint: "write `mine://host1,host2`" };

fn parts(url: &str) -> EngineUrl<'_> {
    EngineUrl::parse(URL, url).unwrap_or_else(|error| panic!("{url}: {error}"))
}

fn login(user: &str, password: &str) -> Login {
    Login { user: user.to_owned(), password: password.to_owned() }
}

fn settings(query: &str) -> Settings {
    Settings::parse(URL, query).unwrap_or_else(|error| panic!("{query}: {error}"))
}

/// All that an engine reads of a URL.
fn read_all(url: &str) -> Result<()> {
    let url = EngineUrl::parse(URL, url)?;
    let is_tls = url.scheme(&[("mine", false), ("mines", true)])?;
    url.login_of_user()?;
    url.hosts(7, 3)?;
    url.path()?;
    let mut settings = url.settings()?;
    settings.text("text")?;
    settings.switch("switch")?;
    settings.number("number", 1..=64u8)?;
    settings.duration("time", Duration::from_millis(100)..=Duration::from_secs(3600))?;
    settings.choice("choice", &[("red", 1), ("blue", 2)])?;
    settings.tls_file("ca", is_tls, "mines")?;
    settings.tls_identity(is_tls, "mines")?;
    settings.refuse("never", "needs another engine")?;
    settings.finish()
}

fn refusal(url: &str) -> Error {
    let error = read_all(url).expect_err(url);
    assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
    assert!(error.hint().is_some(), "{url}");
    error
}

#[test]
fn a_url_has_its_parts() {
    let url = parts("mines://u%3A:p%40%2F%3fx:y@h1,h2:8,[fe80::1],[::1]:9/a%20b/c?x=1");
    assert!(url.scheme(&[("mine", false), ("mines", true)]).unwrap());
    assert_eq!(url.login_of_user().unwrap(), Some(login("u:", "p@/?x:y")));
    let hosts = url.hosts(7, 4).unwrap();
    assert_eq!(
        hosts.iter().map(HostPort::to_string).collect::<Vec<_>>(),
        ["h1:7", "h2:8", "[fe80::1]:7", "[::1]:9"]
    );
    assert_eq!((url.path().unwrap().as_deref(), url.path_as_written()), (Some("a b/c"), "/a%20b/c"));
    let least = parts("mine://h");
    assert_eq!((least.login(), least.path().unwrap(), least.has_host()), (None, None, true));
    assert_eq!(parts("mine://h/?").path().unwrap().as_deref(), Some(""));
    assert!(!parts("mine:///path").has_host());
    for (url, user, password) in [("mine://me@h", "me", ""), ("mine://:p@h", "", "p"), ("mine://:@h", "", "")]
    {
        assert_eq!(parts(url).login(), Some(login(user, password)), "{url}");
    }
    assert_eq!(parts("mine://:@h").login_with_password().unwrap(), Some(login("", "")));
    assert!(parts("mine://me@h").login_with_password().is_err());
}

#[test]
fn settings_are_read_by_name_and_decoded() {
    let mut all = settings("file=/a%20b&&on=on&off=off&n=64&color=blue&empty=&ms=500ms&s=30s&m=2m&h=1h")
        .with("db", "a%");
    assert_eq!(all.file("file").unwrap(), Some("/a b".into()));
    assert_eq!((all.switch("on").unwrap(), all.switch("off").unwrap()), (Some(true), Some(false)));
    assert_eq!(all.number("n", 1..=64u8).unwrap(), Some(64));
    assert_eq!(all.choice("color", &[("red", 1), ("blue", 2)]).unwrap(), Some(2));
    assert_eq!(all.text_or_empty("empty").unwrap().as_deref(), Some(""));
    for (name, millis) in [("ms", 500), ("s", 30_000), ("m", 120_000), ("h", 3_600_000)] {
        let time = all.duration(name, Duration::ZERO..=Duration::from_secs(3600)).unwrap();
        assert_eq!(time, Some(Duration::from_millis(millis)), "{name}");
    }
    assert_eq!(all.text("db").unwrap().as_deref(), Some("a%"), "what is added is taken as it is");
    assert_eq!(all.text("absent").unwrap(), None);
    all.finish().expect("nothing is left");
}

#[test]
fn a_setting_is_given_once_and_has_a_value() {
    for (query, why) in [
        ("text=a&text=a", "`text` is given twice"),
        ("text=", "`text` is empty"),
        ("text", "`text` is empty"),
        ("ca=", "`ca` is empty"),
        ("switch=", "`switch` is empty"),
        ("number=", "`number` is empty"),
        ("time=", "`time` is empty"),
        ("text=%zz", "a setting has a `%` without"),
        ("text=%ff", "no UTF-8"),
        ("switch=yes", "`switch` has an unknown value"),
        ("choice=green", "`choice` has an unknown value"),
        ("number=0", "`number` is not a number from 1 to 64"),
        ("number=65", "`number` is not a number from 1 to 64"),
        ("number=+1", "`number` is not a number from 1 to 64"),
        ("time=60", "`time` is not a time from 100ms to 1h"),
        ("time=99ms", "`time` is not a time from 100ms to 1h"),
        ("time=2h", "`time` is not a time from 100ms to 1h"),
        ("time=-1s", "`time` is not a time from 100ms to 1h"),
        ("time=s", "`time` is not a time from 100ms to 1h"),
        ("time=99999999999999999999h", "`time` is not a time from 100ms to 1h"),
        ("never=", "`never` needs another engine"),
        ("ca=x", "`ca` needs TLS"),
    ] {
        let error = refusal(&format!("mine://h?{query}"));
        assert!(error.to_string().contains(why), "{query}: {error}");
    }
    assert!(refusal("mines://h?cert=x").to_string().contains("need each other"));
    let error = refusal("mine://h?choice=green");
    assert_eq!(error.hint(), Some("it is `red` or `blue`"));
}

#[test]
fn an_unknown_setting_is_refused_with_the_known_ones() {
    for (query, meant) in [
        ("x=1", ""),
        ("x", ""),
        ("TEXT=a", "did you mean `text`? "),
        ("swutch=on", "did you mean `switch`? "),
        ("te%78t=a", ""),
        ("text=a&x=1&x=2", ""),
    ] {
        let error = refusal(&format!("mine://h?{query}"));
        assert_eq!(error.to_string(), "read the engine's URL on mine: unknown setting", "{query}");
        let hint = error.hint().unwrap();
        let known = format!("{meant}known are ca, cert, choice, key, never, number, switch, text, time;");
        assert!(hint.starts_with(&known), "{hint}");
    }
}

#[test]
fn hosts_and_logins_that_cannot_be_are_refused() {
    for (url, why) in [
        ("mine:h", "no `://`"),
        ("other://h", "unknown scheme"),
        ("mine://", "names no host"),
        ("mine:///a", "names no host"),
        ("mine://h,,h", "names no host"),
        ("mine://a b", "names no host"),
        ("mine://h%2Fx", "names no host"),
        ("mine://a,b,c,d", "more than 3 hosts"),
        ("mine://h:", "the port"),
        ("mine://h:0", "the port"),
        ("mine://h:+1", "the port"),
        ("mine://h:65536", "the port"),
        ("mine://[::1]7", "the port"),
        ("mine://::1", "several colons"),
        ("mine://[::1", "a bracket"),
        ("mine://[h]", "no IPv6"),
        ("mine://me@h", "without a password"),
        ("mine://:p@h", "without a user"),
        ("mine://%zz:p@h", "the user has a `%`"),
        ("mine://u:%ff@h", "the password has a `%`"),
        ("mine://h/%2", "the path has a `%`"),
        ("mine://h/a@b", "`@` after its hosts"),
    ] {
        let error = refusal(url);
        assert!(error.to_string().contains(why), "{url}: {error}");
    }
    assert!(parts("mine://a,b").hosts(7, 1).unwrap_err().to_string().contains("several hosts"));
}

#[test]
fn no_part_of_a_url_is_shown() {
    let mut urls = vec!["hunter2".to_owned(), "hunter2://h".to_owned(), "mine://[hunter2]".to_owned()];
    // A password that should have been encoded, in a URL that has a host and in one that has none.
    for text in [
        "hunter2",
        "hunter2%",
        "a/hunter2",
        "a?hunter2",
        "1?hunter2",
        "a@hunter2",
        "a:hunter2",
        "a?x=1&hunter2",
        "%hunter2",
    ] {
        for (before, after) in [
            ("me:", ""),
            (":", "@h"),
            ("me:", "@h:x"),
            ("me:", "@h/%"),
            ("me:", "@h?x=1"),
            ("me:", "@h?switch=hunter2"),
        ] {
            urls.push(format!("mine://{before}{text}{after}"));
        }
    }
    for name in ["text", "switch", "number", "time", "choice", "ca", "cert", "never"] {
        urls.push(format!("mine://h?{name}=hunter2&{name}=hunter2"));
        urls.push(format!("mine://h?{name}=hunter2&hunter2"));
    }
    // Some of these are right: `me:a@hunter2` has a host of that name.
    for url in urls.iter().filter(|url| read_all(url).is_err()) {
        let error = refusal(url);
        let shown = format!("{error} {error:?} {:?}", error.hint());
        assert!(!shown.contains("hunter2"), "{url}: {shown}");
    }
    assert!(!format!("{:?}", parts("mine://me:hunter2@h").login()).contains("hunter2"));
}
