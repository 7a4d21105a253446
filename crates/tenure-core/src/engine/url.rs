//! The URLs of engines: the login, where the servers are, and the settings after `?`.
//!
//! **No error shows a part of the URL.** Any part of a wrong one may be a piece of a password: `redis://user:secret` (no host) has
//! its "port" `secret`; in `redis://:a/b@host` the "path" is `b@host`, and in `redis://:1?b` (no host) `b` is the name of a
//! "setting". So errors name the part that is wrong, and of settings only the names that the engine knows.

use std::fmt;
use std::net::Ipv6Addr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result, nearest};

/// An engine's URL, `scheme://[user:password@]host[:port][,host…][/path][?name=value&…]`, in its parts.
///
/// # Examples
/// ```
/// use tenure_core::engine::url::{EngineUrl, UrlSyntax};
///
/// # fn main() -> tenure_core::Result<()> {
/// const URL: UrlSyntax = UrlSyntax { engine: "mine", hint: "write `mine://host1,host2`" };
/// let url = EngineUrl::parse(URL, "mines://me:a%40b@h1,[::1]:7/dir?connections=3")?;
/// let is_tls = url.scheme(&[("mine", false), ("mines", true)])?;
/// assert_eq!((is_tls, url.path()?.as_deref()), (true, Some("dir")));
/// assert_eq!(url.login_of_user()?.map(|login| login.password), Some("a@b".to_owned()));
/// assert_eq!(url.hosts(4000, 16)?[0].to_string(), "h1:4000");
/// let mut settings = url.settings()?;
/// let connections = settings.number("connections", 1..=64)?.unwrap_or(5);
/// settings.finish()?;
/// assert_eq!(connections, 3);
/// # Ok(()) }
/// ```
pub struct EngineUrl<'a> {
    syntax: UrlSyntax,
    scheme: &'a str,
    login: Option<Login>,
    has_password: bool,
    hosts: &'a str,
    path: &'a str,
    query: &'a str,
}

impl fmt::Debug for EngineUrl<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineUrl").field("engine", &self.syntax.engine).finish_non_exhaustive()
    }
}

/// What the errors about an engine's URLs say beside what is wrong.
#[derive(Clone, Copy, Debug)]
pub struct UrlSyntax {
    /// The engine, as [`Engine::name`](crate::engine::Engine::name) has it.
    pub engine: &'static str,
    /// The form of a valid URL: "write `etcd://host1,host2`".
    pub hint: &'static str,
}

/// The login at the servers. Its `Debug` hides the password.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Login {
    /// The user; empty if none is named.
    pub user: String,
    /// The password; empty if none is given.
    pub password: String,
}

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPort {
    /// A host name or an IP address, IPv6 without its brackets.
    pub host: String,
    /// From 1 to 65535.
    pub port: u16,
}

/// The settings of a URL. Each is read by its name, once; [`Settings::finish`] then refuses those that were never
/// read.
///
/// Every reader returns `None` for a setting that is not given, and fails with [`ErrorKind::Invalid`] for one that is given twice, is
/// empty, or has a value that it does not take.
pub struct Settings {
    syntax: UrlSyntax,
    given: Vec<(String, String)>,
    known: Vec<&'static str>,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not what is given: a piece of a wrong URL may be a piece of a password.
        f.debug_struct("Settings").field("known", &self.known).finish_non_exhaustive()
    }
}

impl UrlSyntax {
    /// Makes the error for a wrong URL. `why` must show nothing of the URL.
    pub fn invalid(&self, why: impl Into<String>) -> Error {
        Error::new(ErrorKind::Invalid, "read the engine's URL", why)
            .with_engine(self.engine)
            .with_hint(self.hint)
    }

    /// Undoes percent-encoding.
    fn decode(&self, text: &str, what: &str) -> Result<String> {
        let broken = || {
            self.invalid(format!("{what} has a `%` without two hexadecimal digits, or is no UTF-8"))
                .with_hint("write `%` as %25")
        };
        let mut bytes = Vec::with_capacity(text.len());
        let mut rest = text.bytes();
        while let Some(byte) = rest.next() {
            if byte != b'%' {
                bytes.push(byte);
                continue;
            }
            let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
            let (high, low) = (digit().ok_or_else(broken)?, digit().ok_or_else(broken)?);
            bytes.push((high * 16 + low) as u8);
        }
        String::from_utf8(bytes).map_err(|_| broken())
    }
}

impl<'a> EngineUrl<'a> {
    /// Takes a URL apart.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] without `://`, with an `@` after the hosts, or with a login that is wrongly percent-encoded.
    pub fn parse(syntax: UrlSyntax, url: &'a str) -> Result<EngineUrl<'a>> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| syntax.invalid("it has no `://`"))?;
        let (before_query, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = before_query.split_at(before_query.find('/').unwrap_or(before_query.len()));
        // Else the end of a password would be a path, and its beginning a host that is connected to.
        if path.contains('@') || query.contains('@') {
            return Err(syntax
                .invalid("it has an `@` after its hosts")
                .with_hint("write `/`, `?` and `@` in a user, a password or a setting as %2F, %3F and %40"));
        }
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => {
                (Some(login.split_once(':').map_or((login, None), |(user, rest)| (user, Some(rest)))), hosts)
            }
            None => (None, authority),
        };
        let has_password = login.is_some_and(|(_, password)| password.is_some());
        let read = |(user, password): (&str, Option<&str>)| {
            let password = syntax.decode(password.unwrap_or_default(), "the password")?;
            Ok(Login { user: syntax.decode(user, "the user")?, password })
        };
        let login = login.map(read).transpose()?;
        Ok(EngineUrl { syntax, scheme, login, has_password, hosts, path, query })
    }

    /// Returns what the scheme stands for.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for one that is not in the table.
    pub fn scheme<T: Copy>(&self, schemes: &[(&str, T)]) -> Result<T> {
        let found = schemes.iter().find(|(scheme, _)| *scheme == self.scheme);
        found.map(|(_, meaning)| *meaning).ok_or_else(|| self.invalid("unknown scheme"))
    }

    /// Returns what stands before an `@`: a user, a password behind a colon, or both.
    pub fn login(&self) -> Option<Login> {
        self.login.clone()
    }

    /// Returns a password, perhaps with a user.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a user without a password.
    pub fn login_with_password(&self) -> Result<Option<Login>> {
        match self.login() {
            Some(_) if !self.has_password => Err(self
                .invalid("it has a user without a password")
                .with_hint("write `user:password@` before the hosts")),
            login => Ok(login),
        }
    }

    /// Returns a user and a password.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for one without the other.
    pub fn login_of_user(&self) -> Result<Option<Login>> {
        match self.login_with_password()? {
            Some(login) if login.user.is_empty() => Err(self
                .invalid("it has a password without a user")
                .with_hint("write `user:password@` before the hosts")),
            login => Ok(login),
        }
    }

    /// Whether it names a host.
    pub fn has_host(&self) -> bool {
        !self.hosts.is_empty()
    }

    /// Returns the hosts, at least one and at most `most`, each with `port` unless it names its own. IPv6 addresses are in brackets.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for what is no host, no port, or too many.
    pub fn hosts(&self, port: u16, most: usize) -> Result<Vec<HostPort>> {
        let hosts: Vec<_> =
            self.hosts.split(',').map(|host| self.read_host(host, port)).collect::<Result<_>>()?;
        match hosts.len() {
            count if count <= most => Ok(hosts),
            _ if most == 1 => Err(self.invalid("it names several hosts")),
            _ => Err(self.invalid(format!("it names more than {most} hosts"))),
        }
    }

    /// Returns what stands behind the slash after the hosts. `None` if there is no slash.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if it is wrongly percent-encoded.
    pub fn path(&self) -> Result<Option<String>> {
        self.path.strip_prefix('/').map(|path| self.syntax.decode(path, "the path")).transpose()
    }

    /// Returns the path as it is written, with its slash, for engines whose paths are not percent-encoded.
    pub fn path_as_written(&self) -> &'a str {
        self.path
    }

    /// Returns the settings.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if a value is wrongly percent-encoded.
    pub fn settings(&self) -> Result<Settings> {
        Settings::parse(self.syntax, self.query)
    }

    /// As [`UrlSyntax::invalid`].
    pub fn invalid(&self, why: impl Into<String>) -> Error {
        self.syntax.invalid(why)
    }

    fn read_host(&self, text: &str, default_port: u16) -> Result<HostPort> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, after) =
                    rest.split_once(']').ok_or_else(|| self.invalid("a bracket is not closed"))?;
                if host.parse::<Ipv6Addr>().is_err() {
                    return Err(self.invalid("what is in brackets is no IPv6 address"));
                }
                let port = (!after.is_empty()).then(|| after.strip_prefix(':').unwrap_or_default());
                (host.to_owned(), port)
            }
            None => {
                let (host, port) =
                    text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
                if port.is_some_and(|port| port.contains(':')) {
                    return Err(self
                        .invalid("a host has several colons")
                        .with_hint(format!("write an IPv6 address in brackets: `[::1]:{default_port}`")));
                }
                (self.syntax.decode(host, "a host")?, port)
            }
        };
        // What else a host may not have, the resolver says; other characters would make another URL of it.
        let is_host = |c: char| c.is_alphanumeric() || "-._:".contains(c);
        if host.is_empty() || !host.chars().all(is_host) {
            return Err(self.invalid("it names no host, or one with a character that hosts cannot have"));
        }
        let port = match port {
            None => default_port,
            Some(port) => digits(port).filter(|port| *port > 0).ok_or_else(|| {
                self.invalid("the port of a host is not a number from 1 to 65535").with_hint(
                    "a user and a password come before an `@`, in which `/`, `?` and `@` are %2F, %3F and %40: `user:password@host`",
                )
            })?,
        };
        Ok(HostPort { host, port })
    }
}

impl Settings {
    /// No settings, to which [`Settings::with`] adds.
    pub fn none(syntax: UrlSyntax) -> Settings {
        Settings { syntax, given: Vec::new(), known: Vec::new() }
    }

    /// Reads `name=value&name=value`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if a value is wrongly percent-encoded.
    pub fn parse(syntax: UrlSyntax, query: &str) -> Result<Settings> {
        let parts = query.split('&').filter(|part| !part.is_empty());
        let read = |part: &str| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            Ok((name.to_owned(), syntax.decode(value, "a setting")?))
        };
        Ok(Settings { given: parts.map(read).collect::<Result<_>>()?, ..Settings::none(syntax) })
    }

    /// Adds a setting whose value is not percent-encoded, such as one that the path stands for.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Settings {
        self.given.push((name.to_owned(), value.into()));
        self
    }

    /// Returns a text that is not empty.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]: see [`Settings`].
    pub fn text(&mut self, name: &'static str) -> Result<Option<String>> {
        match self.text_or_empty(name)? {
            Some(text) if text.is_empty() => Err(self.invalid(format!("`{name}` is empty"))),
            text => Ok(text),
        }
    }

    /// Returns a text that may be empty.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if it is given twice.
    pub fn text_or_empty(&mut self, name: &'static str) -> Result<Option<String>> {
        self.known.push(name);
        let mut values = self.given.extract_if(.., |(given, _)| given == name).map(|(_, value)| value);
        let (value, another) = (values.next(), values.next());
        drop(values);
        match another {
            Some(_) => Err(self.invalid(format!("`{name}` is given twice"))),
            None => Ok(value),
        }
    }

    /// Returns the path of a file.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]: see [`Settings`].
    pub fn file(&mut self, name: &'static str) -> Result<Option<PathBuf>> {
        Ok(self.text(name)?.map(PathBuf::from))
    }

    /// Returns the path of a file that only TLS needs, which the URL asks for with `scheme`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] without TLS, and see [`Settings`].
    pub fn tls_file(&mut self, name: &'static str, is_tls: bool, scheme: &str) -> Result<Option<PathBuf>> {
        match self.file(name)? {
            Some(_) if !is_tls => {
                let hint = format!("begin the URL with `{scheme}`");
                Err(self.invalid(format!("`{name}` needs TLS")).with_hint(hint))
            }
            file => Ok(file),
        }
    }

    /// Returns the paths of the client's certificate (`cert`) and of its key (`key`), as [`Settings::tls_file`] does.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for one without the other, and see [`Settings::tls_file`].
    pub fn tls_identity(&mut self, is_tls: bool, scheme: &str) -> Result<Option<(PathBuf, PathBuf)>> {
        match (self.tls_file("cert", is_tls, scheme)?, self.tls_file("key", is_tls, scheme)?) {
            (None, None) => Ok(None),
            (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
            _ => Err(self.invalid("`cert` and `key` need each other")),
        }
    }

    /// Returns `on` as true and `off` as false.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]: see [`Settings`].
    pub fn switch(&mut self, name: &'static str) -> Result<Option<bool>> {
        self.choice(name, &[("on", true), ("off", false)])
    }

    /// Returns what the value stands for.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]: see [`Settings`].
    pub fn choice<T: Copy>(&mut self, name: &'static str, choices: &[(&str, T)]) -> Result<Option<T>> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        match choices.iter().find(|(choice, _)| *choice == text) {
            Some((_, meaning)) => Ok(Some(*meaning)),
            None => {
                let words: Vec<_> = choices.iter().map(|(choice, _)| format!("`{choice}`")).collect();
                let hint = format!("it is {}", words.join(" or "));
                Err(self.invalid(format!("`{name}` has an unknown value")).with_hint(hint))
            }
        }
    }

    /// Returns a whole number without a sign, within bounds.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]: see [`Settings`].
    pub fn number<T: FromStr + PartialOrd + fmt::Display>(
        &mut self,
        name: &'static str,
        bounds: RangeInclusive<T>,
    ) -> Result<Option<T>> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        match digits(&text).filter(|number| bounds.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => {
                let (least, most) = (bounds.start(), bounds.end());
                Err(self.invalid(format!("`{name}` is not a number from {least} to {most}")))
            }
        }
    }

    /// Returns a time, written as a whole number and a unit (`ms`, `s`, `m` or `h`), within bounds.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]: see [`Settings`].
    pub fn duration(
        &mut self,
        name: &'static str,
        bounds: RangeInclusive<Duration>,
    ) -> Result<Option<Duration>> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let (count, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
        let unit = UNITS.iter().find(|(name, _)| *name == unit);
        let millis = unit.and_then(|(_, millis)| digits::<u64>(count)?.checked_mul(*millis));
        match millis.map(Duration::from_millis).filter(|time| bounds.contains(time)) {
            Some(time) => Ok(Some(time)),
            None => {
                let [least, most] = [bounds.start(), bounds.end()].map(|time| in_units(*time));
                Err(self
                    .invalid(format!("`{name}` is not a time from {least} to {most}"))
                    .with_hint("write a number and its unit, as in 500ms, 30s or 2m"))
            }
        }
    }

    /// Refuses a setting that does not go with the rest of the URL: "needs Sentinel".
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if it is given.
    pub fn refuse(&mut self, name: &'static str, why: &str) -> Result<()> {
        match self.text_or_empty(name)? {
            Some(_) => Err(self.invalid(format!("`{name}` {why}"))),
            None => Ok(()),
        }
    }

    /// Refuses what is left, once all settings have been asked for. Not even the name of one is shown: see the module.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if something is left.
    pub fn finish(mut self) -> Result<()> {
        let Some((given, _)) = self.given.first() else { return Ok(()) };
        // An engine may ask for one on several ways.
        self.known.sort_unstable();
        self.known.dedup();
        let meant = nearest(given, &self.known).map(|meant| format!("did you mean `{meant}`? "));
        let known = self.known.join(", ");
        let hint = format!("{}known are {known}; write `?` in a password as %3F", meant.unwrap_or_default());
        Err(self.invalid("unknown setting").with_hint(hint))
    }

    /// As [`UrlSyntax::invalid`].
    pub fn invalid(&self, why: impl Into<String>) -> Error {
        self.syntax.invalid(why)
    }
}

/// The units of times, in milliseconds, the largest first.
const UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

fn in_units(time: Duration) -> String {
    let millis = time.as_millis() as u64;
    let unit = UNITS.iter().find(|(_, unit)| millis >= *unit && millis.is_multiple_of(*unit));
    unit.map_or("0s".to_owned(), |(name, unit)| format!("{}{name}", millis / unit))
}

/// Reads a number without a sign, which `parse` would take.
fn digits<T: FromStr>(text: &str) -> Option<T> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.user).field("password", &"***").finish()
    }
}

#[cfg(test)]
mod tests;
