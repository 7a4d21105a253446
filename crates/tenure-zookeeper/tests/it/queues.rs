//! Queues on real servers: what lies where, who is told, what is refused, and what a fault may not do.

use std::future::IntoFuture;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use futures_util::future::{poll_immediate, try_join_all};
use pollster::block_on;
use tenure_conformance::queue_crew;
use tenure_core::testing::random::more;
use tenure_core::{Delivery, ErrorKind, Tenure};
use tenure_testkit::zookeeper::{ZooKeeperEnsemble, ZooKeeperOptions, ZooKeeperServer};
use tenure_testkit::{Loss, PATIENCE, Proxy, wait_for};

use crate::conformance::BRIEF;
use crate::crew::{assert_excused, connect, connect_patiently, now, pause, raw};

/// Longer than a wake takes, and shorter than it takes an idle consumer to look by itself.
const TOLD: Duration = Duration::from_secs(2);
/// How soon all is as before once a fault is over.
const SOON: Duration = Duration::from_secs(20);

fn start() -> ZooKeeperServer {
    ZooKeeperServer::start(&ZooKeeperOptions::default())
}

fn brief(server: &ZooKeeperServer) -> String {
    format!("{}?{BRIEF}", server.url())
}

fn next(client: &Tenure, queue: &str) -> Delivery {
    let next = block_on(client.queue(queue).next_within(SOON)).expect("an answer");
    next.expect("something is ready")
}

fn push(client: &Tenure, queue: &str, group: &str, payload: &str) {
    let push = client.queue(queue).push(payload);
    block_on(async { if group.is_empty() { push.await } else { push.group(group).await } })
        .expect("it is pushed");
}

/// The nodes below a queue's head.
fn nodes(server: &ZooKeeperServer, queue: &str) -> Vec<String> {
    let path = format!("/%queues/{queue}");
    raw(&server.url(), async |client| client.list_children(&path).await.expect("a list"))
}

fn in_queue(client: &Tenure, queue: &str) -> (u64, u64, u64) {
    let stats = block_on(client.queue(queue).stats()).expect("a count");
    (stats.waiting, stats.in_flight, stats.dead)
}

/// Pushes all at once.
fn push_all(client: &Tenure, queue: &str, payloads: impl Iterator<Item = Vec<u8>>) {
    let queue = client.queue(queue);
    let pushes = payloads.map(|payload| queue.push(payload).into_future());
    block_on(try_join_all(pushes)).expect("all are pushed");
}

/// Takes and acknowledges all that is there, many at a time.
fn work_off(client: &Tenure, queue: &str) -> usize {
    let queue = client.queue(queue);
    let worker = async || {
        let mut count = 0;
        while let Some(delivery) = queue.try_next().await? {
            delivery.ack().await?;
            count += 1;
        }
        Ok::<usize, tenure_core::Error>(count)
    };
    block_on(try_join_all((0..64).map(|_| worker()))).expect("answers").into_iter().sum()
}

#[test]
fn ten_thousand_items_fit_and_no_more_and_leave_nothing_behind() {
    const ITEMS: usize = 10_000;
    let server = start();
    let client = connect_patiently(&format!("{}?session_timeout=10s&tick=200ms", server.url()));
    let began = now();
    for part in 0..10 {
        push_all(&client, "q", (0..ITEMS / 10).map(|item| format!("item {part} {item}").into_bytes()));
    }
    println!("{ITEMS} items were pushed in {:?}, {} pages", now().since(began), nodes(&server, "q").len());
    let refused = block_on(client.queue("q").push("more").into_future()).expect_err("it is full");
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert!(refused.to_string().contains("10000 items"), "{refused}");
    assert!(refused.hint().is_some_and(|hint| hint.contains("consumers")), "{refused:?}");
    let began = now();
    let first = next(&client, "q");
    block_on(first.fail("because")).expect("it is in flight");
    let refused = block_on(client.queue("q").push("more").into_future()).expect_err("a dead letter counts");
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert_eq!(block_on(client.queue("q").purge_dead(None)).expect("an answer"), 1);
    push(&client, "q", "", "more");
    assert_eq!(work_off(&client, "q"), ITEMS);
    println!("and worked off in {:?}", now().since(began));
    assert_eq!(in_queue(&client, "q"), (0, 0, 0));
    assert_eq!(nodes(&server, "q"), Vec::<String>::new(), "pages are left behind");
}

#[test]
fn large_payloads_are_pushed_and_handed_out_in_parts() {
    const ITEMS: u8 = 12;
    let server = start();
    // Three MiB at once take a busy server longer than a brief session lets it be silent.
    let client = connect(&format!("{}?session_timeout=10s&tick=200ms", server.url()));
    let payload = |item: u8| vec![item; 256 * 1024];
    push_all(&client, "large", (0..ITEMS).map(payload));
    let queue = client.queue("large");
    assert_eq!(nodes(&server, "large").iter().filter(|node| node.starts_with('b')).count(), ITEMS.into());
    let taken = block_on(try_join_all((0..ITEMS).map(|_| queue.next()))).expect("all are handed out");
    let mut seen: Vec<u8> = taken.iter().map(|delivery| delivery.payload()[0]).collect();
    assert!(taken.iter().all(|delivery| delivery.payload() == payload(delivery.payload()[0])));
    seen.sort_unstable();
    assert_eq!(seen, (0..ITEMS).collect::<Vec<u8>>());
    block_on(async {
        let mut taken = taken.into_iter();
        taken.next().expect("there are twelve").fail("because").await?;
        try_join_all(taken.map(Delivery::ack)).await?;
        assert_eq!(queue.dead_letters(None, 9).await?[0].payload.len(), 256 * 1024);
        assert_eq!(queue.replay(None).await?, 1);
        queue.next().await?.ack().await
    })
    .expect("answers");
    assert_eq!(nodes(&server, "large"), Vec::<String>::new(), "payloads are left behind");
}

#[test]
fn work_at_random_leaves_nothing_behind_and_grows_no_pages() {
    let server = start();
    let clients = [connect(&brief(&server)), connect(&brief(&server))];
    let random = fastrand::u64(..);
    println!("seed {random}");
    let mut random = fastrand::Rng::with_seed(random);
    let mut held: Vec<Delivery> = Vec::new();
    let mut most = 0;
    for step in 0..400 {
        let client = &clients[random.usize(..2)];
        match random.usize(..10) {
            0..=3 => {
                let group = format!("g{}", random.usize(..30));
                push(client, "q", &group, &"x".repeat(random.usize(..1500)));
            }
            4..=6 => held.extend(block_on(client.queue("q").try_next()).expect("an answer")),
            _ if held.is_empty() => {}
            what => {
                let delivery = held.swap_remove(random.usize(..held.len()));
                let settled = match what {
                    7 => block_on(delivery.fail("because")),
                    8 => block_on(delivery.put_back()),
                    _ => block_on(delivery.ack()),
                };
                settled.expect("it is in flight");
            }
        }
        if step % 50 == 49 {
            most = most.max(nodes(&server, "q").len());
        }
    }
    println!("{:?}, {most} nodes at most", in_queue(&clients[0], "q"));
    for delivery in held {
        block_on(delivery.ack()).expect("it is in flight");
    }
    work_off(&clients[1], "q");
    block_on(clients[0].queue("q").purge_dead(None)).expect("an answer");
    assert_eq!(in_queue(&clients[0], "q"), (0, 0, 0));
    assert_eq!(nodes(&server, "q"), Vec::<String>::new(), "pages are left behind");
}

fn while_it_works(url: &str, disturb: impl FnOnce(&AtomicBool) + Send) {
    queue_crew::while_it_works(|| connect(url), SOON, disturb);
}

fn behind_a_proxy(server: &ZooKeeperServer) -> (Proxy, String) {
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()));
    let url = format!("zookeeper://127.0.0.1:{}?{BRIEF}", proxy.port());
    (proxy, url)
}

#[test]
fn cut_connections_lose_nothing() {
    let server = start();
    let (proxy, url) = behind_a_proxy(&server);
    while_it_works(&url, |is_over| {
        queue_crew::again_and_again(is_over, 12, Duration::from_millis(250), |_| {
            proxy.cut();
        });
    });
}

#[test]
fn lost_replies_lose_nothing() {
    let server = start();
    let (proxy, url) = behind_a_proxy(&server);
    while_it_works(&url, |is_over| {
        queue_crew::again_and_again(is_over, 12, Duration::from_millis(250), |_| {
            // The answer to a change says which pages were made.
            proxy.lose_replies(1, b"/%queues/q/p", Loss::Cut);
        });
    });
}

#[test]
fn lost_lives_lose_nothing() {
    let server = start();
    let (proxy, url) = behind_a_proxy(&server);
    while_it_works(&url, |_| {
        pause(Duration::from_millis(300));
        proxy.black_hole();
        // The servers end all lives.
        pause(Duration::from_millis(3200));
        proxy.heal();
    });
}

#[test]
fn a_killed_leader_loses_nothing() {
    let ensemble = ZooKeeperEnsemble::start(&ZooKeeperOptions::default());
    while_it_works(&format!("{}/t?{BRIEF}", ensemble.url()), |_| {
        pause(Duration::from_millis(300));
        let leader = ensemble.leader();
        ensemble.servers()[leader].kill();
        ensemble.wait_for_new_leader(leader);
        ensemble.restart(leader);
    });
}

#[test]
fn an_interval_and_a_delay_are_not_cut_short_by_an_election() {
    const INTERVAL: Duration = Duration::from_millis(500);
    let ensemble = ZooKeeperEnsemble::start(&ZooKeeperOptions::default());
    let url = format!("{}?session_timeout=6s&tick=200ms", ensemble.url());
    let clients = [connect(&url), connect(&url), connect(&url)];
    for item in 0..10 {
        push(&clients[0], "spaced", &format!("g{item}"), "work");
    }
    let (pushed, delay) = (now(), Duration::from_secs(4));
    block_on(clients[0].queue("delayed").push("late").delay(delay).into_future()).expect("it is pushed");
    let (times, late) = (Mutex::new(Vec::new()), Mutex::new(None));
    std::thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| {
                let queue = client.queue("spaced").interval(INTERVAL);
                while times.lock().expect("no panic").len() < 10 {
                    if let Ok(Some(delivery)) = block_on(queue.next_within(Duration::from_millis(300))) {
                        times.lock().expect("no panic").push(now());
                        // If it is not answered, it comes again.
                        drop(block_on(delivery.ack()));
                    }
                }
            });
        }
        scope.spawn(|| {
            let delivery = wait_for("what is late", || {
                block_on(clients[1].queue("delayed").next_within(SOON)).ok().flatten()
            });
            *late.lock().expect("no panic") = Some(now());
            drop(delivery);
        });
        pause(Duration::from_millis(1200));
        let leader = ensemble.leader();
        ensemble.servers()[leader].kill();
        ensemble.wait_for_new_leader(leader);
    });
    let mut times = times.into_inner().expect("no panic");
    times.sort();
    println!("{:?}", times.iter().map(|at| at.since(pushed)).collect::<Vec<_>>());
    assert!(times.windows(2).all(|pair| pair[1].since(pair[0]) >= INTERVAL), "the interval is undercut");
    let late = late.into_inner().expect("no panic").expect("it came");
    assert!(late.since(pushed) >= delay, "{:?} is too early", late.since(pushed));
}

#[test]
fn a_server_that_is_killed_remembers_its_queues() {
    let server = start();
    let client = connect(&brief(&server));
    push(&client, "q", "g", "1");
    push(&client, "q", "g", "2");
    let held = next(&client, "q");
    server.kill();
    server.restart();
    let stats = wait_for("an answer", || block_on(client.queue("q").stats()).ok());
    assert_eq!((stats.waiting, stats.in_flight), (1, 1), "what was pushed, and who has it");
    let second = wait_for("an answer", || block_on(client.queue("q").try_next()).ok());
    assert!(second.is_none(), "two of a group at once");
    block_on(held.ack()).expect("the delivery goes on");
    block_on(next(&client, "q").ack()).expect("the next one of its group");
}

#[test]
fn what_another_version_wrote_is_told_and_left_alone() {
    let server = start();
    let client = connect(&brief(&server));
    push(&client, "q", "", "work");
    let written = raw(&server.url(), async |raw| {
        let (mut head, _) = raw.get_data("/%queues/q").await.expect("a head");
        assert_eq!(head[0], 1, "the number of the format comes first");
        head[0] = 9;
        raw.set_data("/%queues/q", &head, None).await.expect("it is written");
        head
    });
    let refused = block_on(client.queue("q").push("more").into_future()).expect_err("it cannot be read");
    assert_eq!(refused.kind(), ErrorKind::Internal);
    assert!(refused.to_string().contains("format 9"), "{refused}");
    assert!(refused.hint().is_some_and(|hint| hint.contains("version")), "{refused:?}");
    let head = raw(&server.url(), async |raw| raw.get_data("/%queues/q").await.expect("a head").0);
    assert_eq!(head, written, "it was changed");
}

#[test]
fn a_removed_page_is_told() {
    let server = start();
    let client = connect(&brief(&server));
    push(&client, "q", "", "work");
    let page = nodes(&server, "q").pop().expect("a page");
    raw(&server.url(), async |raw| {
        raw.delete(&format!("/%queues/q/{page}"), None).await.expect("it is there")
    });
    // Another client, which does not know what was on it.
    let refused = block_on(connect(&brief(&server)).queue("q").try_next()).map(|_| ());
    assert_eq!(refused.map_err(|error| error.kind()), Err(ErrorKind::Internal));
}

#[test]
fn queues_are_never_taken_for_locks_in_any_layout() {
    let server = start();
    let queue = "a/b %zz";
    let ours = connect(&format!("{}/app?{BRIEF}", server.url()));
    push(&ours, queue, "", "work");
    let mut waiting = Box::pin(async { ours.queue("other").next().await });
    assert!(block_on(poll_immediate(&mut waiting)).is_none());
    for layout in ["tenure", "curator", "kazoo"] {
        let client = connect(&format!("{}/app?{BRIEF}&layout={layout}", server.url()));
        assert_eq!(block_on(client.inspect("")).expect("an answer"), [], "{layout}");
        let found = block_on(client.queues("")).expect("an answer");
        assert_eq!(found.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), [queue], "{layout}");
        let delivery = next(&client, queue);
        block_on(delivery.put_back()).expect("queues are the same in each layout");
        for name in ["%queues", "%queues/x", "%queue-calls/y", "z/%queues"] {
            let locked = block_on(client.mutex(name).try_acquire()).map(|lease| lease.is_some());
            match layout {
                // It is written otherwise.
                "tenure" => assert!(locked.expect("an answer"), "{name}"),
                _ => assert_eq!(locked.map_err(|error| error.kind()), Err(ErrorKind::Invalid), "{name}"),
            }
        }
    }
}

#[test]
fn what_a_user_pushes_is_for_that_user_alone() {
    let server = start();
    let at = |user: &str| server.url().replace("://", &format!("://{user}@")) + "/mine?" + BRIEF;
    let (one, other) = (connect(&at("one:secret")), connect(&at("one:secret")));
    push(&one, "q", "g", "work");
    push(&one, "q", "", &"x".repeat(5000));
    block_on(next(&other, "q").ack()).expect("the same user may");
    let stranger = connect(&at("two:secret"));
    let refused = block_on(stranger.queue("q").push("more").into_future()).expect_err("it is another user");
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    let everybodys = raw(&server.url(), async |raw| {
        let mut paths = ["queues/q", "queues", "queue-calls"].map(|path| format!("/mine/%{path}")).to_vec();
        // Only who may read the head can list its pages, so they are asked for by their numbers.
        paths.extend((0..20).map(|page| format!("/mine/%queues/q/p{page}")));
        let mut open = Vec::new();
        for path in paths {
            if raw.get_data(&path).await.is_ok() {
                open.push(path);
            }
        }
        open
    });
    assert_eq!(everybodys, Vec::<String>::new());
}

#[test]
fn clients_on_one_queue_and_on_others_do_not_hinder_each_other() {
    let items = more(20, 60);
    let server = start();
    let clients: Vec<Tenure> = (0..4).map(|_| connect(&brief(&server))).collect();
    std::thread::scope(|scope| {
        for (number, client) in clients.iter().enumerate() {
            scope.spawn(move || {
                let own = format!("own {number}");
                for item in 0..items {
                    push(client, &own, "g", &item.to_string());
                    let shared =
                        || client.queue("shared").push("x").group(&format!("g{number}")).into_future();
                    wait_for("a push", || match block_on(shared()) {
                        Err(error) if error.has_no_effect() => {
                            assert_excused(&error);
                            None
                        }
                        pushed => Some(pushed.expect("it is pushed")),
                    });
                }
                for item in 0..items {
                    let delivery = next(client, &own);
                    assert_eq!(delivery.payload(), item.to_string().as_bytes(), "out of order");
                    block_on(delivery.ack()).expect("it is in flight");
                    block_on(next(client, "shared").ack()).expect("it is in flight");
                }
            });
        }
    });
    for queue in ["shared", "own 0", "own 3"] {
        assert_eq!(in_queue(&clients[0], queue), (0, 0, 0), "{queue}");
        assert_eq!(nodes(&server, queue), Vec::<String>::new(), "{queue}");
    }
    assert_eq!(block_on(clients[0].queues("")).expect("an answer"), [], "an empty queue is listed");
}

mod alone {
    use super::*;

    /// A fleet has died whose every item was on its last attempt: one take clears up, and finds what is ready behind it.
    #[test]
    fn what_a_dead_fleet_left_is_cleared_in_parts() {
        const ITEMS: usize = 1500;
        let server = start();
        let (proxy, url) = behind_a_proxy(&server);
        // Fifteen hundred pushes or takes at once are many for a busy server.
        let fleet = connect_patiently(&url);
        let pusher = connect_patiently(&format!("{}?session_timeout=10s&tick=200ms", server.url()));
        let client = connect(&brief(&server));
        block_on(async {
            let (queue, name) = (pusher.queue("q"), |item: usize| format!("group {}", item * 7919 % 10_007));
            let pushes = (0..ITEMS).map(|item| queue.push(vec![7; 1000]).group(&name(item)).into_future());
            try_join_all(pushes).await.expect("all are pushed");
            let last = fleet.queue("q").ttl(Duration::from_secs(6)).max_attempts(1);
            let held = try_join_all((0..ITEMS).map(|_| last.next())).await.expect("all are handed out");
            assert_eq!(in_queue(&client, "q"), (0, ITEMS as u64, 0));
            proxy.refuse();
            proxy.cut();
            // What is cut off cannot put anything back.
            std::mem::forget(held);
        });
        std::mem::forget(fleet);
        // Longer than the last of them lives: renewals go in batches, a third of the ttl apart.
        pause(Duration::from_secs(8));
        push(&client, "q", "", "behind");
        let began = now();
        let queue = client.queue("q").max_attempts(1);
        let (mut buried, mut heard) = (0, began);
        let delivery = loop {
            if let Some(delivery) = block_on(queue.try_next()).ok().flatten() {
                break delivery;
            }
            // A busy machine may take long for all of them, and for none for ever.
            if now().since(heard) > PATIENCE {
                let (.., dead) = in_queue(&client, "q");
                assert!(dead > buried, "of {ITEMS} {dead} are buried, as many as before");
                (buried, heard) = (dead, now());
            }
        };
        println!("{ITEMS} were buried in {:?}", now().since(began));
        assert_eq!(delivery.payload(), b"behind");
        assert_eq!(in_queue(&client, "q"), (0, 1, ITEMS as u64));
        block_on(delivery.ack()).expect("it is in flight");
        assert_eq!(block_on(client.queue("q").purge_dead(None)).expect("an answer"), ITEMS as u64);
        assert_eq!(nodes(&server, "q"), Vec::<String>::new(), "pages are left behind");
    }

    #[test]
    fn who_is_called_and_gone_keeps_nobody_from_pushing() {
        let server = start();
        let (proxy, url) = behind_a_proxy(&server);
        let (gone, producer) = (connect(&url), connect(&brief(&server)));
        let mut idle = Box::pin(async { gone.queue("q").next().await });
        assert!(block_on(poll_immediate(&mut idle)).is_none(), "nothing is there");
        let listeners = || {
            raw(&server.url(), async |client| {
                client.list_children("/%queue-calls").await.map_or(0, |children| children.len())
            })
        };
        wait_for("it to listen", || (listeners() == 1).then_some(()));
        // It asked in vain: the head says so.
        wait_for("it to be idle", || {
            let head = raw(&server.url(), async |client| client.get_data("/%queues/q").await);
            head.is_ok().then_some(())
        });
        proxy.refuse();
        proxy.cut();
        wait_for("it to be gone", || (listeners() == 0).then_some(()));
        let began = now();
        push(&producer, "q", "", "work");
        assert!(now().since(began) < TOLD, "{:?}", now().since(began));
        block_on(next(&producer, "q").ack()).expect("it is in flight");
    }

    #[test]
    fn who_waits_is_told_in_a_new_life_too() {
        let server = start();
        let (proxy, url) = behind_a_proxy(&server);
        let (consumer, producer) = (connect(&url), connect(&brief(&server)));
        push(&producer, "q", "", "first");
        block_on(next(&consumer, "q").ack()).expect("it is in flight");
        let waiting = std::thread::spawn(move || {
            let queue = consumer.queue("q");
            // While nothing is answered, waiting goes on.
            let delivery = wait_for("an item", || block_on(queue.next()).ok());
            let at = now();
            block_on(delivery.ack()).expect("it is in flight");
            at
        });
        proxy.black_hole();
        pause(Duration::from_millis(3200));
        proxy.heal();
        wait_for("it to listen again", || {
            let mut of_life = raw(&server.url(), async |client| {
                client.list_children("/%queue-calls").await.expect("a list")
            });
            of_life.pop()
        });
        // It is idle again soon.
        pause(Duration::from_millis(1500));
        let pushed = now();
        push(&producer, "q", "", "work");
        let at = waiting.join().expect("no panic");
        assert!(at.since(pushed) < TOLD, "told after {:?} only", at.since(pushed));
    }
}
