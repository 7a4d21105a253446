//! What reads the names and the data of ZooKeeper's nodes, for random bytes.

use tenure_core::clock::Timestamp;
use tenure_core::model::claim::{ClaimId, Label, Name, Terms};
use tenure_core::testing::fuzz::{Target, read_url, texts};

use crate::config::Config;
use crate::locks::node::{Content, Layout};
use crate::name::{escape, is_path, unescape};

/// The readers of this crate.
pub const TARGETS: &[Target] = &[
    Target { name: "zookeeper-node", read: node, seeds: nodes },
    Target { name: "zookeeper-names", read: names, seeds: lists },
    Target { name: "zookeeper-url", read: url, seeds: urls },
];

const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

fn node(bytes: &[u8]) {
    let content = Content::read(bytes);
    content.is_broken();
    if let Some(entry) = &content.entry {
        let written = Content::write(entry, content.value.as_deref());
        assert_eq!(Content::read(&written).value, content.value);
    }
}

fn nodes() -> Vec<Vec<u8>> {
    let entry = format!("1 {:032x} {:016x} s 3 1 10000 1800000000000 - host/1/program it", 1, 2);
    vec![entry.clone().into_bytes(), format!("{entry}\nvalue").into_bytes()]
}

/// The names of some nodes, a line each, after a line with what the resource's node says.
fn names(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (data, names) = text.split_once('\n').unwrap_or_default();
    let resource = Name::new("r").expect("a good name");
    for layout in [Layout::Tenure, Layout::Curator, Layout::Kazoo] {
        let seen = layout.seen(names.lines().map(str::to_owned).collect(), Some(data.as_bytes()));
        let line = seen.line();
        for child in &seen.children {
            line.standing(child.entry.claim);
            line.blockers(child.entry.claim);
        }
        seen.child(ClaimId::new(1));
        line.busy(NOW);
        line.view(&resource, NOW);
        line.would_hold(&Terms::of_mutex(Label::from_stored("label"))).ok();
    }
    for name in names.lines() {
        is_path(name);
        if let Some(resource) = unescape(name) {
            assert_eq!(escape(resource.as_str()), name);
        }
    }
}

fn lists() -> Vec<Vec<u8>> {
    let (one, two, client) = (format!("{:032x}", 1), format!("{:032x}", 2), format!("{:016x}", 7));
    let seeds = [
        format!(
            "1 resized 3 1 2\ns-3-1-{one}-{client}-0000000001\ns-3-2-{two}-{client}-0000000002\nslot-1\n"
        ),
        "\n_c_00000000-0000-0000-0000-000000000001-lock-0000000001\n_c_x-lock--2147483648\n".to_owned(),
        format!("\n{one}__lock__0000000001\n{two}__lock__2147483647\n"),
        "\nbilling%2F4711\n%2E%2E\n".to_owned(),
    ];
    seeds.map(String::into_bytes).into()
}

fn url(bytes: &[u8]) {
    read_url(bytes, Config::parse);
}

fn urls() -> Vec<Vec<u8>> {
    texts([
        "zookeeper://a:2181,b:2181/locks?session_timeout=10s&layout=curator&user=u&password=s3cret",
        "zookeepers://a:2281?ca=/a.pem",
    ])
}

#[cfg(test)]
mod tests {
    #[test]
    fn readers_bear_any_bytes() {
        tenure_core::testing::fuzz::replay(super::TARGETS);
    }
}
