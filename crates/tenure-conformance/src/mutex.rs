//! One holder at a time, whoever asks.

use futures_util::future::join_all;
use tenure_core::engine::ReleaseAnswer;
use tenure_core::model::claim::Kind;
use tenure_core::{Error, ErrorKind};

use crate::Setup;
use crate::direct::{self, terms};
use crate::form::Form;
use crate::history::{overlaps, stale_tokens};
use crate::stage::{LONG, name, resource};

/// A mutex that one client holds is refused to another, until it is released.
pub async fn excludes_a_second_client(setup: &dyn Setup) {
    let (a, b) = (setup.client().await, setup.client().await);
    let name = name("excludes");
    let lease = setup.take(&a.mutex(&name)).await;
    for _ in 0..3 {
        assert!(setup.try_take(&b.mutex(&name)).await.is_none(), "two clients hold {name:?}");
        assert!(setup.try_take(&a.mutex(&name)).await.is_none(), "one client holds {name:?} twice");
    }
    let mut waiting = setup.queue(&b.mutex(&name)).await;
    let is_early = futures_util::future::poll_immediate(&mut waiting).await.is_some();
    assert!(!is_early, "a waiter is served while another client holds {name:?}");
    assert!(!lease.is_lost(), "a lease is held until it is released");
    setup.within("a release", lease.release()).await.expect("a release is answered");
    drop(setup.within("the waiter is served", waiting).await.expect("the waiter is served"));
    setup.assert_nothing_is_left(&name).await;
}

/// A mutex that a client of one process holds is refused to another process, both ways.
pub async fn a_second_process_is_refused(setup: &dyn Setup) {
    let client = setup.client().await;
    let mut actor = setup.actor().await;
    let name = name("refused");
    let lease = setup.take(&client.mutex(&name)).await;
    let tried = actor.try_acquire(Form::Mutex, &name, LONG).await;
    assert!(tried.is_none(), "another process was granted what this one holds");
    setup.within("a release", lease.release()).await.expect("a release is answered");
    actor.acquire(Form::Mutex, &name, LONG).await;
    assert!(setup.try_take(&client.mutex(&name)).await.is_none(), "this process got what another one holds");
    let answer = actor.ask(&["release", "lease"]).await;
    assert_eq!(answer.as_deref(), Some("released\tReleased"), "the other process held it");
    setup.assert_nothing_is_left(&name).await;
}

/// Processes that contend for a mutex never work under it at the same time.
pub async fn processes_that_contend_work_one_after_the_other(setup: &dyn Setup) {
    const PROCESSES: usize = 4;
    let rounds = setup.rounds(25).await;
    let name = name("sections");
    let mut actors = Vec::new();
    for _ in 0..PROCESSES {
        actors.push(setup.actor().await);
    }
    actors.iter_mut().for_each(|actor| actor.tell_sections(Form::Mutex, &name, LONG, rounds));
    let sections =
        join_all(actors.iter_mut().enumerate().map(|(client, actor)| actor.sections(client))).await;
    let sections = sections.concat();
    assert_eq!(sections.len(), PROCESSES * rounds, "every section was worked in");
    assert_eq!(overlaps(&sections), [], "two processes worked under {name:?} at once");
    assert_eq!(stale_tokens(&sections), [], "a later holder of {name:?} had no larger token");
    setup.assert_nothing_is_left(&name).await;
}

/// A mutex is free for others as soon as its release has been answered.
pub async fn a_release_frees_it_for_others(setup: &dyn Setup) {
    let (a, b) = (setup.client().await, setup.client().await);
    let name = name("free");
    for _ in 0..5 {
        let lease = setup.take(&a.mutex(&name)).await;
        let answer = setup.within("a release", lease.release()).await.expect("a release is answered");
        assert_eq!(answer, ReleaseAnswer::Released);
        let lease = setup.try_take(&b.mutex(&name)).await.expect("what was released is free at once");
        let answer = setup.within("a release", lease.release()).await.expect("a release is answered");
        assert_eq!(answer, ReleaseAnswer::Released);
    }
    setup.assert_nothing_is_left(&name).await;
}

/// A try that is refused leaves no place in the queue behind.
pub async fn a_try_does_not_queue(setup: &dyn Setup) {
    let (a, b) = (setup.direct().await, setup.direct().await);
    let resource = resource("try");
    let held = a.trying(&resource, &direct::mutex());
    a.grant(&held).await;
    for _ in 0..3 {
        b.refuse(&b.trying(&resource, &direct::mutex())).await;
    }
    let view = a.view(&resource).await.expect("what is held is listed");
    assert_eq!(view.waiting, 0, "a try that was refused waits");
    a.release(&held).await;
    let next = a.trying(&resource, &direct::mutex());
    a.grant(&next).await;
    a.release(&next).await;
}

/// A try does not get what has been released to a waiter, even if the waiter has not been heard of since.
pub async fn a_try_does_not_barge(setup: &dyn Setup) {
    let (a, b) = (setup.direct().await, setup.direct().await);
    let resource = resource("barge");
    let held = a.trying(&resource, &direct::mutex());
    a.grant(&held).await;
    let waiting = b.waiting(&resource, &direct::mutex());
    b.enqueue(&waiting).await;
    a.release(&held).await;
    a.refuse(&a.trying(&resource, &direct::mutex())).await;
    b.served(&waiting, "no try came before it").await;
    b.release(&waiting).await;
}

/// Who is refused is told who holds it, since when, under which token, and how many wait.
pub async fn a_refusal_names_the_holder(setup: &dyn Setup) {
    let (a, b, c) = (setup.client().await, setup.client().await, setup.client().await);
    let name = name("busy");
    let start = crate::stage::now();
    let lease = setup.take(&a.mutex(&name).label("night run")).await;
    let waiting = setup.queue(&b.mutex(&name)).await;
    crate::stage::pause(std::time::Duration::from_millis(50)).await;
    let refused = c.mutex(&name).acquire_within(std::time::Duration::ZERO);
    let error = setup.within("a refusal", refused).await.expect_err("the mutex is held");
    assert_eq!(error.kind(), ErrorKind::Timeout);
    let busy = error.busy().expect("a refusal says who is in the way");
    let holder = busy.holder.as_ref().expect("a refusal names the holder");
    assert_eq!((holder.text(), holder.pid()), ("night run", std::process::id()));
    assert_eq!(busy.token, lease.token());
    assert_eq!(busy.waiting, 1, "one client waits");
    assert!(!busy.is_resting, "somebody holds it");
    let held_for = crate::stage::now().since(start);
    let margin = std::time::Duration::from_millis(25);
    assert!(busy.held_for >= margin && busy.held_for <= held_for + margin, "held for {:?}", busy.held_for);
    drop(waiting);
    drop(lease);
    setup.assert_nothing_is_left(&name).await;
}

/// One client holds many names at a time, and each of them excludes others.
pub async fn a_client_holds_many_names(setup: &dyn Setup) {
    const NAMES: usize = 200;
    let (a, b) = (setup.client().await, setup.client().await);
    let stem = name("many");
    let mutexes = (0..NAMES).map(|number| a.mutex(&format!("{stem}/{number}")));
    let leases = join_all(mutexes.map(|mutex| async move { setup.take(&mutex).await })).await;
    let tries = (0..NAMES).map(|number| b.mutex(&format!("{stem}/{number}")));
    let tried = join_all(tries.map(|mutex| async move { setup.try_take(&mutex).await })).await;
    assert_eq!(tried.iter().flatten().count(), 0, "names that are held were granted to another client");
    assert!(leases.iter().all(|lease| !lease.is_lost()));
    for released in join_all(leases.into_iter().map(|lease| lease.release())).await {
        assert_eq!(released.expect("a release is answered"), ReleaseAnswer::Released);
    }
}

/// Names that differ in any byte are different resources, whatever characters they hold.
pub async fn names_are_compared_byte_by_byte(setup: &dyn Setup) {
    let (a, b) = (setup.client().await, setup.client().await);
    let stem = name("N");
    let longest = format!("{stem}{}", "x".repeat(255 - stem.len()));
    let ends = [
        "",
        "a",
        "A",
        "a/b",
        "a//b",
        "a/",
        "/a",
        "a b",
        "a b ",
        "ab",
        "a%2Fb",
        "ä",
        "a\u{308}",
        "ß",
        "ss",
        "\u{1f512}",
        "a.b",
        "a:b",
        "a{b}",
        "{a}b",
        "a*",
        "a?",
        "a_b",
        "a'b",
        "a\"b",
        "a\\b",
        "a;b",
        "..",
        ".",
        "a\u{a0}b",
    ];
    let mut names: Vec<String> = ends.iter().map(|end| format!("{stem}{end}")).collect();
    names.extend([longest[..254].to_owned(), format!("{}y", &longest[..254]), longest]);
    let mut leases = Vec::new();
    for name in &names {
        let lease = setup.try_take(&a.mutex(name)).await;
        leases.push(lease.unwrap_or_else(|| panic!("{name:?} is taken for another of the names")));
    }
    for name in &names {
        assert!(setup.try_take(&b.mutex(name)).await.is_none(), "{name:?} is held twice");
    }
    let listed = setup.within("an inspection", a.inspect(&stem)).await.expect("an inspection is answered");
    let mut listed: Vec<&str> = listed.iter().map(|view| view.resource.as_str()).collect();
    listed.sort_unstable();
    names.sort_unstable();
    assert_eq!(listed, names, "every name is listed as it was given");
    for released in join_all(leases.into_iter().map(|lease| lease.release())).await {
        assert_eq!(released.expect("a release is answered"), ReleaseAnswer::Released);
    }
}

/// A name that is in use cannot be claimed as another kind or with another capacity; the error says both.
pub async fn another_kind_or_capacity_is_a_conflict(setup: &dyn Setup) {
    let (a, b) = (setup.direct().await, setup.direct().await);
    let kinds = [(Kind::Mutex, 1), (Kind::Semaphore, 3), (Kind::Semaphore, 4), (Kind::SlotPool, 3)];
    let kinds = kinds.into_iter().filter(|(kind, _)| a.capability().kinds.contains(kind));
    let kinds: Vec<(Kind, u32)> = kinds.collect();
    for &(kind, capacity) in &kinds {
        let resource = resource("kinds");
        let held = a.trying(&resource, &terms(kind, capacity, 1));
        a.grant(&held).await;
        for &(other_kind, other_capacity) in &kinds {
            if (other_kind, other_capacity) == (kind, capacity) {
                continue;
            }
            for claim in [
                b.trying(&resource, &terms(other_kind, other_capacity, 1)),
                b.waiting(&resource, &terms(other_kind, other_capacity, 1)),
            ] {
                let answer = b.claim(&claim).await;
                let error: Error =
                    answer.expect_err("another kind or capacity than the one in use is refused");
                assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
                let text = error.to_string();
                for word in [kind.as_str(), other_kind.as_str()] {
                    assert!(text.contains(word), "{text:?} names {word:?}");
                }
                for number in [capacity, other_capacity] {
                    assert!(text.contains(&number.to_string()), "{text:?} names {number}");
                }
            }
        }
        let view = a.view(&resource).await.expect("what is held is listed");
        assert_eq!(
            (view.kind, view.capacity, view.waiting),
            (kind, capacity, 0),
            "a conflict changes nothing"
        );
        a.release(&held).await;
    }
}

/// A name that nobody uses any more may be claimed as another kind, and its tokens go on growing.
pub async fn an_idle_name_takes_another_kind(setup: &dyn Setup) {
    let has = |capability: &tenure_core::engine::Capability| capability.kinds.contains(&Kind::Semaphore);
    if !setup.can("mutex::an_idle_name_takes_another_kind", "semaphores", has).await {
        return;
    }
    let direct = setup.direct().await;
    let resource = resource("idle");
    let mut last = tenure_core::Token::ZERO;
    for terms in
        [direct::mutex(), terms(Kind::Semaphore, 3, 1), terms(Kind::Semaphore, 4, 1), direct::mutex()]
    {
        let token = direct.token_of(&resource, &terms).await;
        assert!(token > last, "{token} came after {last}");
        last = token;
    }
}
