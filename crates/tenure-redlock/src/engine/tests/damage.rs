//! What a server does when keys of its own go one by one, or are overwritten: the others of a batch do not suffer, numbers do not fall,
//! and all is free again after the longest ttl.

use std::collections::BTreeMap;
use tenure_redis::server::number;

use super::*;

const NAMES: [&str; 5] = ["mutex", "pool", "rw", "untouched", "value"];
const LETTERS: [&str; 7] = ["C", "H", "T", "Q", "W", "X", "V"];
const TTL: Duration = Duration::from_millis(400);
/// Longer than any waiter, hold or value here lives.
const LONG: Duration = Duration::from_secs(70);

fn random_claim(id: u128) -> (Own, Option<u32>) {
    let name = NAMES[fastrand::usize(..NAMES.len())];
    let mut claim = claim(id, name);
    let mut terms = Terms::clone(&claim.terms);
    terms.ttl = TTL;
    let mut slot = None;
    match name {
        "pool" => {
            (terms.kind, terms.capacity) = (Kind::SlotPool, 3);
            slot = Some(fastrand::u32(0..3));
        }
        "rw" => {
            (terms.kind, terms.capacity) = (Kind::RwLock, CAPACITY_MAX);
            terms.weight = if fastrand::bool() { 1 } else { CAPACITY_MAX };
        }
        "value" => terms.unless_fresh = true,
        _ => {}
    }
    claim.terms = Arc::new(terms);
    claim.wait = fastrand::bool();
    let mut own = attempt(&claim, 1);
    own.ticket = SystemClock.time_of_day().micros();
    (own, slot)
}

/// Damages something of a name: it is deleted, or overwritten.
fn damage(server: &RedisServer, name: &str, overwrites: bool) {
    let letter = LETTERS[fastrand::usize(..LETTERS.len())];
    let key = match fastrand::u32(0..8) {
        0 => format!("tenure:{name}"),
        1 => "tenure.1.base".to_owned(),
        _ => format!("tenure.1.{letter}:tenure:{name}"),
    };
    server.command(&["DEL", &key]);
    if overwrites && key != "tenure.1.base" {
        let text = format!("{:032x} m 99999999999999999999 0000000000000001 00000400 1 0 0 0 1 - x", 7);
        match fastrand::u32(0..3) {
            0 => server.command(&["SET", &key, &text, "PX", "500"]),
            1 => server.command(&["SET", &key, "-1e400", "PX", "500"]),
            _ => {
                server.command(&["HSET", &key, "kind", "book", "k", "none"]);
                server.command(&["PEXPIRE", &key, "500"])
            }
        };
    }
}

fn request(quorum: &Quorum, owns: &[(Own, Option<u32>)]) -> Request {
    let key = |own: &Own| quorum.key_text(&own.claim.resource);
    let mut request = match fastrand::u32(0..7) {
        0..=2 => {
            let mut request = Request::new(&LIBRARY.claim);
            text::claims(&mut request, owns, SystemClock.time_of_day().micros(), key);
            return request;
        }
        3 => Request::new(&LIBRARY.renew),
        4 => Request::new(&LIBRARY.stamp),
        _ => Request::new(&LIBRARY.release),
    };
    let token = SystemClock.time_of_day().micros().to_string();
    for (own, _) in owns {
        let words = if request.is_of(&LIBRARY.stamp) {
            vec![token.clone()]
        } else if request.is_of(&LIBRARY.release) {
            let waits_on = own.claim.wait && fastrand::bool();
            let released = Ending::Released { is_unused: false, is_finished: fastrand::bool() };
            vec![text::ending(Some(own), if waits_on { Ending::GivenBack } else { released })]
        } else {
            request.ask_alike(key(own), own.claim.id);
            continue;
        };
        request.ask(key(own), own.claim.id, words);
    }
    request
}

/// What happened, judged as it comes.
#[derive(Default)]
struct Judge {
    /// The largest number of each name, and whose it is.
    largest: BTreeMap<String, (u64, ClaimId)>,
    grants: usize,
    errors: usize,
}

impl Judge {
    fn hear(&mut self, own: &Own, item: Value, may_fail: bool) {
        let name = own.claim.resource.as_str().to_owned();
        if let Value::Array(fields) = &item
            && matches!(&fields[0], Value::BulkString(word) if word == b"E")
        {
            assert!(may_fail && name != "untouched", "{name} suffers: {fields:?}");
            self.errors += 1;
            return;
        }
        let Ok(number) = number(&item) else { return };
        // Small ones say something else.
        if number < 1_000_000_000 {
            return;
        }
        let (largest, whose) = self.largest.get(&name).copied().unwrap_or((0, ClaimId::new(0)));
        assert!(number > largest || own.claim.id == whose, "{name} was given {number} after {largest}");
        self.largest.insert(name, (number.max(largest), own.claim.id));
        self.grants += 1;
    }
}

fn runs_on_damage(overwrites: bool) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    fastrand::seed(seed);
    with_servers(&RedisOptions::default().clock(), async |quorum, servers| {
        let mut judge = Judge::default();
        let mut round = 0;
        // The test is worth something only if there are grants, which damage may keep away for long.
        while round < 300 || (judge.grants <= 30 && round < 3000) {
            round += 1;
            if fastrand::u32(0..3) == 0 {
                damage(&servers[0], NAMES[fastrand::usize(..3)], overwrites);
            }
            if fastrand::u32(0..20) == 0 {
                // Some holds end, or all that there is.
                servers[0].clock().advance(if fastrand::bool() { TTL / 2 } else { 20 * TTL });
            }
            let owns: Vec<(Own, Option<u32>)> =
                (0..8).map(|_| random_claim(u128::from(fastrand::u32(1..20)) + 32 * (round / 30))).collect();
            let request = request(quorum, &owns);
            let said = quorum.ask(0, WITHIN, true, &request).await;
            let said = said.unwrap_or_else(|fault| panic!("a whole batch fails: {fault}"));
            assert!(said.counts, "it counts");
            if request.is_of(&LIBRARY.claim) {
                owns.iter().zip(said.items).for_each(|((own, _), item)| judge.hear(own, item, overwrites));
            }
            let looks = NAMES
                .iter()
                .fold(Request::new(&LIBRARY.look), |looks, name| looks.key(format!("tenure:{name}")));
            quorum.ask(0, WITHIN, true, &looks).await.expect("a look is answered");
        }
        assert!(judge.grants > 30, "{} grants", judge.grants);
        servers[0].clock().advance(LONG);
        for (name, id) in NAMES.iter().zip(1000..) {
            let own = std::iter::repeat_with(|| random_claim(id))
                .find(|(own, _)| own.claim.resource.as_str() == *name);
            let mut request = Request::new(&LIBRARY.claim);
            let key = |own: &Own| quorum.key_text(&own.claim.resource);
            text::claims(
                &mut request,
                &[own.expect("there is one")],
                SystemClock.time_of_day().micros(),
                key,
            );
            let item = ask(quorum, request).await.items.remove(0);
            let answer = text::answer(item.clone());
            assert!(matches!(answer, Ok(text::NodeAnswer::Granted { .. })), "{name} is free again: {item:?}");
        }
    });
}

#[test]
fn keys_that_are_deleted_one_by_one_hurt_nobody_else() {
    runs_on_damage(false);
}

#[test]
fn keys_that_strangers_overwrite_hurt_nobody_else() {
    runs_on_damage(true);
}
