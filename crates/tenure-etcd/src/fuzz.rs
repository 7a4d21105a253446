//! What reads what etcd has stored and answers, for random bytes.

use prost::Message;
use tenure_core::clock::Timestamp;
use tenure_core::model::claim::{ClaimId, Label, Name, Terms};
use tenure_core::model::token::Token;
use tenure_core::testing::fuzz::{Target, read_url, texts};

use crate::client::proto::{KeyValue, RangeResponse};
use crate::config::Config;
use crate::keys::{Keys, Layout, write_rest, write_value};

/// The readers of this crate.
pub const TARGETS: &[Target] = &[
    Target { name: "etcd-range", read: range, seeds: ranges },
    Target { name: "etcd-url", read: url, seeds: urls },
];

const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);
const LAYOUTS: [Layout; 2] = [Layout::Tenure, Layout::Etcdctl];

fn name() -> Name {
    Name::new("r").expect("a good name")
}

fn range(bytes: &[u8]) {
    let Ok(answer) = RangeResponse::decode(bytes) else { return };
    for layout in LAYOUTS {
        let keys = Keys::new("tenure/", layout);
        let line = keys.read_line(&name(), &answer.kvs);
        let claims: Vec<ClaimId> = line.places().iter().map(|place| place.entry.claim).collect();
        for claim in claims {
            line.standing(claim);
            line.blockers(claim);
        }
        line.busy(NOW);
        line.view(&name(), NOW);
        line.would_hold(&Terms::of_mutex(Label::from_stored("label"))).ok();
        keys.read_value(&name(), &answer.kvs);
        for key in &answer.kvs {
            for room in ["line", "value", "queue"] {
                keys.name_in(room, &key.key);
            }
        }
    }
}

fn ranges() -> Vec<Vec<u8>> {
    let entry = tenure_core::model::line::Entry::decode(&format!(
        "1 {:032x} {:016x} s 3 1 10000 1800000000000 - host/1/program it",
        1, 2
    ))
    .expect("an entry");
    let seeds = LAYOUTS.map(|layout| {
        let keys = Keys::new("tenure/", layout);
        let rows = [
            (keys.place(&name(), ClaimId::new(1)), entry.encode().into_bytes()),
            (keys.place(&name(), ClaimId::new(2)), entry.encode().into_bytes()),
            (keys.rest(&name(), ClaimId::new(3)), write_rest(7, Token::new(17), Some(1), &entry)),
            (keys.slot(&name(), 1), ClaimId::new(1).to_string().into_bytes()),
            (keys.resized(&name()), b"7 8 2".to_vec()),
            (
                keys.held_value(&name(), ClaimId::new(1)),
                write_value(Token::new(17), std::time::Duration::from_secs(1), b"value"),
            ),
        ];
        let kvs = rows.into_iter().zip(5..).map(|((key, value), revision)| KeyValue {
            key,
            value,
            create_revision: revision,
            mod_revision: revision,
            version: 1,
            lease: 7,
        });
        RangeResponse { kvs: kvs.collect(), count: 6, ..RangeResponse::default() }.encode_to_vec()
    });
    seeds.into()
}

fn url(bytes: &[u8]) {
    read_url(bytes, Config::parse);
}

fn urls() -> Vec<Vec<u8>> {
    texts([
        "etcd://user:s3cret@a:2379,b:2379?prefix=x&layout=etcdctl",
        "etcds://a:2379?ca=/a.pem&cert=/b.pem&key=/c.pem",
    ])
}

#[cfg(test)]
mod tests {
    #[test]
    fn readers_bear_any_bytes() {
        tenure_core::testing::fuzz::replay(super::TARGETS);
    }
}
