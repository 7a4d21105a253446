//! Two clients, one lock, and networks that do anything at any time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::Inconclusive;
use crate::driver::Driver;
use crate::proxy::Dice;
use crate::world::{World, granted};

/// How long they contend.
const PERIOD: Duration = Duration::from_secs(15);
/// Fewer grants show nothing.
const GRANTS_MIN: u64 = 6;

/// Once one of them was granted a token, no question that is asked later finds the other believing in a smaller one.
pub(crate) fn two_clients_never_both_believe(world: &mut World) -> Result<(), Inconclusive> {
    let seed = std::env::var("TENURE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand_seed);
    println!("           seed {seed}");
    let (mut other, proxy) = world.another();
    world.proxy.shake(Dice::new(seed));
    proxy.shake(Dice::new(seed ^ 0x9e37_79b9_7f4a_7c15));
    let contest = Contest {
        name: world.name.clone(),
        newest: AtomicU64::new(0),
        grants: AtomicU64::new(0),
        end: Instant::now() + PERIOD,
    };
    std::thread::scope(|scope| {
        let second = scope.spawn(|| contest.contend(&mut other, Dice::new(seed.rotate_left(7))));
        contest.contend(&mut world.client, Dice::new(seed.rotate_left(19)));
        second.join().expect("both believed");
    });
    let grants = contest.grants.into_inner();
    println!("           {grants} grants");
    if grants < GRANTS_MIN { Err(Inconclusive(format!("only {grants} grants"))) } else { Ok(()) }
}

fn rand_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}

struct Contest {
    name: String,
    /// The largest token that a client has said to have.
    newest: AtomicU64,
    grants: AtomicU64,
    end: Instant,
}

impl Contest {
    fn contend(&self, client: &mut Driver, mut dice: Dice) {
        let mut turn = 0;
        while Instant::now() < self.end {
            turn += 1;
            // A key for each turn, so that no late line is taken for another's.
            let key = format!("t{turn}");
            let said = client.ask(&format!("acquire {key} {} 1000 3000", self.name));
            let Some(token) = granted(&said) else { continue };
            self.grants.fetch_add(1, Ordering::SeqCst);
            let before = self.newest.fetch_max(token, Ordering::SeqCst);
            assert_ne!(before, token, "two grants with one token");
            self.believe(client, &key, token, &mut dice);
            client.ask(&format!("release {key}"));
        }
    }

    /// Asks what it believes, for a while.
    fn believe(&self, client: &mut Driver, key: &str, token: u64, dice: &mut Dice) {
        let end = Instant::now() + Duration::from_millis(dice.below(1_500));
        if dice.below(4) == 0 {
            // Longer than its ttl, sometimes.
            tenure_testkit::signal(client.pid(), Signal::STOP);
            std::thread::sleep(Duration::from_millis(dice.below(2_000)));
            tenure_testkit::signal(client.pid(), Signal::CONT);
        }
        loop {
            let newest = self.newest.load(Ordering::SeqCst);
            let is_held = client.ask(&format!("check {key}")) == "held";
            assert!(
                !is_held || token >= newest,
                "it believes in {token}, and another was granted {newest} before"
            );
            if !is_held || Instant::now() >= end {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
