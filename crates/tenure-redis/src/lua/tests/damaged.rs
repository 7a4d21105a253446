//! Keys that were deleted or overwritten. What still exists stays exclusive, no operation fails for others, and
//! everything is free again after the longest ttl.

use super::*;

/// A hold as its client believes in it.
#[derive(Clone, Debug)]
struct Believed {
    kind: Kind,
    weight: u32,
    slot: Option<u32>,
    until: Timestamp,
}

/// A resource of which keys are deleted at random, and what its clients believe to hold.
struct Damaged<'a, 'b> {
    pair: Pair<'a, 'b>,
    believed: HashMap<ClaimId, Believed>,
    /// Whether the name is claimed as one kind and then as another.
    is_disputed: bool,
}

impl Damaged<'_, '_> {
    fn turn(&mut self) {
        if self.is_disputed && self.pair.random.u8(0..8) == 0 {
            self.pair.shape = shape(&mut self.pair.random);
        }
        match self.pair.random.u8(0..100) {
            0..40 => self.claim(),
            40..65 => self.renew(),
            65..80 => self.release(),
            80..84 => self.publish(),
            84..86 => self.resize(),
            _ => (0..self.pair.random.usize(1..4)).for_each(|_| self.delete()),
        }
        self.pair.assert_all_ends();
        self.look();
    }

    fn said(&self) -> String {
        format!("{:#?}\n{:#?}", self.believed, self.pair.tail())
    }

    /// Deletes one key: that of the resource, one beside it, or one that all resources share.
    fn delete(&mut self) {
        let pair = &mut self.pair;
        let mut keys = pair.all_keys();
        let key = keys.swap_remove(pair.random.usize(..keys.len()));
        pair.log.push(format!("{:?}: DEL {key}", pair.now));
        let _: () = redis::cmd("DEL").arg(&key).query(&mut pair.connection).unwrap();
        if key == pair.key.text {
            // So an operator breaks every hold: their holders learn it when they renew.
            self.believed.clear();
        }
    }

    fn note(&mut self, claim: &Claim, grant: Grant) {
        let now = self.pair.now;
        let terms = &claim.terms;
        let believed =
            Believed { kind: terms.kind, weight: terms.weight, slot: grant.slot, until: now + grant.ends_in };
        self.believed.remove(&claim.id);
        let others = self.believed.values().filter(|other| other.until > now);
        let used: u64 = others.clone().map(|other| u64::from(other.weight)).sum();
        let fits = used + u64::from(terms.weight) <= u64::from(terms.capacity)
            && others
                .clone()
                .all(|other| other.kind == terms.kind && (grant.slot.is_none() || other.slot != grant.slot));
        assert!(fits, "{} is granted beside others: {}", claim.id, self.said());
        assert_eq!(grant.slot.is_some(), terms.kind == Kind::SlotPool, "{}", self.said());
        self.believed.insert(claim.id, believed);
    }

    fn claim(&mut self) {
        let count = self.pair.random.usize(1..4);
        let claims = Vec::from_iter((0..count).map(|_| self.pair.any_or_new_claim()));
        let push = |cmd: &mut Cmd| CLAIM_ARGUMENTS.push(cmd, &claims.iter().collect::<Vec<_>>());
        let (now, items) = self.pair.call(&self.pair.scripts.library.claim, count, push);
        for (claim, item) in claims.iter().zip(items) {
            let got =
                answer::claimed(claim, now, item).unwrap_or_else(|what| panic!("{what:?}: {}", self.said()));
            self.pair.log.push(format!("{now:?}: {claim:?} -> {got:?}"));
            if let Ok(Claimed::Granted(grant)) = got {
                self.note(claim, grant);
            }
        }
    }

    fn renew(&mut self) {
        let (claim, is_waiter) = (self.pair.any_claim(), self.pair.random.bool());
        let request = RenewRequest { resource: self.pair.name.clone(), claim, is_waiter };
        let push = |cmd: &mut Cmd| RENEW_ARGUMENTS.push(cmd, &[&request]);
        let (now, mut items) = self.pair.call(&self.pair.scripts.library.renew, 1, push);
        let got = answer::renewed(items.remove(0)).unwrap_or_else(|what| panic!("{what:?}: {}", self.said()));
        self.pair.log.push(format!("{now:?}: renew {claim} -> {got:?}"));
        match got {
            Renewed::Held(mut grant) => {
                let Some(claim) = self.pair.claims.iter().find(|known| known.id == claim).cloned() else {
                    return;
                };
                if !is_waiter {
                    // Such an answer names no slot: it is that of a lease which its client still believes in.
                    let believed = self.believed.get(&claim.id).filter(|believed| believed.until > now);
                    grant.slot = believed.and_then(|believed| believed.slot);
                    if claim.terms.kind == Kind::SlotPool && grant.slot.is_none() {
                        return;
                    }
                }
                self.note(&claim, grant);
            }
            Renewed::Lost => {
                let lost = self.believed.remove(&claim).filter(|believed| believed.until > now);
                assert!(lost.is_none(), "{claim} was lost although its key is there: {}", self.said());
            }
            Renewed::Waiting(_) => {}
        }
    }

    fn release(&mut self) {
        let claim = self.pair.any_claim();
        let release = Release { claim, maybe_in_flight: self.pair.random.bool(), is_unused: false };
        let request = ReleaseRequest { resource: self.pair.name.clone(), release };
        let push = |cmd: &mut Cmd| RELEASE_ARGUMENTS.push(cmd, &[&request]);
        let item = self.pair.call(&self.pair.scripts.library.release, 1, push).1.remove(0);
        self.pair.log.push(format!("{:?}: release {claim} -> {item:?}", self.pair.now));
        answer::released(item).unwrap_or_else(|what| panic!("{what:?}: {}", self.said()));
        self.believed.remove(&claim);
    }

    fn publish(&mut self) {
        let claim = self.pair.any_claim().to_string().into_bytes();
        self.pair.one(&self.pair.scripts.library.publish, &[claim, b"value".to_vec(), vec![], vec![]]);
        self.pair.call(&self.pair.scripts.library.observe, 1, |cmd| {
            cmd.arg(30_000);
        });
    }

    /// To what it is.
    fn resize(&mut self) {
        let (kind, capacity) = self.pair.shape;
        if !self.is_disputed && matches!(kind, Kind::Semaphore | Kind::SlotPool) {
            self.pair.one(&self.pair.scripts.library.resize, &[capacity.to_string().into_bytes()]);
        }
    }

    fn look(&mut self) -> Option<View> {
        let (now, mut items) = self.pair.call(&self.pair.scripts.library.look, 1, |cmd| {
            cmd.arg(1024);
        });
        let last = Token::new(answer::number(&items.remove(0)).unwrap());
        let view = answer::view(&self.pair.name, now, last, items.remove(0));
        view.unwrap_or_else(|what| panic!("{what:?}: {}", self.said()))
    }

    /// Asserts that everything is free once all that can be held has ended.
    fn assert_healed(&mut self, server: &RedisServer) {
        // A request comes, and what has no end any more gets one.
        self.renew();
        self.advance(server, LONGEST);
        let pair = &mut self.pair;
        let mut claim = pair.any_or_new_claim();
        claim.id = ClaimId::new(pair.random.u128(..));
        (claim.wait, claim.floor) = (false, Token::ZERO);
        let mut terms = (*claim.terms).clone();
        terms.weight = if terms.kind == Kind::SlotPool { 1 } else { terms.capacity };
        terms.unless_fresh = false;
        claim.terms = Arc::new(terms);
        let push = |cmd: &mut Cmd| CLAIM_ARGUMENTS.push(cmd, &[&claim]);
        let (now, mut items) = pair.call(&pair.scripts.library.claim, 1, push);
        let got = answer::claimed(&claim, now, items.remove(0)).unwrap();
        assert!(matches!(got, Ok(Claimed::Granted(_))), "{got:?} {}", self.said());
    }

    fn advance(&mut self, server: &RedisServer, period: Duration) {
        server.clock().advance(period);
        self.pair.now = self.pair.now + period;
    }
}

/// What no ttl and no rest of these tests outlives.
const LONGEST: Duration = Duration::from_millis(8000 + 3000 + 1);

/// Deletes keys of so many resources at random, and panics at the first that lets a second holder in, fails or does not heal.
fn damage(world: &mut World<'_>, is_disputed: bool, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        println!("seed {seed}");
        let server = world.server;
        let mut damaged = Damaged { pair: Pair::new(world, seed), believed: HashMap::new(), is_disputed };
        for _ in 0..80 {
            if damaged.pair.random.bool() {
                let period = Duration::from_millis(damaged.pair.random.u64(1..1500));
                damaged.advance(server, period);
            }
            damaged.turn();
        }
        damaged.assert_healed(server);
        world.now = Duration::from_micros(damaged.pair.now.micros());
    }
}

/// Seeds with which a resource did not heal once, a hold was lost, or somebody was let in; and whether the name was disputed.
const FAILED_ONCE: [(u64, bool); 3] = [
    // `queues` and `x` went together. The next waiter stood behind one who was dead and could not end, and was granted in its turn.
    (3_734_298_518, false),
    // `queues` went, and who waited asked again and was granted. Its old place was granted in its turn as well, and the end of the one hold
    // took the other away.
    (225_200_524_094, false),
    // Some waited for a mutex in a line of readers, who were there first, and were granted as readers when the mutex was free.
    (603_871_917_461, true),
];

fn damage_as_once(world: &mut World<'_>) {
    FAILED_ONCE.into_iter().for_each(|(seed, is_disputed)| damage(world, is_disputed, seed..seed + 1));
}

#[test]
fn deleted_keys_let_nobody_in_beside_a_holder_and_heal() {
    world(["", ""], Form::Function, |world| {
        damage_as_once(world);
        damage(world, false, seeds(more(8, 20)));
    });
}

#[test]
fn deleted_keys_of_a_name_that_is_several_kinds_let_nobody_in_and_heal() {
    world(["", ""], Form::Function, |world| damage(world, true, seeds(more(8, 20))));
}

/// Each rule by which the scripts bear damage, and the scripts without it.
const WEAKER: &[(&str, &str, &str)] = &[
    (
        "the ends agree with the holds",
        "(ends == 0) ~= (record.used == 0) then mend_holds(record) end",
        "false then end",
    ),
    (
        "and what is deleted twice is read from the holds",
        "if used ~= record.used then\n    -- Both",
        "if false then\n    -- Both",
    ),
    (
        "what was beside a deleted key goes",
        "if kind ~= 'm' or (record.kind and record.kind ~= 'm') then",
        "if record.kind then",
    ),
    ("lost slots are found again", "        refill_slots(record)\n", ""),
    (
        "a line is for one kind",
        "if record.waiting > 0 and call('HGET', record.waiters, 'kind') ~= awaited(record) then",
        "if false then",
    ),
    ("no claim holds twice", "record.kind == 'm' or call('HEXISTS', record.key, head) == 0", "true"),
    ("a queue is whole or gone", "call('EXISTS', record.waiters, record.lives) < 2", "false"),
    ("also where it was not known to be there", "    mend_line(record)\n  end\n  -- All", "  end\n  -- All"),
];

#[test]
fn a_script_that_bears_less_is_caught() {
    let check = |world: &mut World<'_>| {
        damage_as_once(world);
        damage(world, false, 0..150);
        damage(world, true, 0..150);
    };
    assert_eq!(missed(WEAKER, check), [""; 0], "nothing differs without these rules");
}
