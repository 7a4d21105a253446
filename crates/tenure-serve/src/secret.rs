//! Tokens: 256 random bits, of which the file of tokens has the hash.

use std::fmt::{self, Write};
use std::io::{self, Read};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

/// A new token. It is shown once, to whoever is to send it.
///
/// No example: `tenure serve token` is one.
pub struct Secret {
    token: String,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// Returns what is sent: `tnr_` and 43 characters.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Returns the entry for the file of tokens.
    pub fn entry(&self, name: &str, allow: &[String]) -> String {
        let allow: Vec<String> = allow.iter().map(|line| quoted(line)).collect();
        let mut hash = String::new();
        for byte in Sha256::digest(self.token.as_bytes()) {
            // Writing to a string cannot fail.
            write!(hash, "{byte:02x}").ok();
        }
        format!("[[token]]\nname = {}\nsha256 = \"{hash}\"\nallow = [{}]\n", quoted(name), allow.join(", "))
    }
}

/// A text as TOML has it: JSON's escapes are among its own.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Makes a token of what the system has of randomness. Checks the rules, so that the entry is one that a server reads.
///
/// No example: `tenure serve token` is one.
///
/// # Errors
/// What is wrong with a rule, or what the system says.
pub fn secret(allow: &[String]) -> io::Result<Secret> {
    let rules = crate::access::rules::Rules::parse(allow.iter().map(String::as_str));
    rules.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let mut bits = [0; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bits)?;
    Ok(Secret { token: format!("tnr_{}", URL_SAFE_NO_PAD.encode(bits)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::file::parse;
    use crate::access::rules::Verb;
    use crate::access::table::Key;

    #[test]
    fn an_entry_that_was_made_lets_its_token_in() {
        let allow = ["claim \"odd\\ name\"/".to_owned()];
        let secret = secret(&allow).expect("a token");
        assert_eq!(secret.token().len(), 47);
        let table = parse(&secret.entry("bill\"ing", &allow)).expect("an entry");
        let entry = table.find(&Key::of_token(secret.token())).expect("its token");
        assert_eq!(entry.name, "bill\"ing");
        assert!(entry.rules.allow(Verb::Claim, Some("\"odd\\ name\"/7")));
    }
}
