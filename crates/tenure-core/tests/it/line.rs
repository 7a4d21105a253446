//! The rule of ordered stores beside `step`: whoever comes and goes, both have the same claims hold and wait.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tenure_core::clock::Timestamp;
use tenure_core::model::claim::{
    CAPACITY_MAX, Claim, ClaimId, ClientId, HoldLimits, Kind, Label, Name, Terms,
};
use tenure_core::model::line::{Entry, Line, Place, Resized, Rest, Standing, TakenSlot};
use tenure_core::model::record::{PlainRecord, Record};
use tenure_core::model::step::{Release, step};
use tenure_core::model::token::Token;

use crate::world::START;

#[derive(Clone, Debug)]
enum Change {
    Comes(u32),
    Goes(usize),
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let change = prop_oneof![
        3 => (0u32..8).prop_map(Change::Comes),
        2 => (0usize..12).prop_map(Change::Goes),
    ];
    prop::collection::vec(change, 1..60)
}

fn shape() -> impl Strategy<Value = (Kind, u32)> {
    prop_oneof![
        Just((Kind::Mutex, 1)),
        Just((Kind::RwLock, CAPACITY_MAX)),
        (1u32..6).prop_map(|capacity| (Kind::Semaphore, capacity)),
        (1u32..6).prop_map(|capacity| (Kind::SlotPool, capacity)),
    ]
}

fn claim(number: u128, kind: Kind, capacity: u32, heavy: u32) -> Claim {
    let weight = match kind {
        Kind::Semaphore => 1 + heavy % capacity,
        Kind::RwLock if heavy < 2 => CAPACITY_MAX,
        _ => 1,
    };
    let terms = Terms {
        kind,
        capacity,
        weight,
        ttl: Duration::from_secs(30),
        limits: HoldLimits::default(),
        label: Label::new("here", 7, "line", "a test"),
        unless_fresh: false,
    };
    Claim {
        resource: Name::new("x").expect("a short name is one"),
        id: ClaimId::new(number),
        client: ClientId::new(1),
        terms: Arc::new(terms),
        wait: true,
        floor: Token::ZERO,
        floor_forced: false,
        may_be_known: false,
    }
}

fn place(order: u64, claim: &Claim) -> Place {
    let mut entry = Entry::new(claim, START, Duration::from_secs(30));
    entry.about.as_mut().expect("it was made with it").token = Token::new(order);
    Place { order, entry }
}

fn line(places: &[Place]) -> Line {
    Line::new(places.to_vec(), Vec::new(), None, Vec::new())
}

fn holds(line: &Line) -> Vec<ClaimId> {
    line.places()[..line.holding()].iter().map(|place| place.entry.claim).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(tenure_core::testing::random::cases(256)))]

    #[test]
    fn the_line_and_step_agree((kind, capacity) in shape(), changes in changes()) {
        let mut record = PlainRecord::default();
        let mut places: Vec<Place> = Vec::new();
        for (number, change) in (1u64..).zip(&changes) {
            let stepped = match change {
                Change::Comes(heavy) => {
                    let claim = claim(u128::from(number), kind, capacity, *heavy);
                    let would = line(&places).would_hold(&claim.terms);
                    places.push(place(number, &claim));
                    let holds = matches!(line(&places).standing(claim.id), Some(Standing::Holds));
                    prop_assert_eq!(would, Ok(holds));
                    step(&mut record, &claim, START).map(drop)
                }
                Change::Goes(_) if places.is_empty() => continue,
                Change::Goes(nth) => {
                    let gone = places.remove(nth % places.len());
                    let release = Release { claim: gone.entry.claim, maybe_in_flight: false, is_unused: false };
                    step(&mut record, &release, START).map(drop)
                }
            };
            let Ok(()) = stepped;
            let (Ok(mut held), Ok(waiting)) = (record.holds(100), record.waiters(100));
            held.sort_by_key(|hold| hold.token);
            let line = line(&places);
            prop_assert_eq!(held.iter().filter_map(|hold| hold.claim).collect::<Vec<_>>(), holds(&line));
            let behind: Vec<ClaimId> =
                line.places()[line.holding()..].iter().map(|place| place.entry.claim).collect();
            prop_assert_eq!(waiting.iter().map(|waiter| waiter.claim).collect::<Vec<_>>(), behind);
            prop_assert_eq!(line.used(), held.iter().map(|hold| hold.weight).sum::<u32>());
        }
    }

    #[test]
    fn a_waiter_cannot_hold_before_one_of_its_blockers_goes(
        (kind, capacity) in shape(),
        heavy in prop::collection::vec(0u32..8, 1..12),
        gone in prop::collection::vec(any::<bool>(), 12),
    ) {
        let claims: Vec<Claim> =
            (1u128..).zip(&heavy).map(|(number, heavy)| claim(number, kind, capacity, *heavy)).collect();
        let places: Vec<Place> = (1u64..).zip(&claims).map(|(order, claim)| place(order, claim)).collect();
        for Place { entry, .. } in &places {
            let all = line(&places);
            let blockers = all.blockers(entry.claim);
            let is_waiting = matches!(all.standing(entry.claim), Some(Standing::Waits(_)));
            prop_assert_eq!(is_waiting, !blockers.is_empty());
            let stays = |(index, place): &(usize, &Place)| {
                !gone[*index] || place.entry.claim == entry.claim || blockers.iter().any(|blocker| blocker.order == place.order)
            };
            let left: Vec<Place> =
                places.iter().enumerate().filter(stays).map(|(_, place)| place.clone()).collect();
            let holds = matches!(line(&left).standing(entry.claim), Some(Standing::Holds));
            prop_assert!(!(is_waiting && holds), "{:?} holds beside {:?}", entry.claim, blockers);
        }
    }

    #[test]
    fn an_entry_is_read_as_it_is_written(
        number: u128, (kind, capacity) in shape(), heavy in 0u32..8, is_broken: bool, text in "\\PC{0,60}",
    ) {
        let mut entry = Entry::new(&claim(number, kind, capacity, heavy), START, Duration::from_millis(1500));
        let about = entry.about.as_mut().unwrap();
        about.label = Label::new("here", 7, "line", &text);
        about.is_broken = is_broken;
        prop_assert_eq!(Entry::decode(&entry.encode()), Some(entry.clone()));
        entry.about = None;
        prop_assert_eq!(Entry::decode(&entry.encode()), Some(entry));
    }

    #[test]
    fn anything_is_read_or_refused(text in "(1 )?\\PC{0,40}") {
        Entry::decode(&text);
    }
}

fn of(kind: Kind, capacity: u32, weights: &[u32]) -> Vec<Place> {
    let made = |(order, weight): (u64, &u32)| {
        let mut place = place(order, &claim(u128::from(order), kind, capacity, 7));
        place.entry.weight = *weight;
        place
    };
    (1u64..).zip(weights).map(made).collect()
}

fn blockers(line: &Line, claim: u128) -> Vec<u64> {
    line.blockers(ClaimId::new(claim)).iter().map(|blocker| blocker.order).collect()
}

#[test]
fn each_waits_for_as_few_as_can_be() {
    let mutex = line(&of(Kind::Mutex, 1, &[1, 1, 1]));
    assert_eq!(blockers(&mutex, 3), [2], "a mutex waits for its predecessor");
    let writer = CAPACITY_MAX;
    let lock = line(&of(Kind::RwLock, CAPACITY_MAX, &[writer, 1, 1, writer]));
    assert_eq!(blockers(&lock, 3), [1], "readers wait for the writer before them");
    assert_eq!(blockers(&lock, 4), [3], "a writer waits for its predecessor");
    let semaphore = line(&of(Kind::Semaphore, 2, &[1, 1, 1, 1, 1]));
    assert_eq!(blockers(&semaphore, 5), [4, 3], "as many as there are units");
}

#[test]
fn what_is_before_a_claim_is_given_whole_or_not_at_all() {
    let orders = |line: &Line, claim, most| {
        let (before, is_all) = line.before(ClaimId::new(claim), most);
        (before.iter().map(|blocker| blocker.order).collect::<Vec<_>>(), is_all)
    };
    let places = of(Kind::Mutex, 1, &[1, 1, 1, 1]);
    let rest = Rest { order: 0, entry: places[0].entry.clone(), slot: None };
    let line = Line::new(places.clone(), vec![rest], None, Vec::new());
    assert_eq!(orders(&line, 3, 3), (vec![0, 1, 2], true), "with what rests");
    assert_eq!(orders(&line, 4, 3), (vec![0], false), "more than asked for: the oldest alone");
    let ends = Line::new(
        vec![places[0].clone(), places[2].clone(), places[3].clone()],
        Vec::new(),
        None,
        Vec::new(),
    );
    let ends = ends.with_unread(7);
    assert_eq!(orders(&ends, 4, 9), (vec![1], false), "not all was read");
    assert_eq!(blockers(&ends, 4), [3]);
    let waits = |line: &Line, claim| match line.standing(ClaimId::new(claim)) {
        Some(Standing::Waits(waiting)) => Some(waiting.position),
        _ => None,
    };
    assert_eq!(waits(&ends, 4), Some(9), "the unread ones are counted");
    assert_eq!(ends.busy(START).waiting, 9);
}

#[test]
fn a_rest_takes_its_units_and_blocks() {
    let places = of(Kind::Mutex, 1, &[1]);
    let rest = Rest { order: 0, entry: places[0].entry.clone(), slot: None };
    let line = Line::new(places.clone(), vec![rest.clone()], None, Vec::new());
    assert_eq!(line.holding(), 0, "the unit rests");
    assert_eq!(blockers(&line, 1), [0]);
    assert!(line.busy(START).is_resting);
    let of_its_own = Rest { order: 1, ..rest };
    let line = Line::new(places, vec![of_its_own], None, Vec::new());
    assert_eq!((line.holding(), line.used()), (1, 1), "a rest beside its own hold does not count twice");
}

#[test]
fn a_resize_is_about_the_claims_before_it() {
    let mut places = of(Kind::Semaphore, 2, &[1, 1, 1]);
    let resized = |capacity, held_before| Some(Resized { before: 4, held_before, capacity });
    let grown = Line::new(places.clone(), Vec::new(), resized(3, 3), Vec::new());
    assert_eq!(grown.holding(), 3);
    assert!(!grown.resize_is_over());
    let shrunk = Line::new(places.clone(), Vec::new(), resized(1, 3), Vec::new());
    assert_eq!((shrunk.holding(), shrunk.used()), (2, 2), "who held goes on to hold");
    assert!(matches!(shrunk.standing(ClaimId::new(3)), Some(Standing::Waits(_))));
    let late = Place { order: 5, ..places[2].clone() };
    places.remove(0);
    places.remove(0);
    let shrunk = Line::new(places.clone(), Vec::new(), resized(1, 3), Vec::new());
    assert_eq!(shrunk.holding(), 1, "the third fits once both are gone");
    let mut with_late = places.clone();
    with_late.push(Place { entry: Entry { claim: ClaimId::new(9), ..late.entry }, ..late });
    let line = Line::new(with_late.clone(), Vec::new(), resized(1, 3), Vec::new());
    let conflict = Standing::Conflict { kind: Kind::Semaphore, capacity: 1 };
    assert_eq!(line.standing(ClaimId::new(9)), Some(conflict), "who comes later asks for what there is now");
    let line = Line::new(with_late.split_off(1), Vec::new(), resized(1, 3), Vec::new());
    assert!(line.resize_is_over());
    assert_eq!(line.kind_and_capacity(), Some((Kind::Semaphore, 2)), "a new life of the name begins");
}

#[test]
fn a_view_tells_holds_rests_and_waiters() {
    let places = of(Kind::SlotPool, 2, &[1, 1, 1]);
    // The second one took its slot first.
    let taken = |number, claim, token| {
        let (claim, token) = (ClaimId::new(claim), Token::new(token));
        TakenSlot { number, claim, token }
    };
    let line = Line::new(places, Vec::new(), None, vec![taken(1, 1, 12), taken(0, 2, 11)]);
    let later = Timestamp::from_micros(START.micros() + 5_000_000);
    let view = line.view(&Name::new("x").unwrap(), later).unwrap();
    assert_eq!((view.used, view.waiting, view.last_token), (2, 1, Token::new(12)));
    let tokens: Vec<Token> = view.holds.iter().map(|hold| hold.token).collect();
    assert_eq!(tokens, [Token::new(12), Token::new(11)], "each has the token of its slot");
    assert_eq!(view.holds.iter().map(|hold| hold.slot).collect::<Vec<_>>(), [Some(1), Some(0)]);
    assert_eq!(view.holds[0].held_for, Duration::from_secs(5));
    assert_eq!(Line::default().view(&Name::new("x").unwrap(), later), None);
}
