//! The way of one client to all servers: proxies of its own.

use tenure_testkit::Proxy;

use super::Engine;
use crate::schedule::{Reach, Trouble};

/// A proxy before each address of an engine. Where servers tell their clients where the others are, as Sentinels and the nodes of a
/// cluster do, the proxies write their own ports into it.
pub(crate) struct Way(Vec<Proxy>);

impl Way {
    /// Puts a proxy before each address.
    pub(crate) fn to(engine: &Engine) -> Way {
        let addresses = engine.addresses().into_iter();
        let proxies: Vec<Proxy> = addresses.map(|port| Proxy::start(([127, 0, 0, 1], port))).collect();
        let ports: Vec<(u16, u16)> =
            engine.announced().into_iter().zip(proxies.iter().map(Proxy::port)).collect();
        proxies.iter().for_each(|proxy| proxy.rename(&ports));
        Way(proxies)
    }

    /// Returns the ports of the proxies.
    pub(crate) fn ports(&self) -> Vec<u16> {
        self.0.iter().map(Proxy::port).collect()
    }

    /// Resets connections.
    pub(crate) fn cut(&self, reach: Reach) {
        match reach {
            Reach::All => self.0.iter().for_each(Proxy::cut),
            Reach::Address(address) => self.0[address].cut(),
            Reach::Connection(number) => {
                if let Some((proxy, number)) = self.one(number) {
                    proxy.cut_one(number);
                }
            }
        }
    }

    /// Troubles connections.
    pub(crate) fn trouble(&self, reach: Reach, trouble: Trouble) {
        match reach {
            Reach::All => self.0.iter().for_each(|proxy| trouble_all_of(proxy, trouble)),
            Reach::Address(address) => trouble_all_of(&self.0[address], trouble),
            Reach::Connection(number) => {
                if let Some((proxy, number)) = self.one(number) {
                    trouble_one_of(proxy, number, trouble);
                }
            }
        }
    }

    /// Ends what troubles them.
    pub(crate) fn heal(&self) {
        self.0.iter().for_each(Proxy::heal);
    }

    /// The connection of a number, counted on from the first after the last: its proxy, and its number there.
    fn one(&self, number: usize) -> Option<(&Proxy, usize)> {
        let counts: Vec<usize> = self.0.iter().map(Proxy::connections).collect();
        let mut number = number.checked_rem(counts.iter().sum())?;
        for (proxy, count) in self.0.iter().zip(counts) {
            match number.checked_sub(count) {
                None => return Some((proxy, number)),
                Some(left) => number = left,
            }
        }
        None
    }
}

fn trouble_all_of(proxy: &Proxy, trouble: Trouble) {
    match trouble {
        Trouble::Delay(by) => proxy.delay(by),
        Trouble::LosesReplies => proxy.drop_replies(),
        Trouble::LosesRequests => proxy.drop_requests(),
        Trouble::Silent => proxy.black_hole(),
        Trouble::HoldsBack => proxy.hold_back(),
        Trouble::Refuses => proxy.refuse(),
    }
}

fn trouble_one_of(proxy: &Proxy, number: usize, trouble: Trouble) {
    match trouble {
        Trouble::LosesReplies => proxy.lose_one(number, false, true),
        Trouble::LosesRequests => proxy.lose_one(number, true, false),
        Trouble::Silent => proxy.lose_one(number, true, true),
        Trouble::HoldsBack => proxy.hold_back_one(number),
        Trouble::Delay(_) | Trouble::Refuses => unreachable!("they are planned for addresses alone"),
    }
}
