//! Addresses of servers in what a server answers, such as those that a Sentinel or a node of a Redis Cluster sends its clients to.

/// Where all servers of tests are.
const HOST: &[u8] = b"127.0.0.1";
/// What may stand between a host and its port: text, a redirection or a list of nodes, and RESP's numbers, texts and named fields.
const BETWEEN: [&[u8]; 5] = [b":", b" ", b"\r\n:", b"\r\n$5\r\n", b"\r\n$4\r\nport\r\n$5\r\n"];

/// Which ports are called otherwise. A port has five digits, so that nothing else in an answer must change.
#[derive(Debug, Default)]
pub(super) struct Addresses(Vec<[[u8; 5]; 2]>);

impl Addresses {
    pub(super) fn new(ports: &[(u16, u16)]) -> Addresses {
        let digits = |port: u16| port.to_string().into_bytes().try_into().expect("ports from 20000 on");
        Addresses(ports.iter().map(|(from, to)| [digits(*from), digits(*to)]).collect())
    }

    /// Writes the other ports into bytes, wherever an address stands whole in them. One that is cut in two stays as it is.
    pub(super) fn rename(&self, bytes: &mut [u8]) {
        if self.0.is_empty() {
            return;
        }
        let mut at = 0;
        while let Some(found) = bytes[at..].windows(HOST.len()).position(|part| part == HOST) {
            at += found + HOST.len();
            for between in BETWEEN {
                let port = at + between.len();
                if !bytes[at..].starts_with(between) {
                    continue;
                }
                let Some(digits) = bytes.get_mut(port..port + 5) else { continue };
                if let Some([_, to]) = self.0.iter().find(|[from, _]| from == digits) {
                    digits.copy_from_slice(to);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn renamed(text: &str) -> String {
        let mut bytes = text.as_bytes().to_vec();
        Addresses::new(&[(20005, 31000), (20006, 31001)]).rename(&mut bytes);
        String::from_utf8(bytes).expect("it was text")
    }

    #[test]
    fn ports_change_where_they_are_those_of_addresses() {
        for (text, other) in [
            ("-MOVED 3999 127.0.0.1:20005\r\n", "-MOVED 3999 127.0.0.1:31000\r\n"),
            ("a 127.0.0.1:20006@30006 b 127.0.0.1:20005@1", "a 127.0.0.1:31001@30006 b 127.0.0.1:31000@1"),
            (
                "switch mymaster 127.0.0.1 20005 127.0.0.1 20006",
                "switch mymaster 127.0.0.1 31000 127.0.0.1 31001",
            ),
            ("*2\r\n$9\r\n127.0.0.1\r\n$5\r\n20005\r\n", "*2\r\n$9\r\n127.0.0.1\r\n$5\r\n31000\r\n"),
            ("$9\r\n127.0.0.1\r\n:20006\r\n", "$9\r\n127.0.0.1\r\n:31001\r\n"),
            ("127.0.0.1\r\n$4\r\nport\r\n$5\r\n20005\r\n", "127.0.0.1\r\n$4\r\nport\r\n$5\r\n31000\r\n"),
        ] {
            assert_eq!(renamed(text), other);
        }
    }

    #[test]
    fn nothing_else_changes() {
        for text in
            ["20005", "token 1795268820005855", "127.0.0.1:20007", "127.0.0.2:20005", "127.0.0.1:2000"]
        {
            assert_eq!(renamed(text), text);
        }
    }
}
