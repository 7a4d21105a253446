//! Where a request comes from, if a proxy stands in between: `Forwarded` (RFC 7239) says so, and anybody can write it. So it is read from its
//! end, and believed for as long as whoever has written it is a proxy that is trusted.

use std::net::IpAddr;
use std::str::FromStr;

use hyper::HeaderMap;
use hyper::header::FORWARDED;

/// The addresses that begin with the same bits, as `10.0.0.0/8`.
///
/// # Examples
/// ```
/// let proxies: tenure_serve::Network = "10.0.0.0/8".parse()?;
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u32,
}

impl FromStr for Network {
    type Err = String;

    /// An address alone is a network of one.
    fn from_str(text: &str) -> Result<Network, String> {
        let wrong = || format!("{text:?} is no network: 10.0.0.0/8, or one address");
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u32>().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(most);
        if bits > most {
            return Err(wrong());
        }
        Ok(Network { address, bits })
    }
}

impl Network {
    fn contains(self, address: IpAddr) -> bool {
        let differ = match (self.address, address) {
            (IpAddr::V4(one), IpAddr::V4(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
            (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
            _ => return false,
        };
        differ >= self.bits
    }
}

/// Returns the address of the client: that of the other end, or what the proxies say that are trusted.
pub(crate) fn client(headers: &HeaderMap, peer: IpAddr, trusted: &[Network]) -> IpAddr {
    let mut client = peer;
    let lines = headers.get_all(FORWARDED).iter().rev();
    let mut hops = lines.flat_map(|line| split(line.to_str().unwrap_or_default(), ',').into_iter().rev());
    while trusted.iter().any(|network| network.contains(client)) {
        match hops.next().and_then(address_of) {
            Some(before) => client = before,
            // It says nothing, or nothing that is an address: then the proxy stands for its clients.
            None => break,
        }
    }
    client
}

/// The address in one hop: `for=192.0.2.43`, `for="[2001:db8::1]:4711"`.
fn address_of(hop: &str) -> Option<IpAddr> {
    let pairs = split(hop, ';');
    let mut pairs = pairs.iter().filter_map(|pair| pair.split_once('='));
    let (_, node) = pairs.find(|(name, _)| name.trim().eq_ignore_ascii_case("for"))?;
    let node = node.trim().trim_matches('"');
    let address = match node.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?.0,
        // Without brackets it is wrong, and what a line of nginx writes.
        None if node.parse::<IpAddr>().is_ok() => node,
        None => node.split_once(':')?.0,
    };
    address.parse().ok().map(|address: IpAddr| address.to_canonical())
}

/// Splits a text where it is not quoted.
fn split(text: &str, at: char) -> Vec<&str> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    let is_end = |c: char| {
        let is_end = c == at && !is_quoted;
        is_quoted ^= c == '"' && !is_escaped;
        is_escaped = c == '\\' && is_quoted && !is_escaped;
        is_end
    };
    text.split(is_end).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Network {
        text.parse().expect(text)
    }

    #[test]
    fn a_network_has_the_addresses_that_begin_as_it_does() {
        for (text, address, is_in) in [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("192.0.2.128/25", "192.0.2.127", false),
            ("192.0.2.1", "192.0.2.1", true),
            ("192.0.2.1", "192.0.2.2", false),
            ("0.0.0.0/0", "203.0.113.9", true),
            ("0.0.0.0/0", "::1", false),
            ("2001:db8::/32", "2001:db8:1::7", true),
            ("2001:db8::/32", "2001:db9::7", false),
            ("::/0", "::1", true),
        ] {
            let address = address.parse().expect("an address");
            assert_eq!(network(text).contains(address), is_in, "{text} {address}");
        }
        for wrong in ["", "/8", "10.0.0.0/33", "10.0.0/8", "::/129", "10.0.0.0/-1", "10.0.0.0/8/8", "proxy"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_proxy_is_believed_as_far_as_it_is_trusted() {
        let trusted = [network("10.0.0.0/8"), network("fd00::/8")];
        for (peer, lines, is) in [
            ("10.0.0.1", &["for=192.0.2.43"][..], "192.0.2.43"),
            ("10.0.0.1", &["For=\"192.0.2.43:4711\";proto=https"][..], "192.0.2.43"),
            ("10.0.0.1", &["by=10.0.0.9; for=\"[2001:db8::1]:4711\""][..], "2001:db8::1"),
            ("10.0.0.1", &["for=\"2001:db8::1\""][..], "2001:db8::1"),
            ("10.0.0.1", &["for=\"[::ffff:192.0.2.43]\""][..], "192.0.2.43"),
            // Another hop that is trusted, and what a client has made up before it.
            ("10.0.0.1", &["for=203.0.113.9, for=192.0.2.43, for=10.0.0.2"][..], "192.0.2.43"),
            ("10.0.0.1", &["for=203.0.113.9", "for=192.0.2.43"][..], "192.0.2.43"),
            ("fd00::1", &["for=\"[fd00::2]\", for=\"[fd00::3]\""][..], "fd00::2"),
            // Nobody is believed who is not trusted.
            ("192.0.2.7", &["for=203.0.113.9"][..], "192.0.2.7"),
            ("192.0.2.7", &["for=10.0.0.1"][..], "192.0.2.7"),
            // What is no address tells nothing, and hides nothing that comes later.
            ("10.0.0.1", &[][..], "10.0.0.1"),
            ("10.0.0.1", &["for=unknown"][..], "10.0.0.1"),
            ("10.0.0.1", &["for=203.0.113.9, for=_hidden"][..], "10.0.0.1"),
            ("10.0.0.1", &["for=203.0.113.9, proto=https"][..], "10.0.0.1"),
            ("10.0.0.1", &["for=\"203.0.113.9, for=192.0.2.43"][..], "10.0.0.1"),
            ("10.0.0.1", &["for=192.0.2.43;host=\"a, for=203.0.113.9\""][..], "192.0.2.43"),
            ("10.0.0.1", &["for=192.0.2.43;host=\"a\\\", for=203.0.113.9\""][..], "192.0.2.43"),
        ] {
            let lines = lines.iter().map(|line| (FORWARDED, line.parse().expect("a value")));
            let headers: HeaderMap = lines.collect();
            let found = client(&headers, peer.parse().expect("an address"), &trusted);
            assert_eq!(found.to_string(), is, "{peer} {headers:?}");
        }
    }

    #[test]
    fn random_texts_are_no_danger() {
        let mut random = fastrand::Rng::with_seed(7);
        let letters: Vec<char> = "for=;,\"\\[]:.10af _".chars().collect();
        for _ in 0..20_000 {
            let text: String =
                (0..random.usize(..40)).map(|_| *random.choice(&letters).expect("one")).collect();
            let headers: HeaderMap = [(FORWARDED, text.parse().expect("a value"))].into_iter().collect();
            client(&headers, IpAddr::from([10, 0, 0, 1]), &[network("0.0.0.0/0"), network("::/0")]);
        }
    }
}
