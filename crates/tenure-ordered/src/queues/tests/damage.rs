//! Rows that somebody has changed: an operator, or whoever else may write there. Every verb answers, and none panics.

use std::time::Duration;

use tenure_core::testing::random::cases;

use super::*;

/// How long a verb may take that reads a few rows in memory; it gives up long before.
const ANSWERS_WITHIN: Duration = Duration::from_secs(60);

/// Makes a queue that has some of everything.
async fn fill(shared: &Mutex<Shared>, client: &Queues<Fake>, random: &mut fastrand::Rng) {
    for number in 0..8_u8 {
        let group = ["a", "b", "long/group"].get(random.usize(..4)).copied();
        let payload = vec![number; if random.u8(..4) == 0 { 2000 } else { 5 }];
        let dedup = random.bool().then(|| Name::new(&format!("d{number}")).unwrap());
        let delay = if random.u8(..4) == 0 { SECOND } else { Duration::ZERO };
        drop(client.push(vec![Push { dedup, delay, ..push(group, payload) }]).await);
    }
    let taken = one_take(client, take(1, 4, Interval::Off)).await;
    for item in taken.items.iter().take(2) {
        drop(client.settle(vec![settle(item.claim, Settlement::Fail { reason: "broken".to_owned() })]).await);
    }
    let mut shared = shared.lock().unwrap();
    shared.now = shared.now + SECOND * random.u32(..40);
}

fn damage_bytes(bytes: &mut Vec<u8>, random: &mut fastrand::Rng) {
    let at = random.usize(..=bytes.len());
    match random.u8(..5) {
        0 => bytes.truncate(at),
        1 => bytes.insert(at, random.u8(..)),
        2 if at < bytes.len() => drop(bytes.remove(at)),
        3 => bytes.splice(at.., *b"ffffffffffffffff").for_each(drop),
        _ if at < bytes.len() => bytes[at] = random.u8(..),
        _ => bytes.push(random.u8(..)),
    }
}

/// Changes a row or the head.
fn damage(shared: &mut Shared, random: &mut fastrand::Rng) {
    let keys: Vec<Key> = shared.rows.keys().cloned().collect();
    let Some(key) = random.choice(keys) else { return };
    let mut value = shared.rows[&key].to_vec();
    match random.u8(..8) {
        0 => drop(shared.rows.remove(&key)),
        1..=3 => {
            let mut other = key.clone();
            damage_bytes(&mut other, random);
            if random.bool() {
                shared.rows.remove(&key);
            }
            shared.rows.insert(other, value.into());
        }
        4 => {
            let mut head = shared.head.clone().unwrap_or_default().to_vec();
            damage_bytes(&mut head, random);
            shared.head = Some(head.into());
        }
        _ => {
            damage_bytes(&mut value, random);
            shared.rows.insert(key, value.into());
        }
    }
    shared.version += 1;
}

/// Asks one thing, whatever comes of it.
async fn ask_anything(client: &Queues<Fake>, id: u64, claims: &mut Vec<ClaimId>, random: &mut fastrand::Rng) {
    let claim = random.choice(claims.iter().copied()).unwrap_or(ClaimId::new(77));
    let which = if random.bool() { Which::Live } else { Which::Dead };
    match random.u8(..9) {
        0 => {
            let group = ["a", "b"].get(random.usize(..3)).copied();
            drop(client.push(vec![push(group, vec![1; 3])]).await);
        }
        1..=3 => {
            let taken = client.take(vec![take(id, 2, Interval::Off)]).await;
            claims.extend(taken.into_iter().flatten().flat_map(|taken| taken.items).map(|item| item.claim));
        }
        4 => {
            let settlement = match random.u8(..3) {
                0 => Settlement::Ack,
                1 => Settlement::Retry { after: SECOND, attempts_max: 3, reason: "again".to_owned() },
                _ => Settlement::Return,
            };
            drop(client.settle(vec![settle(claim, settlement)]).await);
        }
        5 => drop(client.renew(vec![RenewRequest { resource: queue(), claim, is_waiter: false }]).await),
        6 => drop((client.stats(queue()).await, client.items(queue(), which, None, 99).await)),
        7 => drop(client.replay(queue(), None, 2).await),
        _ => drop(client.purge(queue(), which, None, 2).await),
    }
}

#[test]
fn every_verb_answers_whatever_the_rows_are() {
    run_unwaited(async {
        for seed in 0..u64::from(cases(250)) {
            let mut random = fastrand::Rng::with_seed(seed);
            let (shared, clients) = clients(2, u64::MAX);
            fill(&shared, &clients[0], &mut random).await;
            for _ in 0..random.usize(1..4) {
                damage(&mut shared.lock().unwrap(), &mut random);
            }
            let mut claims = Vec::new();
            for _ in 0..8 {
                let at = random.usize(..2);
                let asked = ask_anything(&clients[at], at as u64 + 1, &mut claims, &mut random);
                let answer = tokio::time::timeout(ANSWERS_WITHIN, asked).await;
                assert!(answer.is_ok(), "seed {seed}: no answer");
                let mut shared = shared.lock().unwrap();
                shared.now = shared.now + Duration::from_millis(random.u64(..5_000));
            }
        }
    });
}
