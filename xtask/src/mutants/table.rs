//! Every mutant, and which check finds it. `cargo xtask tidy` compares the names with the code, and the rows with `docs/operating/proof.md`.

use crate::tidy::Finding;
use crate::tree::Tree;

/// A way in which the product is broken.
pub(crate) struct Mutant {
    pub(crate) name: &'static str,
    /// What users of such a product would meet.
    broken: &'static str,
    pub(crate) catcher: Catcher,
}

/// What finds it. Where several would, the simulation or a soak is named before a test of one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Catcher {
    /// So many worlds of the simulation, from seed 0 on.
    Worlds(u32),
    /// The same of the simulation of a quorum.
    QuorumWorlds(u32),
    /// A soak of an engine for so many seconds, with a seed and more arguments.
    Soak(&'static str, u32, u32, &'static str),
    /// The tests of a package with such a name.
    Tests(&'static str, &'static str),
}

impl Catcher {
    /// What it is called in the table.
    pub(crate) fn name(self) -> String {
        match self {
            Catcher::Worlds(seeds) => format!("simulation, {seeds} worlds"),
            Catcher::QuorumWorlds(seeds) => format!("simulation of a quorum, {seeds} worlds"),
            Catcher::Soak(engine, seconds, seed, more) => {
                format!("soak `{engine} --seconds {seconds} --seed {seed} {more}").trim_end().to_owned() + "`"
            }
            Catcher::Tests(package, filter) => format!("`{package}`, `{filter}`"),
        }
    }
}

impl Mutant {
    /// Its row of the table, up to how long it took.
    pub(crate) fn row(&self) -> String {
        format!("| `{}` | {} | {} |", self.name, self.broken, self.catcher.name())
    }
}

const fn mutant(name: &'static str, broken: &'static str, catcher: Catcher) -> Mutant {
    Mutant { name, broken, catcher }
}

const WORLDS: Catcher = Catcher::Worlds(2_000);
const QUORUMS: Catcher = Catcher::QuorumWorlds(400);
const fn core(filter: &'static str) -> Catcher {
    Catcher::Tests("tenure-core", filter)
}
const STAMPS: Catcher = Catcher::Tests("tenure-redlock", "a_token_is_acknowledged_only_where");
const MARKS: Catcher = Catcher::Tests("tenure-etcd", "marks::");
const SCRIPTS: Catcher = Catcher::Tests("tenure-redis", "lua::tests::the_functions_do_what_step_does");

/// All of them. A name that is not in the code, or is there and not here, is a finding of `cargo xtask tidy`.
pub(crate) const MUTANTS: &[Mutant] = &[
    // What every engine does, as `step` says.
    mutant("release-of-any-hold", "a late release ends the hold of somebody else", WORLDS),
    mutant("capacity-off-by-one", "one more unit is granted than there is", WORLDS),
    mutant("newcomers-overtake", "who comes when units are free is granted before those who wait", WORLDS),
    mutant(
        "claims-overtake",
        "claims of one resource are in several calls that are executed side by side",
        core("claims_of_one_resource_are_in_one"),
    ),
    mutant("last-in-first-out", "who has waited shortest is granted first", WORLDS),
    mutant(
        "max-hold-ignored",
        "renewals put the end of a hold off beyond `max_hold`",
        core("no_renewal_passes_max_hold"),
    ),
    mutant(
        "lock-delay-ignored",
        "units do not rest after a holder has vanished",
        core("step_and_the_oracle_agree"),
    ),
    mutant(
        "resize-forgets-holders",
        "a resize takes units for free that are held",
        core("step_and_the_oracle_agree"),
    ),
    mutant(
        "unheard-grants-last",
        "a grant lasts for its ttl although its waiter is dead",
        core("step_and_the_oracle_agree"),
    ),
    mutant(
        "places-stay-with-clients",
        "who waits on at another client is not told of its grant",
        core("step_and_the_oracle_agree"),
    ),
    mutant(
        "finished-claims-forgotten",
        "a copy of a claim that arrives after its release is granted",
        WORLDS,
    ),
    mutant(
        "floor-ignored",
        "a token is smaller than one that the client knows",
        core("step_and_the_oracle_agree"),
    ),
    mutant(
        "line-lets-in-one-more",
        "as `capacity-off-by-one`, where a store keeps a line of entries",
        core("line::"),
    ),
    mutant("dedup-forgotten", "a push that is repeated puts its item in line twice", WORLDS),
    mutant("groups-ignored", "an item is handed out before the earlier ones of its group", WORLDS),
    mutant("settled-by-anybody", "a delivery that has ended acknowledges that of somebody else", WORLDS),
    mutant(
        "wrong-floors-taken",
        "one client's wrong clock uses up the tokens of a queue",
        core("a_floor_of_a_wrong_clock"),
    ),
    mutant(
        "the-gone-waited-for",
        "consumers that died while they were idle hold up what is due, again and again",
        core("whoever_does_not_come_in_turn_is_passed_over"),
    ),
    // The client.
    mutant("counted-from-receipt", "a lease is believed from the answer on, not from the request", WORLDS),
    mutant("no-margin", "clocks are taken to run alike", WORLDS),
    mutant("wall-clock", "deadlines move with the time of day", core("counts_from_its_boot")),
    mutant("late-answers-revive", "a lease that is over comes back with a late answer", WORLDS),
    mutant(
        "loss-only-from-the-thread",
        "a process that was stopped believes until its client's thread has run",
        WORLDS,
    ),
    mutant(
        "late-deliveries-used",
        "an item is handed to its user after the delivery has ended",
        core("a_delivery_that_has_ended_is_not_handed"),
    ),
    mutant("never-renewed", "a lease is lost after its ttl", WORLDS),
    mutant("renewed-until-an-error", "one failed renewal loses a lease", WORLDS),
    mutant("dropped-leases-renewed", "what a user has dropped is renewed for ever", WORLDS),
    mutant("never-set-aside", "a grant whose future nobody polls is renewed for ever", core("fate::")),
    mutant("repeated-under-a-new-id", "an unanswered claim is repeated as another one", WORLDS),
    mutant("unknown-taken-for-refusal", "a claim whose call failed counts as refused", WORLDS),
    mutant("failed-claims-not-withdrawn", "a claim that ends in an error may hold for its ttl", WORLDS),
    mutant("stray-copies-forgotten", "a copy of a claim may be granted after its release", WORLDS),
    mutant(
        "old-wakes-believed",
        "a grant is used that may have ended before the last answer",
        core("is_not_used_before_it_is_confirmed"),
    ),
    mutant(
        "wakes-of-a-lost-store",
        "a grant is used of a store that has forgotten it",
        core("is_not_used_before_it_is_confirmed"),
    ),
    mutant(
        "early-wakes-lost",
        "a waiter that is woken before its claim is answered waits for its heartbeat",
        core("a_wake_that_overtakes_an_answer_is_not_lost"),
    ),
    mutant(
        "sets-held-in-part",
        "of leases that are held together, some are kept when one is lost",
        core("loss::"),
    ),
    mutant(
        "slots-without-a-gate",
        "two that want several slots of a pool wait for each other for ever",
        core("slots_of_one_pool_are_gathered"),
    ),
    mutant("one-line-for-all-shards", "a server that hangs takes the leases on all others", core("shards::")),
    // The fence.
    mutant("fence-takes-everything", "a late write is accepted", Catcher::Soak("local", 12, 7, "")),
    mutant(
        "fence-by-token-alone",
        "two holders with one token both write",
        Catcher::Tests("tenure-fence", "rule::"),
    ),
    // The scripts of Redis.
    mutant("redis-release-of-any-hold", "a late release ends the hold of somebody else", SCRIPTS),
    mutant("redis-renewal-of-any-hold", "a late renewal is told that it still holds", SCRIPTS),
    mutant(
        "redis-capacity-off-by-one",
        "one more unit is granted than there is",
        Catcher::Soak("redis", 12, 7, ""),
    ),
    mutant(
        "redis-newcomers-overtake",
        "who comes when units are free is granted before those who wait",
        SCRIPTS,
    ),
    mutant(
        "redis-last-in-first-out",
        "who has waited shortest is granted first",
        Catcher::Soak("redis", 12, 7, ""),
    ),
    mutant("redis-tokens-of-the-clock-alone", "tokens fall when the server's clock is set back", SCRIPTS),
    mutant(
        "redis-finished-claims-forgotten",
        "a copy of a claim that arrives after its release is granted",
        SCRIPTS,
    ),
    mutant(
        "redis-cuts-what-it-confirmed",
        "a grant that is confirmed and unheard in one call ends early: two hold",
        SCRIPTS,
    ),
    mutant(
        "redis-siblings-kept",
        "deleting the key of a semaphore breaks it for an hour",
        Catcher::Tests("tenure-redis", "deleted_keys_let_nobody_in_beside_a_holder_and_heal"),
    ),
    mutant(
        "redis-one-bad-key-fails-all",
        "a damaged key fails the innocent claims of its batch, which hold",
        Catcher::Tests("tenure-redis", "one_unreadable_key_costs_one_answer"),
    ),
    mutant(
        "redis-foreign-hash-taken",
        "a hash of another program is deleted",
        Catcher::Tests("tenure-redis", "what_others_have_made_is_left_alone_and_named"),
    ),
    mutant(
        "redis-removes-all-the-dead-at-once",
        "10,000 dead waiters block the server in one call",
        Catcher::Tests("tenure-redis", "a_crowd_that_died_is_removed_in_steps"),
    ),
    mutant(
        "redis-settled-after-the-end",
        "an acknowledgement counts although the delivery has ended",
        Catcher::Tests("tenure-redis", "queues::tests::the_functions_do_what_step_does"),
    ),
    // The marks of etcd.
    mutant(
        "etcd-entrance-keeps-mark",
        "a client that used a lock alone does not see who has come since: two hold",
        MARKS,
    ),
    mutant("etcd-mark-while-inside", "a client overtakes itself", MARKS),
    mutant("etcd-mark-in-company", "a client that only waited takes itself for alone: two hold", MARKS),
    // Redlock.
    mutant("redlock-plain-tokens", "tokens are not written back: two winners have one", QUORUMS),
    mutant("redlock-stamps-from-above", "a server whose counter is above a token acknowledges it", STAMPS),
    mutant("redlock-stamps-anywhere", "a token is written back where the claim does not hold", STAMPS),
    mutant("redlock-no-quarantine", "a server that has forgotten counts at once", QUORUMS),
    mutant(
        "redlock-snapshots-believed",
        "a server that is back from its snapshot gives tokens again",
        Catcher::Tests("tenure-redlock", "a_server_that_starts_anew_from_its_snapshot_gives_no_token_twice"),
    ),
    mutant("redlock-counts-a-server-twice", "two names of one server are two votes", QUORUMS),
    mutant(
        "redlock-believes-a-repeat",
        "a claim that is repeated is believed from its last copy on",
        QUORUMS,
    ),
    mutant(
        "redlock-serves-what-few-have",
        "a value is served that only one server has: the next one gets an older one",
        Catcher::Tests("tenure-redlock", "a_value_that_one_server_has_is_served_only_when_a_majority_has_it"),
    ),
    mutant(
        "redlock-late-values-last-longer",
        "a value lasts longer on a server that hung",
        Catcher::Tests("tenure-redlock", "a_value_that_comes_late_lasts_no_longer_than_elsewhere"),
    ),
    mutant("redlock-release-of-any-hold", "a late release ends the hold of somebody else", QUORUMS),
];

/// The page that shows the table.
const PAGE: &str = "docs/operating/proof.md";
/// What the names of mutants stand behind in the code: a mutant of Rust, and the first of two texts that one of a script has.
const IN_RUST: &str = concat!("mutant", "!(");
const OF_SCRIPTS: &str = concat!("mutants_of", "_scripts! {");

/// Finds mutants that are not in the code, not in the table or not on the page.
pub(crate) fn is_complete(tree: &Tree) -> Vec<Finding> {
    compare(tree, MUTANTS)
}

fn compare(tree: &Tree, mutants: &[Mutant]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let in_code: Vec<(&str, &str)> = tree
        .with_suffix(".rs")
        .filter(|(path, _)| path.starts_with("crates/"))
        .flat_map(|(path, text)| named(path, text))
        .collect();
    for (path, name) in &in_code {
        if mutants.iter().all(|mutant| mutant.name != *name) {
            findings.push(Finding::of(
                "mutants",
                path,
                format!("the mutant {name:?} is not in xtask/src/mutants/table.rs"),
            ));
        }
    }
    let page = tree.text(PAGE).unwrap_or_default();
    for mutant in mutants {
        if in_code.iter().all(|(_, name)| *name != mutant.name) {
            findings.push(Finding::of(
                "mutants",
                "xtask/src/mutants/table.rs",
                format!("no code has the mutant {:?}", mutant.name),
            ));
        }
        if !page.contains(&mutant.row()) {
            findings.push(Finding::of("mutants", PAGE, format!("it lacks the row {}", mutant.row())));
        }
    }
    findings
}

/// The mutants that a file has, each with its path.
fn named<'a>(path: &'a str, text: &'a str) -> Vec<(&'a str, &'a str)> {
    let in_rust = text.match_indices(IN_RUST).filter_map(|(at, _)| {
        let name = text[at + IN_RUST.len()..].trim_start().strip_prefix('"')?;
        name.split('"').next()
    });
    let of_scripts = text.split(OF_SCRIPTS).skip(1).flat_map(|rest| {
        let lines = rest.lines().take_while(|line| *line != "}");
        // A name is the first of the three texts of a row, and begins a line of one indent.
        lines.filter_map(|line| line.strip_prefix("    \"")?.split('"').next())
    });
    // A comment may show how it is done.
    in_rust.chain(of_scripts).filter(|name| *name != "late-grants-used").map(|name| (path, name)).collect()
}

/// Finds manifests that turn mutants on, and crates other than the core that have such a feature.
pub(crate) fn are_in_no_release(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.with_suffix("Cargo.toml") {
        let lines =
            text.lines().enumerate().filter(|(_, line)| line.contains("mutants") && !line.starts_with('#'));
        for (number, line) in lines {
            if path != "crates/tenure-core/Cargo.toml" || line != "mutants = []" {
                findings.push(Finding::at(
                    "mutants",
                    path,
                    number + 1,
                    "only `cargo xtask mutants` turns mutants on",
                ));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &[Mutant] = &[mutant("a-b", "all", WORLDS)];

    #[test]
    fn a_mutant_that_is_missing_somewhere_is_found() {
        let code = format!("if {IN_RUST}\"a-b\") {{}}");
        let (code, page) = (
            ("crates/x/src/a.rs", code.as_str()),
            (PAGE, "| `a-b` | all | simulation, 2000 worlds | 1.0 |\n"),
        );
        assert_eq!(compare(&Tree::of(&[code, page]), ONE), []);
        assert_eq!(compare(&Tree::of(&[code]), ONE).len(), 1);
        assert_eq!(compare(&Tree::of(&[page]), ONE).len(), 1);
        assert_eq!(compare(&Tree::of(&[code, page]), &[]).len(), 1);
        let scripts = format!("{OF_SCRIPTS} X:\n    \"a-b\", \"old\",\n        \"new\";\n}}\n    \"c\"\n");
        assert_eq!(named("a.rs", &scripts), [("a.rs", "a-b")]);
    }

    #[test]
    fn a_crate_that_turns_mutants_on_is_found() {
        let found = |path: &str, text: &str| are_in_no_release(&Tree::of(&[(path, text)])).len();
        assert_eq!(found("crates/tenure-core/Cargo.toml", "[features]\nmutants = []\n"), 0);
        assert_eq!(found("crates/tenure-core/Cargo.toml", "[features]\ndefault = [\"mutants\"]\n"), 1);
        assert_eq!(found("crates/tenure/Cargo.toml", "tenure-core = { features = [\"mutants\"] }\n"), 1);
    }
}
