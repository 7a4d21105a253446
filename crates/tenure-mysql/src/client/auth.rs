//! How a client proves that it knows the password.

use sha1_smol::Sha1;
use sha2::{Digest, Sha256};

/// A way to prove it, which the server chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// `mysql_native_password`: MariaDB's default.
    Native,
    /// `caching_sha2_password`: MySQL's default.
    CachingSha2,
    /// `mysql_clear_password`: the password itself. Only on a private connection.
    Clear,
    /// `unix_socket` and `auth_socket`: the server asks the system for the user.
    Socket,
}

impl Method {
    pub(crate) fn named(name: &str) -> Option<Method> {
        match name {
            "mysql_native_password" => Some(Method::Native),
            "caching_sha2_password" => Some(Method::CachingSha2),
            "mysql_clear_password" => Some(Method::Clear),
            "unix_socket" | "auth_socket" => Some(Method::Socket),
            _ => None,
        }
    }

    /// Returns the first answer to the server's `salt`. `None`: it may not be sent on a connection that others can
    /// read.
    pub(crate) fn answer(self, password: &str, salt: &[u8], is_private: bool) -> Option<Vec<u8>> {
        match self {
            Method::Native | Method::CachingSha2 if password.is_empty() => Some(Vec::new()),
            Method::Native => Some(native(password.as_bytes(), salt)),
            Method::CachingSha2 => Some(caching_sha2(password.as_bytes(), salt)),
            Method::Clear => is_private.then(|| clear(password)),
            Method::Socket => Some(Vec::new()),
        }
    }
}

/// The password as it is, which ends with a zero.
pub(crate) fn clear(password: &str) -> Vec<u8> {
    [password.as_bytes(), &[0]].concat()
}

/// SHA1(password) XOR SHA1(salt, SHA1(SHA1(password))).
fn native(password: &[u8], salt: &[u8]) -> Vec<u8> {
    let digest = |parts: &[&[u8]]| {
        let mut sha = Sha1::new();
        parts.iter().for_each(|part| sha.update(part));
        sha.digest().bytes()
    };
    let once = digest(&[password]);
    let twice = digest(&[&once]);
    xor(&once, &digest(&[salt, &twice]))
}

/// SHA256(password) XOR SHA256(SHA256(SHA256(password)), salt).
fn caching_sha2(password: &[u8], salt: &[u8]) -> Vec<u8> {
    let once = Sha256::digest(password);
    let twice = Sha256::digest(once);
    let salted = Sha256::new().chain_update(twice).chain_update(salt).finalize();
    xor(&once, &salted)
}

fn xor(left: &[u8], right: &[u8]) -> Vec<u8> {
    left.iter().zip(right).map(|(left, right)| left ^ right).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_sql::push_hex;

    fn hex(bytes: &[u8]) -> String {
        let mut text = String::new();
        push_hex(&mut text, bytes);
        text
    }

    #[test]
    fn proofs_are_what_servers_expect() {
        // Worked out with another implementation (Python's hashlib) from the servers' documents.
        let salt: Vec<u8> = (1..=20).collect();
        assert_eq!(hex(&native(b"hunter2", &salt)), "be2cbec13fd268cf921774da8dde99447d699455");
        assert_eq!(
            hex(&caching_sha2(b"hunter2", &salt)),
            "04917479a40a673ae2388df86966d1b73768b4452df9a624881d93be865dc44c"
        );
    }

    #[test]
    fn a_password_is_never_sent_readable() {
        assert_eq!(Method::Clear.answer("hunter2", &[], false), None);
        assert_eq!(Method::Clear.answer("hunter2", &[], true), Some(b"hunter2\0".to_vec()));
    }

    #[test]
    fn an_empty_password_is_an_empty_answer() {
        for method in [Method::Native, Method::CachingSha2, Method::Socket] {
            assert_eq!(method.answer("", &[1; 20], false), Some(Vec::new()));
        }
    }
}
